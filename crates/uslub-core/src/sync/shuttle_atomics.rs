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

fn step() {
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
pub fn reads<T>(_start: *const T, _bytes: usize) {
    step();
}

/// Announces that the caller writes `bytes` bytes from `start` on.
pub fn writes<T>(_start: *const T, _bytes: usize) {
    step();
}

macro_rules! atomic {
    ($name:ident $(<$parameter:ident>)?, $value:ty, [$($change:ident)*]) => {
        /// The type of this name in `core::sync::atomic`.
        #[repr(transparent)]
        pub struct $name $(<$parameter>)? (core::sync::atomic::$name $(<$parameter>)?);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            /// An atomic with the value `value`.
            pub const fn new(value: $value) -> Self {
                Self(core::sync::atomic::$name::new(value))
            }

            /// As in `core`.
            pub fn load(&self, order: Ordering) -> $value {
                step();
                // The caller's ordering, here and below.
                self.0.load(order)
            }

            /// As in `core`.
            pub fn store(&self, value: $value, order: Ordering) {
                step();
                // The caller's ordering.
                self.0.store(value, order);
            }

            /// As in `core`.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                step();
                // The caller's ordering.
                self.0.swap(value, order)
            }

            /// As in `core`.
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                // The caller's orderings.
                self.0.compare_exchange(old, new, success, failure)
            }

            /// As in `core`; never fails spuriously.
            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }

            $(
                /// As in `core`.
                pub fn $change(&self, with: $value, order: Ordering) -> $value {
                    step();
                    // The caller's ordering.
                    self.0.$change(with, order)
                }
            )*
        }
    };
}

macro_rules! number {
    ($($name:ident: $value:ty,)*) => {$(
        atomic!($name, $value, [fetch_add fetch_sub fetch_or fetch_and fetch_max fetch_min]);
    )*};
}

number! {
    AtomicU8: u8,
    AtomicU16: u16,
    AtomicU32: u32,
    AtomicU64: u64,
    AtomicUsize: usize,
}
atomic!(AtomicBool, bool, []);
atomic!(AtomicPtr<T>, *mut T, []);
