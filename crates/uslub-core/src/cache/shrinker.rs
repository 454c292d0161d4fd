//! The shrinkers of an allocator, and the thread that runs them.
//!
//! `list` protects the entries. The thread `owner` holds `running` while it reclaims; its own
//! allocations call no shrinker. Callers: `reclaim` and `fork`.

use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::sync::Lock;
use crate::sync::atomic::AtomicUsize;

/// Largest number of shrinkers of an allocator.
pub const MAX_SHRINKERS: usize = 256;

/// A function that can free objects when memory is short.
#[derive(Clone, Copy, Debug)]
pub struct Shrinker {
    /// Frees up to this many objects; returns how many it freed.
    pub scan: unsafe fn(*const (), usize) -> usize,
    /// First argument of `scan`.
    pub data: *const (),
}

// SAFETY: the creator promises that `scan` may be called with `data` on any thread.
unsafe impl Send for Shrinker {}

#[derive(Clone, Copy)]
pub(super) struct ShrinkerEntry {
    /// Distinguishes it from earlier entries at the same index.
    pub(super) number: usize,
    pub(super) shrinker: Shrinker,
    /// The cache that it frees objects of; `None` for all.
    pub(super) cache: Option<CacheId>,
}

/// A registered shrinker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrinkerId(pub(super) usize);

impl ShrinkerId {
    /// The identity as a number.
    pub fn into_raw(self) -> usize {
        self.0
    }
}

/// The shrinkers, and the thread that reclaims.
pub struct Reclaim<P> {
    pub(super) list: Lock<P, [Option<ShrinkerEntry>; MAX_SHRINKERS]>,
    /// Shrinkers registered so far.
    pub(super) registered: AtomicUsize,
    pub(super) running: Lock<P, ()>,
    /// The thread that runs shrinkers; 0 for none.
    pub(super) owner: AtomicUsize,
}

impl<P: Platform> Reclaim<P> {
    /// Without shrinkers.
    pub(crate) const fn new() -> Self {
        Self {
            list: Lock::new([None; MAX_SHRINKERS]),
            registered: AtomicUsize::new(0),
            running: Lock::new(()),
            owner: AtomicUsize::new(0),
        }
    }

    /// Whether this thread is inside a shrinker.
    pub(super) fn is_mine(&self) -> bool {
        // Relaxed: a thread compares only with its own number.
        self.owner.load(Relaxed) == P::thread()
    }

    /// Unlocks the locks in the child of a fork, except for the ones that its thread holds: it may
    /// have forked inside a shrinker, and continues there.
    ///
    /// # Safety
    ///
    /// In the child, before it has a second thread.
    pub(crate) unsafe fn reset_after_fork(&self) {
        // SAFETY: passed on.
        unsafe {
            self.list.raw().reset_others();
            self.running.raw().reset_others();
        }
        if !self.is_mine() {
            // Relaxed: the child has one thread.
            self.owner.store(0, Relaxed);
        }
    }
}
