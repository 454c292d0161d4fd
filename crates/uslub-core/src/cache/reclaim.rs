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
use crate::cache::shrinker::{MAX_SHRINKERS, Shrinker, ShrinkerEntry, ShrinkerId};
use crate::gfp::Gfp;
use crate::platform::Platform;
use crate::policy::{RECLAIM_RETRY_MS, SHRINKER_BATCH};

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
        if !at_limit && (self.memory.release_idle(&self.platform) || self.give_back_ahead()) {
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
        let now = || self.idle(cache, at_limit);
        // Without a fence, other CPUs keep what they have: then only fewer objects are a success.
        let flushed = cached > 0 && (self.platform.fence() || now().0 < cached);
        if freed > 0 || flushed || self.has_room(cache) || now().1 < slabs {
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
        // Slabs that wait for their readers have no room.
        let waiting = cache.nr_waiting() * cache.geometry.objects as usize;
        info.active_objs + waiting < info.num_objs
            || (is_limited && info.num_slabs < cache.max_slabs)
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
