//! Marks: what a free itself sees of a wrong pointer or a double free.
//!
//! A free of one object checks two things before it pushes:
//!
//! | check | how | what fails it |
//! |---|---|---|
//! | a slot begins here | the cache's [shape](Shape) | interior and misaligned pointers |
//! | the object has no mark | one compare | a double free; seldom, data that equals a mark |
//!
//! A debugged cache has no shape: its objects are checked by `slab::debug`, and have no marks.
//!
//! The mark is [`MARK`]. A free writes it into the object, an allocation of one object overwrites
//! its first byte. It lies in the first word; a constructed or type-safe object keeps its bytes
//! while free, so there it lies where the link does, behind the object. Bulks neither write nor
//! erase marks, because they do not touch objects.
//!
//! A mark proves nothing: a program may have copied it out of a free object, and an object that
//! came from a bulk may still have one. So [`free_suspect`](Allocator::free_suspect) searches this
//! CPU's main and spare sheaf, the barns and the slab's freelist. Only an object that is found
//! there ends the process. Otherwise the object is freed. Sheaves of other CPUs are not searched.
//!
//! Callers: frees of `cache` and `kmalloc`, and the fast paths of the malloc library.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::misuse::{Misuse, Reason};
use crate::platform::Platform;
use crate::policy::{FRUITLESS_SEARCHES, MARK};
use crate::slab::shape::Shape;
use crate::sync::atomic;

impl<P: Platform> Allocator<P> {
    /// The shape of a cache's slabs, for a caller that checks slots itself.
    pub fn shape(&self, cache: &KmemCache<P>) -> Option<Shape> {
        Some(cache.shape).filter(|&shape| shape != Shape::NONE)
    }

    /// Whether an address inside a slab of the cache is the start of a slot. Slabs are aligned to
    /// their size.
    #[inline(always)]
    pub fn is_slot_of(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        cache.is_slot(object as usize & (cache.geometry.bytes() - 1))
    }

    /// Checks an object that is about to be pushed, and marks it. False if
    /// [`free_suspect`](Self::free_suspect) must look at it.
    ///
    /// # Safety
    ///
    /// The address lies in a slab of the cache, and the caller frees the object there.
    #[inline(always)]
    pub(crate) unsafe fn check_and_mark(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        if !cache.shape.begins(object as usize) {
            return false;
        }
        let mark = object.wrapping_add(cache.mark_at as usize).cast::<u64>();
        atomic::writes(mark, 8);
        // SAFETY: a slot of the cache, which the caller owns unless it is free already.
        unsafe {
            // A byte first, and volatile so that it stays: a load of all eight would wait for the
            // program's last store, if that was shorter.
            if mark.cast::<u8>().read_volatile() == MARK as u8 && mark.read() == MARK {
                return false;
            }
            mark.write(MARK);
        }
        true
    }

    /// Erases the mark of an object that was just allocated from a cache that is not debugged.
    ///
    /// # Safety
    ///
    /// The caller owns the object, which is of this cache.
    #[inline(always)]
    pub(crate) unsafe fn unmark(&self, cache: &KmemCache<P>, object: *mut u8) {
        let mark = object.wrapping_add(cache.mark_at as usize).cast::<u64>();
        atomic::writes(mark, 8);
        // SAFETY: a slot of the cache, which the caller owns.
        unsafe { mark.cast::<u8>().write(0) };
    }

    /// Frees an object that did not pass the checks of a free of one object, or ends the
    /// process: the pointer is inside an object, or the object is free already.
    #[cold]
    #[inline(never)]
    pub fn free_suspect(&self, cache: &KmemCache<P>, object: *mut u8, gfp: Gfp) {
        if cache.is_debugged() {
            return self.free_slow(cache, object, gfp);
        }
        if !self.is_slot_of(cache, object) {
            self.misuse(cache, object, Reason::Interior);
        }
        let mark = object.wrapping_add(cache.mark_at as usize).cast::<u64>();
        atomic::writes(mark, 8);
        // SAFETY: a slot of the cache, which the caller owns unless it is free already.
        let is_marked = unsafe { mark.read() } == MARK;
        if is_marked
            && (self.is_in_own_sheaves(cache, object, gfp) || self.is_elsewhere(cache, object, gfp))
        {
            self.misuse(cache, object, Reason::Freed);
        }
        // SAFETY: as above.
        unsafe { mark.write(MARK) };
        self.free_slow(cache, object, gfp);
    }

    /// Whether the object is in a barn or in its slab's freelist. After [`FRUITLESS_SEARCHES`]
    /// that found nothing the answer is no: the program leaves marks in its objects.
    fn is_elsewhere(&self, cache: &KmemCache<P>, object: *mut u8, gfp: Gfp) -> bool {
        // Relaxed: a hint.
        if !gfp.may_spin() || self.fruitless.load(Relaxed) >= FRUITLESS_SEARCHES {
            return false;
        }
        // Relaxed: a hint.
        self.fruitless.fetch_add(1, Relaxed);
        // Ends the process for a fresh slot: its slab has not handed it out, or started over.
        self.checked_slab(cache, object);
        self.is_in_a_barn(cache, object) || self.is_in_its_slab(cache, object)
    }

    /// Ends the process if `object`, the start of a slot, is marked and found where free objects
    /// are. For calls that need a live object; `call` names the call.
    #[inline]
    pub fn check_in_use(&self, object: *mut u8, call: &str) {
        // SAFETY: the caller found a slab there, which is readable.
        if unsafe { object.cast::<u64>().read() } == MARK {
            self.look_for_free(object, call);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_for_free(&self, object: *mut u8, call: &str) {
        let Some(cache) = self.cache_of(object) else {
            return;
        };
        if self.is_in_own_sheaves(cache, object, Gfp::KERNEL)
            || self.is_in_a_barn(cache, object)
            || self.is_in_its_slab(cache, object)
        {
            let why = Reason::UsedAfterFree;
            Misuse::Object(Some(cache.name()), call, object, why).fatal(&self.platform);
        }
    }

    /// Whether the freelist of its slab has the object. Other threads may change the list, so it
    /// may end early.
    fn is_in_its_slab(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            return false;
        };
        let slab = cache.slab_of(arena, page);
        let (base, links) = (self.slab_base(slab), cache.links_of(slab));
        if links.random == 0 {
            return false;
        }
        let head = slab.state().head().map(|offset| base.wrapping_add(offset));
        // SAFETY: slots of a slab are readable.
        let list = head.map(|head| unsafe { links.walk(base, head, |at| cache.is_slot(at)) });
        let offset = object as usize - base as usize;
        list.into_iter()
            .flatten()
            .take(cache.geometry.objects as usize)
            .any(|at| at == Some(offset))
    }

    /// Whether a full sheaf of the cache's barns has the object.
    #[inline(never)]
    fn is_in_a_barn(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        let mut found = false;
        for barn in cache.barns() {
            barn.for_each_full(|objects| found |= objects.contains(&object));
        }
        found
    }
}
