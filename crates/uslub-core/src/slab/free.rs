//! Free: gives objects back to their slabs, with one state update per slab and batch.
//!
//! The objects of one slab become a [detached freelist](crate::slab::detached) first. The scan runs
//! backwards through the array. It passes over objects of other slabs, at most two per list (the
//! tunable `look_ahead` ends the scan at the third). With `detached_freelist=0` each object is
//! pushed alone.
//!
//! Each object is always checked here: it must be a slot of a slab of this cache, and it must not
//! be free already. The second check reads the cache line that the link is about to be written to.
//! Only a free object holds a hardened link, so only an object that seems to hold one is looked up
//! in its slab's freelist.
//!
//! Callers: `sheaf` (flushes) and `cache` (direct frees).

use core::ptr::null_mut;

use crate::gfp::Gfp;
use crate::misuse::{Misuse, Reason};
use crate::percpu::CacheId;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::FREE_PREFETCH_DISTANCE;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::detached::{Detached, PendingLists};
use crate::slab::freelist::Links;
use crate::slab::node::SlabList;
use crate::slab::state::Slab;

impl<P: Platform> Base<P> {
    /// Frees all objects of an array to their slabs; does not keep the array's order.
    pub(crate) fn free_to_slabs(&self, cache: &SlabCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        let mut gone = SlabList::new();
        self.push_to_slabs(cache, objects, &mut gone, gfp);
        // Not in `push_to_slabs`: both need much stack.
        self.discard_list(cache, gone);
    }

    /// As [`free_to_slabs`](Self::free_to_slabs), but slabs that must go back to the page layer go
    /// to `gone`.
    #[inline(never)]
    pub(crate) fn push_to_slabs(
        &self,
        cache: &SlabCache<P>,
        objects: &mut [*mut u8],
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        if cache.is_debugged() {
            return (objects.iter()).for_each(|&object| self.debug_free(cache, object, gfp));
        }
        let arena = &self.zone.arena;
        let mut left = objects.len();
        let mut lists = 0;
        let mut waiting = PendingLists::new();
        while left > 0 {
            if left > FREE_PREFETCH_DISTANCE {
                self.prefetch_free(cache, objects[left - 1 - FREE_PREFETCH_DISTANCE]);
            }
            let slab = self.checked_slab(cache, objects[left - 1]);
            lists += 1;
            // Only a double free makes a slab with a waiting list look whole; it is detected below.
            if !waiting.has(arena, slab) {
                let whole = self.empty_whole_at_end(cache, slab, &objects[..left]);
                if whole > 0 {
                    left -= whole;
                    self.place_whole(cache, slab, gone, gfp);
                    continue;
                }
            }
            if !waiting.takes(arena, slab) || cache.tuning.detached_freelist == 0 {
                self.flush_pending(cache, &mut waiting, gone, gfp);
            }
            left -= self.free_last(cache, slab, &mut objects[..left], &mut waiting, gfp);
        }
        self.flush_pending(cache, &mut waiting, gone, gfp);
        self.count(cache, StatItem::FreeDetached, lists);
    }

    /// Frees the last object of an array and others of its slab; returns how many. If the push
    /// needs the list lock, the list waits in `waiting`.
    #[inline(never)]
    fn free_last(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        objects: &mut [*mut u8],
        waiting: &mut PendingLists,
        gfp: Gfp,
    ) -> usize {
        let detached = self.build_detached(cache, slab, objects, waiting);
        if !gfp.may_spin() && !cache.never_waits() {
            self.defer(cache, &detached);
        } else if !self.push_unlisted(cache, &detached) {
            waiting.add(&self.zone.arena, &detached);
        }
        detached.count
    }

    /// Keeps or drops a slab that was emptied as a whole; see
    /// [`place_on_node`](Self::place_on_node).
    #[inline(never)]
    fn place_whole(&self, cache: &SlabCache<P>, slab: &Slab, gone: &mut SlabList, gfp: Gfp) {
        let mut emptied = SlabList::new();
        emptied.push_back(&self.zone.arena, slab);
        let node = cache.node(usize::from(slab.node()));
        self.place_on_node(cache, node, emptied, gone, gfp);
    }

