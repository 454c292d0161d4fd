//! Allocates and frees one object of a cache.
//!
//! Each call tries the main sheaf in one restartable sequence, and then a slow path of
//! [`replace`](crate::sheaf::replace). Bulks are in [`bulk`](crate::cache::bulk).
//!
//! Any thread may call. `gfp` says whether a call may wait or enter the kernel.

use core::ptr::{self, null_mut};

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::misuse::{Misuse, Reason};
use crate::percpu::CacheId;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::RECLAIM_TRIES;
use crate::slab::cache::SlabCache;
use crate::slab::take::Refill;

impl<P: Platform> Allocator<P> {
    /// Allocates an object of a cache; null without memory.
    ///
    /// A cache with a constructor cannot give zeroed memory: null, with a warning.
    #[inline]
    pub fn alloc(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        if gfp.contains(Gfp::ZERO) && !self.may_zero(cache) {
            return null_mut();
        }
        let mut object = self.alloc_fast(cache);
        if object.is_null() {
            object = self.alloc_slow(cache, gfp);
            if object.is_null() {
                return object;
            }
        }
        if gfp.contains(Gfp::ZERO) {
            self.zero_object(cache, object);
        }
        object
    }

    /// Pops an object from this CPU's main sheaf, not zeroed; null if [`alloc`](Self::alloc) would
    /// take a slow path. Never runs a constructor. May be called before the allocator is ready.
    #[inline(always)]
    pub fn alloc_fast(&self, cache: &KmemCache<P>) -> *mut u8 {
        // SAFETY: our table.
        let object = unsafe { self.platform.pop(&self.table, cache.id.main()) };
        if !object.is_null() {
            // SAFETY: just allocated.
            unsafe { self.unmark(cache, object) };
        }
        object
    }

