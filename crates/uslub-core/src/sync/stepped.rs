//! The machine's atomics, with a call before each operation: one macro for two builds.
//!
//! `shuttle_atomics` and `timed_atomics` give the call, and each makes its own types. An operation
//! is one step: other threads run only in the call.

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

/// One type of this name: its operations call `$step(address, kind)` first.
macro_rules! atomic {
    ($step:ident, $name:ident $(<$parameter:ident>)?, $value:ty, [$($change:ident)*]) => {
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
                $step(self, Access::Read);
                // The caller's ordering, here and below.
                self.0.load(order)
            }

            /// As in `core`.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                $step(self, Access::Write);
                // The caller's ordering.
                self.0.store(value, order);
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
                $step(self, Access::Change);
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
                    $step(self, Access::Change);
                    // The caller's ordering.
                    self.0.$change(with, order)
                }
            )*
        }
    };
}

/// All atomic types of a build.
macro_rules! atomics {
    ($step:ident) => {
        $crate::sync::stepped::atomics!($step, AtomicU8: u8, AtomicU16: u16, AtomicU32: u32,
            AtomicU64: u64, AtomicUsize: usize);
        $crate::sync::stepped::atomic!($step, AtomicBool, bool, [swap]);
        $crate::sync::stepped::atomic!($step, AtomicPtr<T>, *mut T, [swap]);
    };
    ($step:ident, $($name:ident: $value:ty),*) => {$(
        $crate::sync::stepped::atomic!($step, $name, $value,
            [swap fetch_add fetch_sub fetch_or fetch_and fetch_max fetch_min]);
    )*};
}

pub(super) use {atomic, atomics};