    /// Prefetches the cache lines that the free of an object will write: the slab's descriptor and
    /// the object's link.
    #[inline]
    fn prefetch_free(&self, cache: &SlabCache<P>, object: *mut u8) {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            return;
        };
        let slab: *const Slab = cache.slab_of(arena, page);
        self.platform.prefetch_line(slab.cast());
        self.platform
            .prefetch_line(object.wrapping_add(cache.links.offset as usize));
    }

    /// Links the last object with others of its slab, and moves them to the end of the array. The
    /// last object is already checked.
    #[inline(always)]
    fn build_detached<'a>(
        &self,
        cache: &SlabCache<P>,
        slab: &'a Slab,
        objects: &mut [*mut u8],
        waiting: &PendingLists,
    ) -> Detached<'a> {
        let mut done = objects.len() - 1;
        let head = objects[done];
        let mut list = Detached {
            slab,
            head: null_mut(),
            tail: head,
            count: 0,
        };
        // Constant for all objects of the slab.
        let (base, bytes) = (self.slab_base(slab) as usize, cache.geometry.bytes());
        let (used, links) = (used_slots(cache, slab), cache.links_of(slab));
        self.check_not_free(cache, links, base, head, &list, waiting);
        // SAFETY: the object is a slot of this cache, and the caller owns it.
        unsafe { links.set(head, null_mut()) };
        (list.head, list.count) = (head, 1);
        let mut misses = 0;
        if cache.tuning.detached_freelist == 0 {
            return list;
        }
        for at in (0..done).rev() {
            let object = objects[at];
            let offset = (object as usize).wrapping_sub(base);
            if offset >= bytes {
                misses += 1;
                if misses >= cache.tuning.look_ahead {
                    break;
                }
                continue;
            }
            if !is_used_slot(cache, used, offset) {
                // Reports the misuse and does not return.
                self.checked_slab(cache, object);
            }
            self.check_not_free(cache, links, base, object, &list, waiting);
            // SAFETY: as above.
            unsafe { links.set(object, list.head) };
            list.head = object;
            list.count += 1;
            done -= 1;
            objects.swap(at, done);
        }
        list
    }

    /// Defers objects whose push would have to wait.
    #[inline(never)]
    pub(crate) fn defer(&self, cache: &SlabCache<P>, detached: &Detached<'_>) {
        let mut object = detached.head;
        for _ in 0..detached.count {
            // SAFETY: the caller owns the list.
            let next = unsafe { cache.links_of(detached.slab).get(object) };
            cache.deferred.push(object, cache.links.offset);
            object = next;
        }
    }

    /// Frees the deferred objects.
    #[inline]
    pub(crate) fn drain_deferred(&self, cache: &SlabCache<P>) {
        if cache.deferred.is_empty() {
            return;
        }
        self.drain_all_deferred(cache);
    }

    #[inline(never)]
    fn drain_all_deferred(&self, cache: &SlabCache<P>) {
        let mut batch = [null_mut(); 4];
        let mut n = 0;
        cache.deferred.drain(cache.links.offset, |object| {
            batch[n] = object;
            n += 1;
            if n == batch.len() {
                self.free_to_slabs(cache, &mut batch, Gfp::KERNEL);
                n = 0;
            }
        });
        self.free_to_slabs(cache, &mut batch[..n], Gfp::KERNEL);
    }

    /// The cache whose slab an object lies in, if any.
    #[inline]
    pub(crate) fn cache_id_of(&self, object: *mut u8) -> Option<CacheId> {
        let arena = &self.zone.arena;
        let page = arena.page_of(object as usize)?;
        arena.cache_of(page)
    }

    /// The slab that an object is a slot of; ends the process if the slab is not of this cache.
    pub(crate) fn checked_slab(&self, cache: &SlabCache<P>, object: *mut u8) -> &Slab {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            self.misuse(cache, object, Reason::Foreign);
        };
        match arena.cache_of(page) {
            Some(id) if id == cache.id => {}
            Some(id) => self.belongs_to(cache, object, id),
            None => self.misuse(cache, object, Reason::FreePages),
        }
        let slab = cache.slab_of(arena, page);
        let offset = object as usize - self.slab_base(slab) as usize;
        if !is_used_slot(cache, used_slots(cache, slab), offset) {
            let why = if cache.is_slot(offset) {
                Reason::FreshSlot
            } else {
                Reason::Interior
            };
            self.misuse(cache, object, why);
        }
        slab
    }

    /// Ends the process: the object belongs to another cache.
    #[cold]
    #[inline(never)]
    fn belongs_to(&self, cache: &SlabCache<P>, object: *mut u8, id: CacheId) -> ! {
        let other = self.slabs_of(id).map_or("?", SlabCache::name);
        Misuse::OtherCache(cache.name(), object, other).fatal(&self.platform)
    }

    /// Ends the process if an object to free is free already: in its slab's freelist, in the list
    /// under construction, or in a waiting list.
    #[inline]
    fn check_not_free(
        &self,
        cache: &SlabCache<P>,
        links: Links,
        base: usize,
        object: *mut u8,
        list: &Detached<'_>,
        waiting: &PendingLists,
    ) {
        if links.random == 0 {
            return;
        }
        // SAFETY: the object is a slot of this cache.
        let next = unsafe { links.get(object) };
        let offset = (next as usize).wrapping_sub(base);
        if next.is_null() || offset < cache.geometry.bytes() {
            self.look_up_free(cache, object, list, waiting);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up_free(
        &self,
        cache: &SlabCache<P>,
        object: *mut u8,
        list: &Detached<'_>,
        waiting: &PendingLists,
    ) {
        let slab = list.slab;
        let look = |start| self.look_up_free_from(cache, slab, object, start);
        waiting.heads_of(&self.zone.arena, slab).for_each(look);
        look(list.head);
        if let Some(offset) = slab.state().head() {
            look(self.slab_base(slab).wrapping_add(offset));
        }
    }

    /// Ends the process if an object is in the freelist of its slab that begins with `start`.
    #[inline(never)]
    fn look_up_free_from(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        object: *mut u8,
        start: *mut u8,
    ) {
        // Not `Links::walk`, which would take 16 bytes more of the stack.
        let (base, links) = (self.slab_base(slab) as usize, cache.links_of(slab));
        let mut at = start;
        for _ in 0..cache.geometry.objects {
            if at == object {
                self.misuse(cache, object, Reason::Freed);
            }
            let offset = (at as usize).wrapping_sub(base);
            if at.is_null() || offset >= cache.geometry.bytes() || !cache.is_slot(offset) {
                break;
            }
            // SAFETY: a slot of the slab. Its bytes may be any, and are only read.
            at = unsafe { links.get(at) };
        }
    }

    /// Ends the process: the pointer is no object that can be freed.
    #[cold]
    #[inline(never)]
    pub(crate) fn misuse(&self, cache: &SlabCache<P>, object: *mut u8, why: Reason) -> ! {
        Misuse::Object(Some(cache.name()), "free of", object, why).fatal(&self.platform)
    }
}

/// Slots of a slab that were ever handed out; they come first. All slots if fresh ones are handed
/// out in random order.
#[inline]
fn used_slots<P: Platform>(cache: &SlabCache<P>, slab: &Slab) -> usize {
    if cache.is_random() {
        cache.geometry.objects as usize
    } else {
        usize::from(slab.position())
    }
}

/// Whether one of the first `used` slots begins at `offset`.
#[inline]
fn is_used_slot<P: Platform>(cache: &SlabCache<P>, used: usize, offset: usize) -> bool {
    let slot = cache.slot_at(offset);
    slot < used && slot * cache.size as usize == offset
}
