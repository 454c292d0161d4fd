//! Reclaim: frees memory when an allocation fails.
//!
//! 1. If the page layer failed, memory [without objects](Allocator::release_unused) goes back to
//!    the system, and the allocation is tried again.
//! 2. Shrinkers of the cache, and those of no cache, free objects.
//! 3. The cache's sheaves go to its slabs, and its empty slabs to the page layer.
//! 4. If the page layer failed, not a limit, the same happens for all caches.
//!
//! One thread at a time reclaims; others wait for it and then try again. A shrinker may allocate
//! and free, also from its own cache. Such an allocation fails instead of calling shrinkers again.
//!
//! Any thread may register a shrinker. Slow paths of allocations reclaim.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::policy::{RECLAIM_RETRY_MS, SHRINKER_BATCH};
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
struct ShrinkerEntry {
    /// Distinguishes it from earlier entries at the same index.
    number: usize,
    shrinker: Shrinker,
    /// The cache that it frees objects of; `None` for all.
    cache: Option<CacheId>,
}

/// A registered shrinker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrinkerId(usize);

impl ShrinkerId {
    /// The identity as a number.
    pub fn into_raw(self) -> usize {
        self.0
    }

    /// The inverse of [`into_raw`](Self::into_raw).
    pub fn from_raw(raw: usize) -> Self {
        Self(raw)
    }
}

/// The shrinkers, and the thread that reclaims.
pub struct Reclaim<P> {
    list: Lock<P, [Option<ShrinkerEntry>; MAX_SHRINKERS]>,
    /// Shrinkers registered so far.
    registered: AtomicUsize,
    running: Lock<P, ()>,
    /// The thread that runs shrinkers; 0 for none.
    owner: AtomicUsize,
}

impl<P: Platform> Reclaim<P> {
    /// Without shrinkers.
    pub const fn new() -> Self {
        Self {
            list: Lock::new([None; MAX_SHRINKERS]),
            registered: AtomicUsize::new(0),
            running: Lock::new(()),
            owner: AtomicUsize::new(0),
        }
    }

    /// Whether this thread is inside a shrinker.
    fn is_mine(&self) -> bool {
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

impl<P: Platform> Default for Reclaim<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> Allocator<P> {
    /// Registers a shrinker for a cache, or for all; `None` if there are [`MAX_SHRINKERS`] already.
    ///
    /// # Safety
    ///
    /// `shrinker.scan` may be called with its data, on any thread, until it is unregistered.
    pub unsafe fn register_shrinker(
        &self,
        cache: Option<&KmemCache<P>>,
        shrinker: Shrinker,
    ) -> Option<ShrinkerId> {
        let mut list = self.reclaim.list.lock();
        let at = list.iter().position(Option::is_none)?;
        // Relaxed: under the lock.
        let number = self.reclaim.registered.fetch_add(1, Relaxed);
        list[at] = Some(ShrinkerEntry {
            number,
            shrinker,
            cache: cache.map(|cache| cache.id),
        });
        Some(ShrinkerId(number))
    }

    /// Unregisters a shrinker, if it is still registered. Afterwards it is not running, unless it
    /// is itself the caller.
    pub fn unregister_shrinker(&self, id: ShrinkerId) {
        for entry in self.reclaim.list.lock().iter_mut() {
            if entry.is_some_and(|entry| entry.number == id.0) {
                *entry = None;
            }
        }
        if !self.reclaim.is_mine() {
            drop(self.reclaim.running.lock());
        }
    }

    /// Unregisters the shrinkers of a cache that is being destroyed.
    pub(crate) fn forget_shrinkers(&self, cache: &KmemCache<P>) {
        let mut list = self.reclaim.list.lock();
        for entry in list.iter_mut() {
            if entry.is_some_and(|entry| entry.cache == Some(cache.id)) {
                *entry = None;
            }
        }
    }

    /// Frees memory after an allocation from a cache failed; returns whether to try it again.
    #[cold]
    pub(crate) fn reclaim_for(&self, cache: &KmemCache<P>, gfp: Gfp) -> bool {
        if !gfp.may_map() || !gfp.may_spin() || self.reclaim.is_mine() {
            return false;
        }
        let at_limit = cache.nr_slabs() >= cache.max_slabs;
        if !at_limit && self.release_idle() {
            return true;
        }
        let (cached, slabs) = self.idle(cache, at_limit);
        let freed = {
            let _running = self.reclaim.running.lock();
            // Relaxed: see `is_mine`.
            self.reclaim.owner.store(P::thread(), Relaxed);
            let freed = self.shrink_by_shrinkers(cache);
            // Relaxed: see `is_mine`.
            self.reclaim.owner.store(0, Relaxed);
            freed
        };
        self.shrink(cache);
        if !at_limit {
            self.shrink_all();
        }
        let fewer_slabs = || self.idle(cache, at_limit).1 < slabs;
        if freed > 0 || cached > 0 || self.has_room(cache) || fewer_slabs() {
            return true;
        }
        if gfp.contains(Gfp::NOFAIL) {
            // Another thread may free something meanwhile.
            P::wait(
                &crate::sync::atomic::AtomicU32::new(0),
                0,
                Some(RECLAIM_RETRY_MS),
            );
            return true;
        }
        false
    }

    #[inline(never)]
    fn shrink_by_shrinkers(&self, cache: &KmemCache<P>) -> usize {
        let mut freed = 0;
        for at in 0..MAX_SHRINKERS {
            let entry = self.reclaim.list.lock()[at];
            if let Some(entry) = entry
                && entry.cache.is_none_or(|id| id == cache.id)
            {
                // SAFETY: registered, so it may be called.
                freed += unsafe { (entry.shrinker.scan)(entry.shrinker.data, SHRINKER_BATCH) };
            }
        }
        freed
    }

    /// Whether a slot of the cache is free, or its limit allows a slab: another thread may have
    /// held them before.
    #[inline(never)]
    fn has_room(&self, cache: &KmemCache<P>) -> bool {
        let info = self.info(cache);
        let is_limited = cache.max_slabs < usize::MAX;
        info.active_objs < info.num_objs || (is_limited && info.num_slabs < cache.max_slabs)
    }

    /// Objects in sheaves, and slabs: of the cache if its limit is the reason, otherwise of all.
    #[inline(never)]
    fn idle(&self, cache: &KmemCache<P>, at_limit: bool) -> (usize, usize) {
        if at_limit {
            return (self.info(cache).cached_objs, cache.nr_slabs());
        }
        let totals = self.totals();
        (totals.cached, totals.slabs)
    }
}
