//! Objects of a cache, one by one and many at once.

use core::ptr::null_mut;

use crate::allocator::Allocator;
use crate::cache::KmemCache;
use crate::gfp::Gfp;
use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::sheaf::{self, Sheaf};
use crate::sheaves::RECLAIMS;
use crate::stats::StatItem;

impl<P: Platform> Allocator<P> {
    /// Allocates an object of a cache; null when memory cannot be had.
    ///
    /// Zeroed memory of a cache with a constructor is a contradiction: null, after a warning.
    #[inline]
    pub fn alloc(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        if gfp.contains(Gfp::ZERO) && !self.may_zero(cache) {
            return null_mut();
        }
        // SAFETY: our table.
        let mut object = unsafe { self.platform.pop(&self.table, cache.id.main()) };
        if object.is_null() {
            object = self.alloc_slow(cache, gfp);
        }
        if gfp.contains(Gfp::ZERO) && !object.is_null() {
            self.zero_object(cache, object);
        }
        object
    }

    /// As [`alloc`](Self::alloc), from memory of a node if there is any; with
    /// [`THISNODE`](Gfp::THISNODE) from no other.
    pub fn alloc_node(&self, cache: &KmemCache<P>, gfp: Gfp, nid: usize) -> *mut u8 {
        if nid >= self.nr_nodes() || nid == self.nid() {
            let never = gfp.contains(Gfp::THISNODE) && nid >= self.nr_nodes();
            return if never {
                null_mut()
            } else {
                self.alloc(cache, gfp)
            };
        }
        if gfp.contains(Gfp::ZERO) && !self.may_zero(cache) {
            return null_mut();
        }
        self.count(cache, StatItem::AllocNodeMismatch, 1);
        let mut object = [null_mut()];
        let n = self.refill_on(cache, nid, &mut object, 1, gfp);
        self.count(cache, StatItem::AllocSlowpath, n);
        if gfp.contains(Gfp::ZERO) && n == 1 {
            self.zero_object(cache, object[0]);
        }
        object[0]
    }

