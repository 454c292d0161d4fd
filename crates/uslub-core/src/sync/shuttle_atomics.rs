//! The machine's atomics, with a call before each operation.
//!
//! A scheduler of random orders (`--cfg shuttle`) runs all threads of a model on one thread of the
//! system, one at a time, and changes between them nowhere but in that call. So an operation is one
//! step, all threads see one order of all steps, and what a weaker ordering would allow is not
//! tried: that is loom's part (see `modelled.rs`). Memory that no atomic covers is announced, and
//! each announcement is a step of its own.

extern crate std;

use core::cell::Cell;
use core::sync::atomic::Ordering;

/// What a scheduler is called by.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Comes before each step.
    pub step: fn(),
    /// Comes where a thread goes round until another has done something.
    pub pause: fn(),
}

std::thread_local! {
    static CALLS: Cell<Option<Calls>> = const { Cell::new(None) };
}

/// Makes these calls on this thread of the system, from now on; `None` ends that.
pub fn make_calls(calls: Option<Calls>) {
    CALLS.set(calls);
}

fn calls() -> Option<Calls> {
    CALLS.get().filter(|_| !std::thread::panicking())
}

/// Whether a run of a model is under way.
pub fn is_active() -> bool {
    calls().is_some()
}

fn step() {
    if let Some(calls) = calls() {
        (calls.step)();
    }
}

/// Lets others go first.
pub fn spin_loop() {
    if let Some(calls) = calls() {
        (calls.pause)();
    }
}

/// Says that the caller reads `bytes` bytes from `start` on.
pub fn reads<T>(_start: *const T, _bytes: usize) {
    step();
}

/// Says that the caller writes `bytes` bytes from `start` on.
pub fn writes<T>(_start: *const T, _bytes: usize) {
    step();
}

macro_rules! atomic {
    ($name:ident $(<$parameter:ident>)?, $value:ty, [$($change:ident)*]) => {
        /// As the type of this name in `core::sync::atomic`.
        #[repr(transparent)]
        pub struct $name $(<$parameter>)? (core::sync::atomic::$name $(<$parameter>)?);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            /// An atomic with a value.
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

            /// As in `core`; it fails for no other reason than another value.
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
