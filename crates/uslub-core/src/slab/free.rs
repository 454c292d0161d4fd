//! Giving objects back to their slabs, one update of the state a slab and batch.
//!
//! Objects are linked into [detached freelists](crate::slab::detached) first, one a slab. The array
//! is scanned backwards; objects of other slabs are passed over, at most two a list (the tunable
//! `look_ahead` ends the scan at the third). `detached_freelist=0` pushes them one by one instead.
//!
//! Each object is checked here, always: it must be a slot of a slab of this cache, and it must not
//! be free already. The second check costs a read of the line that the link is about to be written
//! to: only a free object holds a hardened link, so only one that seems to hold one is looked up in
//! its slab's list.

use core::ptr::null_mut;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::CacheId;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::slab::detached::{Detached, Waiting};
use crate::slab::freelist::Links;
use crate::slab::node::SlabList;
use crate::slab::state::Slab;

/// Objects ahead of the one that is being freed whose lines are asked for.
const AHEAD: usize = 4;

impl<P: Platform> Allocator<P> {
    /// Frees all objects of an array to their slabs; the array's order is lost.
    pub(crate) fn free_to_slabs(&self, cache: &KmemCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        let mut gone = SlabList::new();
        self.push_to_slabs(cache, objects, &mut gone, gfp);
        // Behind all pushes, as they and this take stack.
        self.discard_list(cache, gone);
    }

    /// As [`free_to_slabs`](Self::free_to_slabs); slabs that are to go back to the page layer go to
    /// `gone`.
    #[inline(never)]
    pub(crate) fn push_to_slabs(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        let arena = &self.zone.arena;
        let mut left = objects.len();
        let mut lists = 0;
        let mut waiting = Waiting::new();
        while left > 0 {
            if left > AHEAD {
                self.fetch_ahead(cache, objects[left - 1 - AHEAD]);
            }
            let slab = self.checked_slab(cache, objects[left - 1]);
            lists += 1;
            // A slab of which objects wait is whole only by a double free, which is seen below.
            if !waiting.has(arena, slab) {
                let whole = self.empty_whole_at_end(cache, slab, &objects[..left]);
                if whole > 0 {
                    left -= whole;
                    self.place_whole(cache, slab, gone, gfp);
                    continue;
                }
            }
            if !waiting.takes(arena, slab) || cache.tuning.detached_freelist == 0 {
                self.push_waiting(cache, &mut waiting, gone, gfp);
            }
            left -= self.free_last(cache, slab, &mut objects[..left], &mut waiting, gfp);
        }
        self.push_waiting(cache, &mut waiting, gone, gfp);
        self.count(cache, StatItem::FreeDetached, lists);
    }

    /// Frees the last object of an array and others of its slab, now or, where that takes the list
    /// lock, with the lists that wait for it; returns how many.
    #[inline(never)]
    fn free_last(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        objects: &mut [*mut u8],
        waiting: &mut Waiting,
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

    /// Places a slab that was emptied as a whole; see [`place_on_node`](Self::place_on_node).
    #[inline(never)]
    fn place_whole(&self, cache: &KmemCache<P>, slab: &Slab, gone: &mut SlabList, gfp: Gfp) {
        let mut emptied = SlabList::new();
        emptied.push_back(&self.zone.arena, slab);
        let node = cache.node(usize::from(slab.node()));
        self.place_on_node(cache, node, emptied, gone, gfp);
    }

    /// Asks for the lines that the free of an object will write: its slab's descriptor and its
    /// link.
    #[inline]
    fn fetch_ahead(&self, cache: &KmemCache<P>, object: *mut u8) {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            return;
        };
        let slab: *const Slab = cache.slab_of(arena, page);
        self.platform.fetch_line(slab.cast());
        self.platform
            .fetch_line(object.wrapping_add(cache.links.offset as usize));
    }

