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

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write instruction.
    Change,
}

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
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                step(self, Access::Read);
                // The caller's ordering, here and below.
                self.0.load(order)
            }

            /// As in `core`.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                step(self, Access::Write);
                // The caller's ordering.
                self.0.store(value, order);
            }

            /// As in `core`.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                step(self, Access::Change);
                // The caller's ordering.
                self.0.swap(value, order)
            }

            /// As in `core`.
            #[inline]
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step(self, Access::Change);
                // The caller's orderings.
                self.0.compare_exchange(old, new, success, failure)
            }

            /// As in `core`; never fails spuriously.
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }

            /// As in `core`.
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            $(
                /// As in `core`.
                #[inline]
                pub fn $change(&self, with: $value, order: Ordering) -> $value {
                    step(self, Access::Change);
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
