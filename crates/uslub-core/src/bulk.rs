//! Objects of a cache, one by one and many at once.

use crate::allocator::Allocator;
use crate::cache::KmemCache;
use crate::gfp::Gfp;
use crate::platform::Platform;
use crate::sheaf::{self, Sheaf};
use crate::stats::StatItem;

impl<P: Platform> Allocator<P> {
    /// Allocates an object of a cache; null when memory cannot be had.
    #[inline]
    pub fn alloc(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        // SAFETY: our table.
        let mut object = unsafe { self.platform.pop(&self.table, cache.id.main()) };
        if object.is_null() {
            object = self.alloc_slow(cache, gfp);
        }
        if gfp.contains(Gfp::ZERO) {
            zero(cache, &[object]);
        }
        object
    }

    /// Frees an object of a cache.
    ///
    /// # Safety
    ///
    /// The object came from this cache and nobody uses it any more.
    #[inline]
    pub unsafe fn free(&self, cache: &KmemCache<P>, object: *mut u8) {
        // SAFETY: our table; the caller frees the object.
        if !unsafe { self.platform.push(&self.table, cache.id.main(), object) } {
            self.free_slow(cache, object, Gfp::KERNEL);
        }
    }

    /// Allocates `out.len()` objects, all or none; returns whether it did.
    ///
    /// What the CPU's sheaves and the barn do not have comes from the slabs
    /// straight into `out`, without a turn through a sheaf.
    pub fn alloc_bulk(&self, cache: &KmemCache<P>, gfp: Gfp, out: &mut [*mut u8]) -> bool {
        let mut filled = 0;
        while filled < out.len()
            && let Some(mut sheaf) = self.take_filled(cache, gfp)
        {
            let n = sheaf.len().min(out.len() - filled);
            let rest = sheaf.len() - n;
            out[filled..filled + n].copy_from_slice(&sheaf.objects()[rest..]);
            sheaf.truncate(rest);
            filled += n;
            cache.stats.add(StatItem::AllocFastpath, n);
            self.place_filled(cache, sheaf, gfp);
        }
        let rest = out.len() - filled;
        let n = self.refill_objects(cache, &mut out[filled..], rest, gfp);
        cache.stats.add(StatItem::AllocSlowpath, n);
        if n < rest {
            cache.stats.add(StatItem::FreeSlowpath, filled + n);
            self.free_to_slabs(cache, &mut out[..filled + n], gfp);
            return false;
        }
        if gfp.contains(Gfp::ZERO) {
            zero(cache, out);
        }
        true
    }

    /// Frees all objects of an array; their order in the array is lost.
    ///
    /// # Safety
    ///
    /// All came from this cache, none twice, and nobody uses them any more.
    pub unsafe fn free_bulk(&self, cache: &KmemCache<P>, objects: &mut [*mut u8]) {
        let mut left = objects.len();
        while left > 0
            && let Some(mut sheaf) = self.take_roomy(cache)
        {
            let room = sheaf.room();
            let n = room.len().min(left);
            room[..n].copy_from_slice(&objects[left - n..left]);
            sheaf.grow(n);
            left -= n;
            cache.stats.add(StatItem::FreeFastpath, n);
            self.place_roomy(cache, sheaf, Gfp::KERNEL);
        }
        if left > 0 {
            cache.stats.add(StatItem::FreeSlowpath, left);
            self.free_to_slabs(cache, &mut objects[..left], Gfp::KERNEL);
        }
    }

    /// Takes this CPU's main or spare sheaf, unless its top is `useless`.
    fn take_own(&self, cache: &KmemCache<P>, useless: fn(usize) -> bool) -> Option<Sheaf> {
        for (slot, nothing) in [(cache.id.main(), sheaf::bootstrap()), (cache.id.spare(), 0)] {
            let top = self.glance(slot);
            if top != 0
                && top & 1 == 0
                && !sheaf::is_sentinel(top)
                && !useless(top)
                && self.swap(slot, top, nothing)
            {
                // SAFETY: just taken out of its slot, and no sentinel.
                return Some(unsafe { Sheaf::from_top(top) });
            }
        }
        None
    }

    /// Takes a sheaf with objects: main, spare or one of the barn's.
    fn take_filled(&self, cache: &KmemCache<P>, gfp: Gfp) -> Option<Sheaf> {
        if !self.platform.percpu_usable() {
            return None;
        }
        let own = self.take_own(cache, sheaf::top_is_empty);
        if own.is_some() {
            return own;
        }
        let full = cache.node(0).barn.get_full(gfp.may_spin());
        let item = if full.is_some() {
            StatItem::BarnGet
        } else {
            StatItem::BarnGetFail
        };
        cache.stats.add(item, 1);
        full
    }

    /// Takes a sheaf with room: main, spare, or an empty one while the barn has room for a full one.
    fn take_roomy(&self, cache: &KmemCache<P>) -> Option<Sheaf> {
        if !self.platform.percpu_usable() {
            return None;
        }
        let own = self.take_own(cache, sheaf::top_is_full);
        if own.is_some() {
            return own;
        }
        if self.glance(cache.id.spare()) != 0 && cache.node(0).barn.nr_full() >= cache.max_full {
            cache.stats.add(StatItem::BarnPutFail, 1);
            return None;
        }
        self.empty_sheaf(cache, Gfp::KERNEL)
    }
}

/// Zeroes objects of a cache; null is passed over.
fn zero<P: Platform>(cache: &KmemCache<P>, objects: &[*mut u8]) {
    debug_assert!(cache.ctor.is_none(), "a constructed object is not zero");
    for object in objects.iter().filter(|object| !object.is_null()) {
        // SAFETY: just allocated, and so long.
        unsafe { object.write_bytes(0, cache.object_size as usize) };
    }
}