    /// Links the last object and those of the same slab, and moves them to the end of the array.
    /// The last has been looked at.
    #[inline(always)]
    fn build_detached<'a>(
        &self,
        cache: &KmemCache<P>,
        slab: &'a Slab,
        objects: &mut [*mut u8],
        waiting: &Waiting,
    ) -> Detached<'a> {
        let mut done = objects.len() - 1;
        let head = objects[done];
        let mut list = Detached {
            slab,
            head: null_mut(),
            tail: head,
            count: 0,
        };
        // The same for all of them.
        let (base, bytes) = (self.slab_base(slab) as usize, cache.oo.bytes());
        let (used, links) = (used_slots(cache, slab), cache.links_of(slab));
        self.check_not_free(cache, links, base, head, &list, waiting);
        // SAFETY: the object is a slot of this cache and the caller's.
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
                // Says what is wrong, and does not come back.
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

    /// Sets objects aside that could not be freed without waiting.
    #[inline(never)]
    pub(crate) fn defer(&self, cache: &KmemCache<P>, detached: &Detached<'_>) {
        let mut object = detached.head;
        for _ in 0..detached.count {
            // SAFETY: the chain is the caller's.
            let next = unsafe { cache.links_of(detached.slab).get(object) };
            cache.deferred.push(object, cache.links.offset);
            object = next;
        }
    }

    /// Frees what was set aside.
    #[inline]
    pub(crate) fn free_deferred(&self, cache: &KmemCache<P>) {
        if cache.deferred.is_empty() {
            return;
        }
        self.free_all_deferred(cache);
    }

    #[inline(never)]
    fn free_all_deferred(&self, cache: &KmemCache<P>) {
        let mut batch = [null_mut(); 4];
        let mut n = 0;
        cache.deferred.take_all(cache.links.offset, |object| {
            batch[n] = object;
            n += 1;
            if n == batch.len() {
                self.free_to_slabs(cache, &mut batch, Gfp::KERNEL);
                n = 0;
            }
        });
        self.free_to_slabs(cache, &mut batch[..n], Gfp::KERNEL);
    }

    /// The cache in one of whose slabs an object lies, if any.
    #[inline]
    pub(crate) fn cache_id_of(&self, object: *mut u8) -> Option<CacheId> {
        let arena = &self.zone.arena;
        let page = arena.page_of(object as usize)?;
        arena.cache_of(page)
    }

    /// The slab that an object is a slot of; ends the process when it is none of this cache.
    pub(crate) fn checked_slab(&self, cache: &KmemCache<P>, object: *mut u8) -> &Slab {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            self.misuse(cache, object, "not allocated here (a foreign pointer)");
        };
        match arena.cache_of(page) {
            Some(id) if id == cache.id => {}
            Some(id) => self.belongs_to(cache, object, id),
            None => self.misuse(
                cache,
                object,
                "double free or never allocated: its pages are free",
            ),
        }
        let slab = cache.slab_of(arena, page);
        let offset = object as usize - self.slab_base(slab) as usize;
        if !is_used_slot(cache, used_slots(cache, slab), offset) {
            let why = if cache.is_slot(offset) {
                "double free or never allocated: its slot is fresh"
            } else {
                "not the start of an object (an interior pointer)"
            };
            self.misuse(cache, object, why);
        }
        slab
    }

    /// Ends the process: an object of another cache is being freed.
    #[cold]
    #[inline(never)]
    fn belongs_to(&self, cache: &KmemCache<P>, object: *mut u8, id: CacheId) -> ! {
        let other = self.cache(id).map_or("?", KmemCache::name);
        self.platform.fatal(format_args!(
            "cache '{}': {object:p} belongs to cache '{other}'",
            cache.name()
        ))
    }

    /// Ends the process when an object that is being freed is free already: in its slab's
    /// list, in the one that is being built, or in one that waits.
    #[inline]
    fn check_not_free(
        &self,
        cache: &KmemCache<P>,
        links: Links,
        base: usize,
        object: *mut u8,
        list: &Detached<'_>,
        waiting: &Waiting,
    ) {
        if links.random == 0 {
            return;
        }
        // SAFETY: the object is a slot of this cache.
        let next = unsafe { links.get(object) };
        let offset = (next as usize).wrapping_sub(base);
        if next.is_null() || offset < cache.oo.bytes() {
            self.look_up_free(cache, object, list, waiting);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up_free(
        &self,
        cache: &KmemCache<P>,
        object: *mut u8,
        list: &Detached<'_>,
        waiting: &Waiting,
    ) {
        let slab = list.slab;
        let look = |start| self.look_up_free_from(cache, slab, object, start);
        waiting.heads_of(&self.zone.arena, slab).for_each(look);
        look(list.head);
        if let Some(offset) = slab.state().head() {
            look(self.slab_base(slab).wrapping_add(offset));
        }
    }

    /// Ends the process when an object lies in the freelist of its slab that begins with `start`.
    #[inline(never)]
    fn look_up_free_from(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        object: *mut u8,
        start: *mut u8,
    ) {
        let (base, links) = (self.slab_base(slab) as usize, cache.links_of(slab));
        let mut at = start;
        for _ in 0..cache.oo.objects {
            if at == object {
                self.misuse(cache, object, "double free: the object is free already");
            }
            let offset = (at as usize).wrapping_sub(base);
            if at.is_null() || offset >= cache.oo.bytes() || !cache.is_slot(offset) {
                break;
            }
            // SAFETY: a slot of the slab; its bytes may be anybody's, and are only looked at.
            at = unsafe { links.get(at) };
        }
    }

    /// Ends the process: a pointer was given that is no object to free.
    #[cold]
    #[inline(never)]
    pub(crate) fn misuse(&self, cache: &KmemCache<P>, object: *mut u8, why: &str) -> ! {
        self.platform.fatal(format_args!(
            "cache '{}': free of {object:p}: {why}",
            cache.name()
        ))
    }
}

/// Slots of a slab that were ever handed out, and lie first; all of them where fresh ones are taken
/// in random order.
#[inline]
fn used_slots<P: Platform>(cache: &KmemCache<P>, slab: &Slab) -> usize {
    if cache.is_random() {
        cache.oo.objects as usize
    } else {
        usize::from(slab.position())
    }
}

/// Whether one of the first `used` slots of a slab begins at `offset`.
#[inline]
fn is_used_slot<P: Platform>(cache: &KmemCache<P>, used: usize, offset: usize) -> bool {
    let slot = cache.slot_at(offset);
    slot < used && slot * cache.size as usize == offset
}
