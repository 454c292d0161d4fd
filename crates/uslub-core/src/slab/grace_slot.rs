//! The place of the source of grace periods: set once, read by each full rcu sheaf of every CPU.
//!
//! | `is_set` | `source` | who may access `source` |
//! |---|---|---|
//! | false | none | the holder of the lock, who writes it |
//! | true | the source | everyone reads; no one writes |
//!
//! Readers take no lock. With a lock, 192 simulated CPUs that free by RCU waited for it for 5 to 54
//! % of their time. Callers: `rcu` above sets it; `slab::rcu` reads it.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::grace::GracePeriod;
use crate::platform::Platform;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Lock, RawLock};

/// A place for a source of grace periods.
pub(crate) struct GraceSlot<P> {
    lock: Lock<P, ()>,
    is_set: AtomicBool,
    source: UnsafeCell<Option<&'static dyn GracePeriod>>,
}

// SAFETY: the holder of the lock writes the source once, before `is_set`; readers come after it. A
// source is `Sync`.
unsafe impl<P> Sync for GraceSlot<P> {}
// SAFETY: as above.
unsafe impl<P> Send for GraceSlot<P> {}

impl<P: Platform> GraceSlot<P> {
    /// An empty place.
    pub(crate) const fn new() -> Self {
        Self {
            lock: Lock::new(()),
            is_set: AtomicBool::new(false),
            source: UnsafeCell::new(None),
        }
    }

    /// Sets the source; false if there is one.
    pub(crate) fn set(&self, source: &'static dyn GracePeriod) -> bool {
        let _guard = self.lock.lock();
        if self.get().is_some() {
            return false;
        }
        // SAFETY: we hold the lock, and no one reads before `is_set`.
        unsafe { *self.source.get() = Some(source) };
        // Release: whoever sees `true` sees the source.
        self.is_set.store(true, Release);
        true
    }

    /// The source, if it is set.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static dyn GracePeriod> {
        // Acquire: pairs with `set`.
        if !self.is_set.load(Acquire) {
            return None;
        }
        // SAFETY: the source does not change any longer.
        unsafe { *self.source.get() }
    }

    /// The lock, for a fork.
    pub(crate) fn raw_lock(&self) -> &RawLock<P> {
        self.lock.raw()
    }
}
