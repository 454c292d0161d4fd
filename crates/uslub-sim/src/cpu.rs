//! The virtual CPU of each thread. The user of the simulation sets it, and `Sim` reads it.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Moves this thread to a virtual CPU, until the next call.
#[inline]
pub fn on(cpu: usize) {
    CPU.set(cpu);
}

/// The virtual CPU of this thread; CPU 0 before the first call of [`on`].
#[inline]
pub fn here() -> usize {
    CPU.get()
}

/// A number that only this thread has; never 0.
pub fn thread() -> usize {
    if THREAD.get() == 0 {
        // Relaxed: numbers only have to differ, in any order.
        THREAD.set(THREADS.fetch_add(1, Relaxed) + 1);
    }
    THREAD.get()
}
