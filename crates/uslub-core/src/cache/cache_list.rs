//! Identities and records of caches that are free to be used.
//!
//! Destroyed caches form a queue: a record is reused with its identity, once enough younger ones
//! are in quarantine behind it. Callers: `allocator`, under `slab_mutex`.

use core::ptr::null_mut;

use crate::cache::KmemCache;
use crate::platform::Platform;
use crate::size_class::NR_CLASSES;

/// Identities that are free.
pub(crate) struct CacheList<P: Platform> {
    /// Indices from this one on were never used.
    pub(super) next: usize,
    /// Records of destroyed caches, whose identities and memory are used again; the oldest first.
    pub(super) dead: *mut KmemCache<P>,
    pub(super) youngest: *mut KmemCache<P>,
    pub(super) nr_dead: usize,
}

impl<P: Platform> CacheList<P> {
    /// Without caches, but for those of the size classes.
    pub(crate) const fn new() -> Self {
        Self {
            next: NR_CLASSES + 1,
            dead: null_mut(),
            youngest: null_mut(),
            nr_dead: 0,
        }
    }
}

// SAFETY: the records are reached through the lock alone.
unsafe impl<P: Platform> Send for CacheList<P> {}
