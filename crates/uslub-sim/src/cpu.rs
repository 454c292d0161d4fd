//! Which virtual CPU a thread is on.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Puts this thread on a virtual CPU, until it says another.
#[inline]
pub fn on(cpu: usize) {
    CPU.set(cpu);
}

/// The virtual CPU that this thread is on; the first, if it never said one.
#[inline]
pub fn here() -> usize {
    CPU.get()
}

/// A number of this thread's own, never 0.
pub fn thread() -> usize {
    if THREAD.get() == 0 {
        // Relaxed: each thread gets another number, in any order.
        THREAD.set(THREADS.fetch_add(1, Relaxed) + 1);
    }
    THREAD.get()
}
