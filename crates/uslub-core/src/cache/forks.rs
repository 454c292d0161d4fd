//! The forks that run, and the worlds that children gave up.
//!
//! | record | meaning |
//! |---|---|
//! | 0 | free |
//! | lock tag of a thread, n | n forks of the thread run; n > 1 if signal handlers fork |
//!
//! Only its thread changes a record. Callers: `fork`.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use crate::memory::arena::Arena;
use crate::memory::mapped::MappedObjects;
use crate::percpu::MAX_CACHES;
use crate::platform::Platform;
use crate::sync::RawLock;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

/// Threads that can fork with locks at once; others fork without them.
const PLACES: usize = 32;

/// Forks that run, and worlds that were given up. A record has the tag in its upper half.
pub(crate) struct Forks<P> {
    records: [AtomicU64; PLACES],
    /// Whether structures may be half changed: another thread was changing them at the fork.
    pub(super) torn: AtomicBool,
    pub(super) formers: AtomicPtr<Former<P>>,
}

/// A world that was given up.
pub(super) struct Former<P> {
    pub(super) arena: Arena,
    pub(super) mapped: MappedObjects<P>,
    pub(super) next: *const Former<P>,
    /// Bytes of an object of each cache beyond the size classes: their twins, by index.
    pub(super) sizes: [u16; MAX_CACHES],
}

impl<P: Platform> Forks<P> {
    /// No forks, no former worlds.
    pub(crate) const fn new() -> Self {
        Self {
            records: [const { AtomicU64::new(0) }; PLACES],
            torn: AtomicBool::new(false),
            formers: AtomicPtr::new(null_mut()),
        }
    }

    fn me() -> u64 {
        u64::from(RawLock::<P>::me()) << 32
    }

    fn is_mine(record: &AtomicU64) -> bool {
        // Relaxed: a thread compares only with its own tag.
        record.load(Relaxed) >> 32 == Self::me() >> 32
    }

    /// Begins a fork of this thread; returns its depth, from 1, or 0 if there is no free record.
    pub(super) fn begin(&self) -> u32 {
        if let Some(record) = self.records.iter().find(|record| Self::is_mine(record)) {
            // Relaxed: only this thread changes it.
            return record.fetch_add(1, Relaxed) as u32 + 1;
        }
        let claim = |record: &AtomicU64| {
            let first = Self::me() | 1;
            // Relaxed: a record does not order other memory.
            (record.compare_exchange(0, first, Relaxed, Relaxed)).is_ok()
        };
        u32::from(self.records.iter().any(claim))
    }

    /// Number of forks of this thread that run.
    pub(super) fn depth(&self) -> u32 {
        let mut mine = self.records.iter().filter(|record| Self::is_mine(record));
        // Relaxed: only this thread changes it.
        mine.next().map_or(0, |record| record.load(Relaxed) as u32)
    }

    /// Ends the innermost fork of this thread.
    pub(super) fn end(&self) {
        if let Some(record) = self.records.iter().find(|record| Self::is_mine(record)) {
            // Relaxed, both: only this thread changes it.
            if record.fetch_sub(1, Relaxed) as u32 == 1 {
                record.store(0, Relaxed);
            }
        }
    }

    /// Clears the records of all other threads, in a child.
    pub(super) fn forget_others(&self) {
        let others = (self.records.iter()).filter(|record| !Self::is_mine(record));
        // Relaxed: the child has one thread.
        others.for_each(|record| record.store(0, Relaxed));
    }
}
