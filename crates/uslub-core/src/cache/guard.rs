//! Guarded objects, as the calls of `cache` and `kmalloc` see them.
//!
//! | call | of a guarded object |
//! |---|---|
//! | allocation | at a sheaf's miss, if one is due, of at most a page |
//! | free | every path finds no page of the arena, and then asks [`is_guarded`] |
//! | size | exactly what was asked for |
//! | resize | moves, unless the size stays |
//!
//! Only slow paths ask. The page map knows nothing of the pool, so a fast path takes none of its
//! objects. Any thread may call.
//!
//! [`is_guarded`]: Allocator::is_guarded

use core::ptr::null_mut;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::debug::DebugFlags;
use crate::gfp::Gfp;
use crate::misuse::Misuse;
use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::slab::debug::guard::Place;
use crate::slab::debug::guard_report::Wrong;
use crate::slab::debug::guard_slot::{FREED, Request, Slot};

impl<P: Platform> Allocator<P> {
    /// Whether an address lies in the pool of guarded objects.
    #[inline]
    pub(crate) fn is_guarded(&self, object: *mut u8) -> bool {
        self.debug.guard.owns(object as usize)
    }

    /// A guarded object of a cache, if one is due; otherwise null. `bytes` bytes are the caller's.
    pub(crate) fn guarded_take(&self, cache: &KmemCache<P>, bytes: usize, align: usize) -> *mut u8 {
        let request = Request {
            bytes,
            align,
            cache: cache.id.raw(),
        };
        self.debug.guard.take(&self.platform, request)
    }

    /// A guarded object of a cache whose objects may be guarded, if one is due; otherwise null. A
    /// constructed object, or one that readers may still look at, never is.
    #[cold]
    #[inline(never)]
    pub(crate) fn guarded_object(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        let may = cache.debug.get().contains(DebugFlags::MAY_GUARD) && gfp.may_map();
        if !may || cache.ctor.is_some() || cache.keeps_freed() {
            return null_mut();
        }
        self.check_not_ended(cache);
        let align = (cache.align as usize).max(size_of::<u64>());
        self.guarded_take(cache, cache.object_size(), align)
    }

    /// The slot of an object in use that begins at an address of the pool; otherwise what is wrong
    /// with the address, and the slot that it lies in.
    pub(crate) fn guarded_at<'a>(
        &self,
        object: *mut u8,
        call: &'a str,
    ) -> Result<&Slot, (Wrong<'a>, Option<usize>)> {
        let Place::Slot(index) = self.debug.guard.place(object as usize) else {
            return Err((Wrong::Pointer(call), None));
        };
        match self.debug.guard.slot(index) {
            Some(slot) if slot.object() != object as usize => {
                let known = (slot.object() != 0).then_some(index);
                Err((Wrong::Pointer(call), known))
            }
            Some(slot) if slot.state() == FREED => Err((Wrong::Freed(call), Some(index))),
            Some(slot) => Ok(slot),
            None => Err((Wrong::Pointer(call), None)),
        }
    }

    /// Frees an object of the pool; of the cache `of`, if the caller names one. Misuse is reported;
    /// then nothing is freed. An overwritten canary is reported too, and the object is freed.
    #[cold]
    #[inline(never)]
    pub(crate) fn guarded_free(&self, object: *mut u8, of: Option<CacheId>, gfp: Gfp) {
        let (guard, address) = (&self.debug.guard, object as usize);
        match self.guarded_at(object, "free of") {
            Err((wrong, index)) => return self.report_guarded_here(wrong, address, index),
            Ok(slot) => {
                let id = CacheId::from_raw(slot.cache());
                if of.is_some() && id != of {
                    return self.guarded_of_another(object, of, id);
                }
            }
        }
        let Some((index, overwritten)) = guard.begin_free(address) else {
            // Another thread frees it at the same time.
            return self.report_guarded_here(Wrong::Freed("free of"), address, None);
        };
        if let Some(bytes) = overwritten {
            self.report_guarded_here(Wrong::Overwritten(bytes), address, Some(index));
        }
        guard.end_free(&self.platform, index, gfp.may_map());
    }

    /// Warns: a free in the name of a cache, of an object of another one.
    #[cold]
    fn guarded_of_another(&self, object: *mut u8, of: Option<CacheId>, id: Option<CacheId>) {
        let name = |id: Option<CacheId>| {
            let cache = id.and_then(|id| self.cache(id));
            cache.map_or("?", |cache| cache.name())
        };
        Misuse::OtherCacheLeaks(name(of), object, name(id)).warn(&self.platform);
    }

    /// Bytes of an object of the pool, as they were asked for. Misuse is reported.
    #[cold]
    #[inline(never)]
    pub(crate) fn guarded_size(&self, object: *mut u8, call: &str) -> usize {
        match self.guarded_at(object, call) {
            Ok(slot) => slot.size(),
            Err((wrong, index)) => {
                self.report_guarded_here(wrong, object as usize, index);
                // A caller that goes on copies what lies behind the pointer, and may.
                self.debug.guard.open(&self.platform, object as usize);
                let slot = index.and_then(|index| self.debug.guard.slot(index));
                let end = slot.map_or(0, |slot| slot.object() + slot.size());
                end.saturating_sub(object as usize)
            }
        }
    }

    /// Resizes an object of the pool: in place if the size stays. `None` for any other object; the
    /// size of the object as the error if it must be copied.
    #[cold]
    #[inline(never)]
    pub(crate) fn resize_guarded(
        &self,
        object: *mut u8,
        bytes: usize,
    ) -> Option<Result<*mut u8, usize>> {
        if !self.is_guarded(object) {
            return None;
        }
        let size = self.guarded_size(object, "realloc of");
        Some(if size == bytes { Ok(object) } else { Err(size) })
    }
}
