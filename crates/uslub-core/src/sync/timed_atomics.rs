//! The machine's atomics, with a call to a simulator before each access.
//!
//! The package `uslub-core-timed` builds these sources with `--cfg timed`. Its user plays many CPUs
//! on one thread of the system, in virtual time. The simulator learns of each access to an atomic
//! and of each announced access, and charges the running CPU for it. It may switch CPUs only in
//! these calls, so an operation is one step. It also keeps the queue of each lock.

extern crate std;

use core::cell::Cell;
use core::sync::atomic::Ordering;

pub use crate::sync::choice::Choice;
pub use crate::sync::stepped::Access;
use crate::sync::stepped::atomics;

/// The simulator's functions. Addresses are in bytes.
#[derive(Debug)]
pub struct Calls {
    /// Called before an access to `bytes` bytes from an address on.
    pub access: fn(address: usize, bytes: usize, kind: Access),
    /// Called when a CPU loops until another CPU has done something.
    pub pause: fn(),
    /// Called before a CPU takes a lock; returns when the CPU may take it. `is_free` reads the
    /// lock, `guards` is the type of the guarded value.
    pub enter: fn(lock: usize, guards: &'static str, is_free: &dyn Fn() -> bool),
    /// Whether a lock that may be free is promised to a waiting CPU.
    pub is_promised: fn(lock: usize) -> bool,
    /// Called after a CPU has released a lock.
    pub left: fn(lock: usize),
    /// Replaces a decision of the allocator.
    pub choose: fn(choice: Choice, ours: usize) -> usize,
}

std::thread_local! {
    static CALLS: Cell<Option<&'static Calls>> = const { Cell::new(None) };
}

/// Sets the functions to call on this thread of the system; `None` removes them.
pub fn make_calls(calls: Option<&'static Calls>) {
    CALLS.set(calls);
}

#[inline]
fn step<T: ?Sized>(at: &T, kind: Access) {
    if let Some(calls) = CALLS.get() {
        let at: *const T = at;
        (calls.access)(at.cast::<u8>() as usize, 1, kind);
    }
}

/// Lets other CPUs run first.
pub fn spin_loop() {
    if let Some(calls) = CALLS.get() {
        (calls.pause)();
    }
}

/// Announces that the caller reads `bytes` bytes from `start` on.
#[inline]
pub fn reads<T>(start: *const T, bytes: usize) {
    if let Some(calls) = CALLS.get() {
        (calls.access)(start as usize, bytes, Access::Read);
    }
}

/// Announces that the caller writes `bytes` bytes from `start` on.
#[inline]
pub fn writes<T>(start: *const T, bytes: usize) {
    if let Some(calls) = CALLS.get() {
        (calls.access)(start as usize, bytes, Access::Write);
    }
}

/// Waits in the queue of a lock until the caller may take it.
#[inline]
pub fn enter<T>(lock: &AtomicU32) {
    if let Some(calls) = CALLS.get() {
        // Relaxed: all CPUs run on one thread.
        let is_free = || lock.0.load(Ordering::Relaxed) == 0;
        let at: *const AtomicU32 = lock;
        (calls.enter)(at as usize, core::any::type_name::<T>(), &is_free);
    }
}

/// Whether a CPU waits for this lock and will get it next.
#[inline]
pub fn is_promised(lock: &AtomicU32) -> bool {
    let at: *const AtomicU32 = lock;
    CALLS
        .get()
        .is_some_and(|calls| (calls.is_promised)(at as usize))
}

/// Says that the caller has released a lock.
#[inline]
pub fn left(lock: &AtomicU32) {
    if let Some(calls) = CALLS.get() {
        let at: *const AtomicU32 = lock;
        (calls.left)(at as usize);
    }
}

/// A decision of the allocator, or what an experiment wants instead.
#[inline]
pub fn choose(choice: Choice, ours: usize) -> usize {
    CALLS
        .get()
        .map_or(ours, |calls| (calls.choose)(choice, ours))
}

atomics!(step);