    /// Frees an object of a cache, in the context that the cache's arguments say; null is ignored.
    ///
    /// An object of another cache is not freed: a warning names both caches, and it leaks. Any other pointer that
    /// is no object ends the process with a message.
    ///
    /// # Safety
    ///
    /// Nobody uses the object any more.
    #[inline]
    pub unsafe fn free(&self, cache: &KmemCache<P>, object: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.free_with(cache, object, cache.free_gfp) };
    }

    /// As [`free`](Self::free), in a context of the caller's choice.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub unsafe fn free_with(&self, cache: &KmemCache<P>, object: *mut u8, gfp: Gfp) {
        if !self.is_object_of(cache, object) {
            return;
        }
        // SAFETY: our table; the caller frees the object.
        let done = self.is_parkable(cache, object)
            && unsafe { self.platform.push(&self.table, cache.id.main(), object) };
        if !done {
            self.free_slow(cache, object, gfp);
        }
    }

    /// Whether an object lies in a slab of the cache. If not: null is nothing to free, an object of another cache
    /// leaks with a warning, and anything else ends the process.
    #[inline]
    pub(crate) fn is_object_of(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        let arena = &self.zone.arena;
        let id = arena
            .page_of(object as usize)
            .and_then(|page| arena.cache_of(page));
        id == Some(cache.id) || self.is_not_object_of(cache, object, id)
    }

    #[cold]
    fn is_not_object_of(&self, cache: &KmemCache<P>, object: *mut u8, id: Option<CacheId>) -> bool {
        if object.is_null() {
            return false;
        }
        let Some(id) = id else {
            let why = match self.zone.arena.page_of(object as usize) {
                Some(page) if self.zone.is_free(page) => {
                    "double free or never allocated: its pages are free"
                }
                Some(_) => "never allocated from a cache (a large object or a part of one)",
                None => "not allocated here (a foreign pointer)",
            };
            self.misuse(cache, object, why);
        };
        self.platform.warn(format_args!(
            "cache '{}': free of {object:p}: it belongs to cache '{}' and is not freed",
            cache.name(),
            self.cache(id).map_or("?", KmemCache::name)
        ));
        false
    }

    /// Whether objects of a cache can be zeroed; warns if not.
    #[inline]
    fn may_zero(&self, cache: &KmemCache<P>) -> bool {
        if cache.ctor.is_some() {
            self.platform.warn(format_args!(
                "cache '{}': zeroed objects were asked for, but it has a constructor",
                cache.name()
            ));
        }
        cache.ctor.is_none()
    }

    /// Zeroes an object, which is not null.
    pub(crate) fn zero_object(&self, cache: &KmemCache<P>, object: *mut u8) {
        // SAFETY: just allocated, and so long.
        unsafe { object.write_bytes(0, cache.object_size()) };
    }

    /// Allocates `out.len()` objects, all or none; returns whether it did.
    ///
    /// What the CPU's sheaves and the barn do not have comes from the slabs
    /// straight into `out`, without a turn through a sheaf.
    pub fn alloc_bulk(&self, cache: &KmemCache<P>, gfp: Gfp, out: &mut [*mut u8]) -> bool {
        if gfp.contains(Gfp::ZERO) && !self.may_zero(cache) {
            return false;
        }
        if let [one] = out {
            *one = self.alloc(cache, gfp);
            return !one.is_null();
        }
        if out.is_empty() {
            return true;
        }
        // SAFETY: our table.
        if !unsafe { self.platform.pop_many(&self.table, cache.id.main(), out) } {
            return self.alloc_bulk_slow(cache, gfp, out);
        }
        if gfp.contains(Gfp::ZERO) {
            out.iter()
                .for_each(|&object| self.zero_object(cache, object));
        }
        true
    }

    #[cold]
    fn alloc_bulk_slow(&self, cache: &KmemCache<P>, gfp: Gfp, out: &mut [*mut u8]) -> bool {
        let mut filled = 0;
        while filled < out.len()
            && let Some(mut sheaf) = self.take_filled(cache, gfp)
        {
            let n = sheaf.len().min(out.len() - filled);
            let rest = sheaf.len() - n;
            out[filled..filled + n].copy_from_slice(&sheaf.objects()[rest..]);
            sheaf.truncate(rest);
            filled += n;
            self.count(cache, StatItem::AllocFastpath, n);
            self.place_filled(cache, sheaf, gfp);
        }
        let mut attempt = 0;
        while filled < out.len() {
            let rest = out.len() - filled;
            let n = self.refill_objects(cache, &mut out[filled..], rest, gfp);
            self.count(cache, StatItem::AllocSlowpath, n);
            filled += n;
            attempt += 1;
            if n < rest
                && ((attempt > RECLAIMS && !gfp.contains(Gfp::NOFAIL))
                    || !self.reclaim_for(cache, gfp))
            {
                self.count(cache, StatItem::FreeSlowpath, filled);
                self.free_to_slabs(cache, &mut out[..filled], gfp);
                return false;
            }
        }
        if gfp.contains(Gfp::ZERO) {
            out.iter()
                .for_each(|&object| self.zero_object(cache, object));
        }
        true
    }

    /// Frees all objects of an array, as [`free`](Self::free) does; their order in the array is lost.
    ///
    /// # Safety
    ///
    /// None is there twice, and nobody uses them any more.
    pub unsafe fn free_bulk(&self, cache: &KmemCache<P>, objects: &mut [*mut u8]) {
        // SAFETY: passed on.
        unsafe { self.free_bulk_with(cache, objects, cache.free_gfp) };
    }

    /// As [`free_bulk`](Self::free_bulk), in a context of the caller's choice.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub unsafe fn free_bulk_with(&self, cache: &KmemCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        if let [one] = objects {
            // SAFETY: passed on.
            return unsafe { self.free_with(cache, *one, gfp) };
        }
        // SAFETY: our table; the caller frees the objects, all of which are this cache's.
        let done = self.nr_nodes() == 1
            && self.zone.arena.all_of(objects, cache.id)
            && (objects.is_empty()
                || unsafe {
                    self.platform
                        .push_many(&self.table, cache.id.main(), objects)
                });
        if !done {
            self.free_bulk_slow(cache, objects, gfp);
        }
    }

    /// As [`free_bulk`](Self::free_bulk), without a look at each object: one of another cache is seen
    /// only when it leaves the sheaf for its slab, and may be allocated before.
    ///
    /// # Safety
    ///
    /// As there, and all came from this cache.
    #[inline]
    pub unsafe fn free_bulk_unchecked(&self, cache: &KmemCache<P>, objects: &mut [*mut u8]) {
        if self.nr_nodes() > 1 {
            return self.free_bulk_slow(cache, objects, cache.free_gfp);
        }
        if let [one] = objects
            // SAFETY: our table; the caller frees the object.
            && unsafe { self.platform.push(&self.table, cache.id.main(), *one) }
        {
            return;
        }
        // SAFETY: our table; the caller frees the objects.
        let done = objects.is_empty()
            || unsafe {
                self.platform
                    .push_many(&self.table, cache.id.main(), objects)
            };
        if !done {
            self.free_bulk_slow(cache, objects, cache.free_gfp);
        }
    }

    #[cold]
    fn free_bulk_slow(&self, cache: &KmemCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        let mut ours = 0;
        for at in 0..objects.len() {
            if self.is_object_of(cache, objects[at]) {
                objects.swap(at, ours);
                ours += 1;
            }
        }
        let objects = &mut objects[..ours];
        // Objects of other nodes go to their slabs at once.
        let mut left = 0;
        for at in 0..ours {
            if self.is_parkable(cache, objects[at]) {
                objects.swap(at, left);
                left += 1;
            }
        }
        if left < ours {
            self.count(cache, StatItem::FreeSlowpath, ours - left);
            self.free_to_slabs(cache, &mut objects[left..], gfp);
        }
        while left > 0
            && let Some(mut sheaf) = self.take_roomy(cache, gfp)
        {
            let room = sheaf.room();
            let n = room.len().min(left);
            room[..n].copy_from_slice(&objects[left - n..left]);
            sheaf.grow(n);
            left -= n;
            self.count(cache, StatItem::FreeFastpath, n);
            self.place_roomy(cache, sheaf, gfp);
        }
        if left > 0 {
            self.count(cache, StatItem::FreeSlowpath, left);
            self.free_to_slabs(cache, &mut objects[..left], gfp);
        }
    }

    /// Takes this CPU's main or spare sheaf, if its top is `useful`.
    pub(crate) fn take_own(
        &self,
        cache: &KmemCache<P>,
        useful: impl Fn(usize) -> bool,
    ) -> Option<Sheaf> {
        for (slot, nothing) in [(cache.id.main(), sheaf::bootstrap()), (cache.id.spare(), 0)] {
            let top = self.glance(slot);
            if top != 0
                && top & 1 == 0
                && !sheaf::is_sentinel(top)
                && useful(top)
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
        if !self.has_slots(gfp) {
            return None;
        }
        let own = self.take_own(cache, |top| !sheaf::top_is_empty(top));
        if own.is_some() {
            return own;
        }
        self.barn_get(cache, gfp)
    }

    /// Takes a sheaf with room: main, spare, or an empty one while the barn has room for a full one.
    fn take_roomy(&self, cache: &KmemCache<P>, gfp: Gfp) -> Option<Sheaf> {
        if !self.has_slots(gfp) {
            return None;
        }
        let own = self.take_own(cache, |top| !sheaf::top_is_full(top));
        if own.is_some() {
            return own;
        }
        if self.glance(cache.id.spare()) != 0 && self.barn_is_full(cache) {
            self.count(cache, StatItem::BarnPutFail, 1);
            return None;
        }
        self.empty_sheaf(cache, gfp)
    }
}
