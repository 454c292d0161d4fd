//! The machine's atomics, with a scheduler call before each operation.
//!
//! A scheduler of random orders (`--cfg shuttle`) runs all threads of a model on one thread of the
//! system, one at a time. It switches threads only in this call. So an operation is one step, and
//! all threads see one order of all steps. Effects of weaker orderings are not tried: loom tries
//! them (see `loom_atomics.rs`). Accesses to memory without an atomic type are announced, and each
//! announcement is a step.

extern crate std;

use core::cell::Cell;
use core::sync::atomic::Ordering;

use crate::sync::stepped::{Access, atomics};

/// The scheduler's functions.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Called before each step.
    pub step: fn(),
    /// Called when a thread loops until another thread has done something.
    pub pause: fn(),
}

std::thread_local! {
    static CALLS: Cell<Option<Calls>> = const { Cell::new(None) };
}

/// Sets the functions to call on this thread of the system; `None` removes them.
pub fn make_calls(calls: Option<Calls>) {
    CALLS.set(calls);
}

fn calls() -> Option<Calls> {
    CALLS.get().filter(|_| !std::thread::panicking())
}

/// Whether a run of a model is active.
pub fn is_active() -> bool {
    calls().is_some()
}

fn step<T: ?Sized>(_at: &T, _kind: Access) {
    if let Some(calls) = calls() {
        (calls.step)();
    }
}

/// Lets other threads run first.
pub fn spin_loop() {
    if let Some(calls) = calls() {
        (calls.pause)();
    }
}

/// Announces that the caller reads `bytes` bytes from `start` on.
pub fn reads<T>(start: *const T, _bytes: usize) {
    step(&start, Access::Read);
}

/// Announces that the caller writes `bytes` bytes from `start` on.
pub fn writes<T>(start: *const T, _bytes: usize) {
    step(&start, Access::Write);
}

atomics!(step);