    /// Slow path of an allocation; null without memory. The object has no mark: one of a debugged
    /// cache never gets one.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_slow(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        if cache.is_debugged() {
            return self.alloc_whole_debugged(cache, gfp);
        }
        if self.debug.guard.is_on() {
            let object = self.guarded_object(cache, gfp);
            if !object.is_null() {
                return object;
            }
        }
        let object = self.alloc_or_reclaim(cache, gfp);
        // In the hardened mode a free writes no mark, and the fill must stay. (Here the cache need
        // not be kept on the stack any longer.)
        if !object.is_null() && !self.is_hardened() {
            // SAFETY: just allocated.
            unsafe { self.unmark(cache, object) };
        }
        self.end_allocation(gfp);
        object
    }

    #[inline]
    fn alloc_or_reclaim(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        self.check_not_ended(cache);
        if gfp.may_spin() {
            self.drain_deferred(cache);
        }
        for attempt in 0.. {
            let object = self.alloc_once(cache, gfp);
            if !object.is_null()
                || (attempt >= RECLAIM_TRIES && !gfp.contains(Gfp::NOFAIL))
                || !self.reclaim_for(cache, gfp)
            {
                return object;
            }
        }
        null_mut()
    }

    /// Ends the process if the cache is destroyed.
    #[inline]
    pub(crate) fn check_not_ended(&self, cache: &KmemCache<P>) {
        if cache.is_destroyed() {
            self.allocation_after_end(cache);
        }
    }

    /// Ends the process: an allocation from a destroyed cache.
    #[cold]
    #[inline(never)]
    fn allocation_after_end(&self, cache: &KmemCache<P>) -> ! {
        self.platform.fatal(format_args!(
            "cache '{}': allocation after its end",
            cache.name()
        ))
    }

    /// As [`alloc`](Self::alloc), but from memory of node `nid` if it has any; from no other node
    /// with [`THISNODE`](Gfp::THISNODE).
    pub fn alloc_node(&self, cache: &KmemCache<P>, gfp: Gfp, nid: usize) -> *mut u8 {
        let has_memory = self.has_memory_on(nid);
        if !has_memory && gfp.contains(Gfp::THISNODE) {
            return null_mut();
        }
        if has_memory && self.sheaves_do_not_serve(gfp, nid) {
            return self.alloc_on(cache, gfp, nid);
        }
        self.alloc(cache, gfp)
    }

    /// Whether an object of a node that has memory must come from the node's slabs.
    #[inline]
    pub(crate) fn sheaves_do_not_serve(&self, gfp: Gfp, nid: usize) -> bool {
        // A sheaf may hold objects of another node, if it was refilled when this one had none.
        let is_exact = gfp.contains(Gfp::THISNODE) && self.nr_nodes() > 1;
        is_exact || nid != self.nid()
    }

    /// An object of a node that has memory, from its slabs.
    #[inline(never)]
    pub(crate) fn alloc_on(&self, cache: &KmemCache<P>, gfp: Gfp, nid: usize) -> *mut u8 {
        if gfp.contains(Gfp::ZERO) && !self.may_zero(cache) {
            return null_mut();
        }
        if nid != self.nid() {
            self.count(cache, StatItem::AllocNodeMismatch, 1);
        }
        if cache.is_debugged() {
            return self.alloc_on_debugged(cache, gfp, nid);
        }
        let mut object = [null_mut()];
        let mut refill = Refill::new(cache, &mut object, 1, gfp, None);
        self.refill_on(&mut refill, nid);
        let n = refill.filled;
        self.count(cache, StatItem::AllocSlowpath, n);
        if gfp.contains(Gfp::ZERO) && n == 1 {
            self.zero_object(cache, object[0]);
        }
        self.end_allocation(gfp);
        object[0]
    }

    /// Frees an object of a cache, in the context `free_gfp` of the cache; null is ignored.
    ///
    /// An object of another cache is not freed: it leaks, and a warning names both caches. Any
    /// other pointer ends the process with a message.
    ///
    /// # Safety
    ///
    /// Nobody uses the object any longer.
    #[inline]
    pub unsafe fn free(&self, cache: &KmemCache<P>, object: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.free_with(cache, object, cache.free_gfp) };
    }

    /// As [`free`](Self::free), in the context `gfp`.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free).
    #[inline]
    pub unsafe fn free_with(&self, cache: &KmemCache<P>, object: *mut u8, gfp: Gfp) {
        // SAFETY: passed on.
        if !unsafe { self.free_fast(cache, object, gfp) } {
            self.free_checked(cache, object, gfp);
        }
    }

    /// Pushes an object of the cache onto this CPU's main sheaf. Returns false if the caller must
    /// go on with [`free_checked`](Self::free_checked). Ends the process if the pointer is inside
    /// an object, or if the object is free and was [marked](crate::cache::mark).
    ///
    /// # Safety
    ///
    /// Nobody uses the object any longer.
    #[inline(always)]
    pub unsafe fn free_fast(&self, cache: &KmemCache<P>, object: *mut u8, gfp: Gfp) -> bool {
        // SAFETY: a field of ours. The volatile read hides that the page map has the same value:
        // the push would otherwise wait for the page map.
        let id = unsafe { ptr::from_ref(&cache.id).read_volatile() };
        if !self.zone.arena.is_cacheable_in(object as usize, cache.id) {
            return false;
        }
        // SAFETY: in a slab of the cache; the caller frees the object.
        if !unsafe { self.check_and_mark(cache, object) } {
            self.free_suspect(cache, object, gfp);
            return true;
        }
        // SAFETY: our table; the caller frees the object.
        unsafe { self.platform.push(&self.table, id.main(), object) }
    }

    /// As [`free_fast`](Self::free_fast), without its checks: false, with nothing done, if the
    /// object could not be pushed.
    ///
    /// # Safety
    ///
    /// As for [`free_fast`](Self::free_fast), and the object came from this cache.
    #[inline(always)]
    pub unsafe fn free_own_fast(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        // SAFETY: our table; the caller frees the object.
        unsafe { self.platform.push(&self.table, cache.own, object) }
    }

    /// The rest of a free after [`free_fast`](Self::free_fast): null is ignored, an object of
    /// another cache leaks with a warning, any other wrong pointer ends the process.
    #[cold]
    pub fn free_checked(&self, cache: &KmemCache<P>, object: *mut u8, gfp: Gfp) {
        if self.is_guarded(object) {
            self.guarded_free(object, Some(cache.id), gfp);
        } else if self.is_object_of(cache, object) {
            self.free_slow(cache, object, gfp);
        }
    }

    /// The cache whose slab an object lies in, if any.
    #[inline]
    pub(crate) fn cache_of(&self, object: *mut u8) -> Option<&KmemCache<P>> {
        self.cache(self.cache_id_of(object)?)
    }

    /// Whether an object lies in a slab of the cache. If not, null is ignored, a guarded object is
    /// freed, an object of another cache leaks with a warning, and any other pointer ends the
    /// process.
    #[inline]
    pub(crate) fn is_object_of(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        let id = self.cache_id_of(object);
        id == Some(cache.id) || self.is_not_object_of(cache, object, id)
    }

    #[cold]
    fn is_not_object_of(&self, cache: &KmemCache<P>, object: *mut u8, id: Option<CacheId>) -> bool {
        if object.is_null() {
            return false;
        }
        if self.is_guarded(object) {
            // One of a bulk.
            self.guarded_free(object, Some(cache.id), cache.free_gfp);
            return false;
        }
        let Some(id) = id else {
            let why = match self.zone.arena.page_of(object as usize) {
                Some(page) if self.zone.is_free(page) => Reason::FreePages,
                Some(_) => Reason::Large,
                None => Reason::Foreign,
            };
            self.misuse(cache, object, why);
        };
        let other = self.slabs_of(id).map_or("?", SlabCache::name);
        Misuse::OtherCacheLeaks(cache.name(), object, other).warn(&self.platform);
        false
    }

    /// Whether objects of a cache can be zeroed; warns if not.
    #[inline]
    pub(crate) fn may_zero(&self, cache: &KmemCache<P>) -> bool {
        if cache.ctor.is_some() {
            self.warn_of_constructor(cache);
        }
        cache.ctor.is_none()
    }

    #[cold]
    #[inline(never)]
    fn warn_of_constructor(&self, cache: &KmemCache<P>) {
        Misuse::ZeroedObjects(cache.name()).warn(&self.platform);
    }

    /// Zeroes an object; not null.
    pub(crate) fn zero_object(&self, cache: &KmemCache<P>, object: *mut u8) {
        // SAFETY: just allocated, and `object_size` bytes long.
        unsafe { object.write_bytes(0, cache.object_size()) };
    }
}
