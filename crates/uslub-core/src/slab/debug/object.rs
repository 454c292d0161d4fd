//! Allocates and frees an object of a debugged cache, under the list lock.
//!
//! | call | checks (F) | a failure |
//! |---|---|---|
//! | allocation | slab, freelist's head, the free object | the slab is frozen; another serves |
//! | free | slab, pointer, not free already, the object in use | the object is not freed |
//!
//! Without F, a pointer to no slot and a second free end the process, as for other caches. With
//! `slab_debug_fatal=1` a report ends it too.

use core::ptr::null_mut;

use crate::debug::{DebugFlags, POISON_END, POISON_FREE, POISON_INUSE, RED_ACTIVE};
use crate::gfp::Gfp;
use crate::misuse::Reason;
use crate::percpu::stats::StatItem;
use crate::platform::{Block, Platform, Watch};
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::debug::check::Use;
use crate::slab::debug::freelist::Walk;
use crate::slab::debug::track::{Track, Which};
use crate::slab::node::{Node, NodeLists, SlabList};
use crate::slab::state::{Slab, State};

impl<P: Platform> Base<P> {
    /// Allocates an object for `bytes` bytes of a debugged cache, from node `nid` if it has one;
    /// null without memory. The object's bytes are as the last free left them.
    #[cold]
    #[inline(never)]
    pub(crate) fn debug_alloc(
        &self,
        cache: &SlabCache<P>,
        bytes: usize,
        gfp: Gfp,
        nid: usize,
    ) -> *mut u8 {
        let before = cache.reports();
        self.watch(cache, Watch::Enter);
        let who = self.who(cache);
        let mut object = self.take_listed(cache, nid, gfp);
        if object.is_null() {
            object = self.take_new(cache, nid, gfp);
        }
        if !object.is_null() {
            self.hand_out(cache, object, bytes, who);
            let event = Watch::Alloc {
                object: Block {
                    start: object,
                    bytes,
                },
                slot: cache.slot_of(object),
                is_constructed: cache.ctor.is_some(),
            };
            self.watch(cache, event);
            self.count(cache, StatItem::AllocSlowpath, 1);
        }
        self.watch(cache, Watch::Leave);
        self.end_if_fatal(cache, before);
        object
    }

    /// Takes an object of a node's partial slabs; null if there is none, or the lock is taken and
    /// `gfp` forbids to wait.
    fn take_listed(&self, cache: &SlabCache<P>, nid: usize, gfp: Gfp) -> *mut u8 {
        let (arena, node) = (&self.zone.arena, cache.node(nid));
        let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
            return null_mut();
        };
        node.drain_pending(arena, &mut lists, false);
        let mut object: *mut u8 = null_mut();
        while object.is_null()
            && let Some(slab) = lists.partial.first(arena)
        {
            object = self.take_object(cache, node, &mut lists, slab);
        }
        node.update_counts(&lists);
        object
    }

    /// Takes an object of a new slab; null without memory.
    fn take_new(&self, cache: &SlabCache<P>, nid: usize, gfp: Gfp) -> *mut u8 {
        let Some(slab) = self.new_slab(cache, nid, gfp) else {
            return null_mut();
        };
        let (arena, node) = (&self.zone.arena, cache.node(usize::from(slab.node())));
        if !self.format_slab(cache, slab) {
            self.free_slab_now(cache, node, slab);
            return null_mut();
        }
        let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
            slab.set_partial(true);
            node.push_pending(arena, slab);
            return null_mut();
        };
        slab.set_partial(true);
        lists.partial.push_front(arena, slab);
        let object = self.take_object(cache, node, &mut lists, slab);
        node.update_counts(&lists);
        object
    }

    /// Fills a new slab, constructs its objects and links them. False if the constructor failed.
    #[inline(never)]
    fn format_slab(&self, cache: &SlabCache<P>, slab: &Slab) -> bool {
        let (base, flags, layout) = (self.slab_base(slab), cache.debug.get(), &cache.layout);
        self.watch(cache, Watch::Open(cache.slab_at(base)));
        if flags.contains(DebugFlags::POISON) {
            // SAFETY: a slab of ours.
            unsafe { base.write_bytes(POISON_INUSE, cache.geometry.bytes()) };
        }
        let (links, objects) = (cache.links_of(slab), cache.geometry.objects as usize);
        let mut next = null_mut();
        for index in (0..objects).rev() {
            let object = cache.debug_object(base, index);
            if let Some(ctor) = cache.ctor {
                // SAFETY: the object is ours, and not constructed yet.
                if !unsafe { (ctor.call)(ctor.data, object) } {
                    return false;
                }
            }
            self.fill(cache, object, Use::Free);
            if layout.tracks != 0 {
                cache.set_track(object, Which::Alloc, Track::default());
                cache.set_track(object, Which::Free, Track::default());
            }
            cache.set_asked_for(object, layout.object as usize);
            // SAFETY: a slot of a slab of ours.
            unsafe { links.set(object, next) };
            next = object;
        }
        slab.set_position(objects as u16);
        slab.set_state(State::without_list(0).with(Some(next as usize - base as usize), 0));
        self.watch(cache, Watch::Close(cache.slab_at(base)));
        true
    }

    /// Takes the first object of a partial slab; null if a check failed, and then the slab is
    /// frozen and on no list.
    fn take_object(
        &self,
        cache: &SlabCache<P>,
        node: &Node<P>,
        lists: &mut NodeLists,
        slab: &Slab,
    ) -> *mut u8 {
        let arena = &self.zone.arena;
        let (base, object) = (self.slab_base(slab), self.debug_head(slab));
        let checks = cache.debug.get().contains(DebugFlags::CONSISTENCY_CHECKS);
        if checks && !self.may_take(cache, slab, object) {
            self.report_fix(cache, format_args!("Marking all objects used"));
            lists.partial.remove(arena, slab);
            slab.set_partial(false);
            slab.set_state(State::without_list(cache.geometry.objects).freeze());
            node.update_counts(lists);
            return null_mut();
        }
        if object.is_null() || !cache.is_debug_slot(base, object) {
            self.corrupt(cache, base, Reason::BadFreelist);
        }
        // SAFETY: a free slot of the slab, under the list lock.
        let next = unsafe { cache.links_of(slab).get(object) };
        if !next.is_null() && !cache.is_debug_slot(base, next) {
            self.corrupt(cache, object, Reason::Overwritten);
        }
        self.watch(cache, Watch::Open(cache.slot_of(object)));
        let state = slab.state();
        let head = (!next.is_null()).then(|| next as usize - base as usize);
        slab.set_state(state.with(head, state.inuse() + 1));
        if head.is_none() {
            lists.partial.remove(arena, slab);
            slab.set_partial(false);
            lists.full.push_back(arena, slab);
        }
        self.fill(cache, object, Use::InUse);
        if cache.debug.get().contains(DebugFlags::TRACE) {
            self.trace(cache, slab, object, "alloc");
        }
        object
    }

    /// The checks of an allocation.
    fn may_take(&self, cache: &SlabCache<P>, slab: &Slab, object: *mut u8) -> bool {
        if !self.check_slab(cache, slab) {
            return false;
        }
        if !cache.is_debug_slot(self.slab_base(slab), object) {
            self.report_object(cache, object, "Freelist Pointer check fails");
            return false;
        }
        self.check_object(cache, slab, object, Use::Free)
    }

    /// Marks a new object for `bytes` bytes: its track, and the red zone behind these bytes. The
    /// caller owns it, so no lock is necessary.
    fn hand_out(&self, cache: &SlabCache<P>, object: *mut u8, bytes: usize, who: Track) {
        let size = cache.layout.object as usize;
        cache.set_track(object, Which::Alloc, who);
        cache.set_asked_for(object, bytes);
        let flags = cache.debug.get();
        let keeps = cache.ctor.is_some();
        if flags.contains(DebugFlags::INIT_ON_ALLOC) && !keeps {
            // SAFETY: the caller's, and `size` bytes long.
            unsafe { object.write_bytes(0, size) };
        }
        if flags.contains(DebugFlags::INIT_ON_FREE)
            && !keeps
            && cache.layout.link < cache.layout.inuse
        {
            // SAFETY: as above; the link of the freelist lies in it.
            unsafe {
                object
                    .add(cache.layout.link as usize)
                    .write_bytes(0, size_of::<usize>())
            };
        }
        if cache.layout.asked != 0 && flags.contains(DebugFlags::RED_ZONE) && bytes < size {
            // SAFETY: as above.
            unsafe { object.add(bytes).write_bytes(RED_ACTIVE, size - bytes) };
        }
    }

    /// Fills the red zones, and the bytes of a free object.
    fn fill(&self, cache: &SlabCache<P>, object: *mut u8, how: Use) {
        let (layout, flags) = (&cache.layout, cache.debug.get());
        let (size, left) = (layout.object as usize, layout.left as usize);
        // SAFETY: within a slot that the caller owns, or under the list lock.
        unsafe {
            if flags.contains(DebugFlags::RED_ZONE) {
                object.sub(left).write_bytes(how.red(), left);
                object
                    .add(size)
                    .write_bytes(how.red(), layout.inuse as usize - size);
            }
            if layout.poisons && how == Use::Free {
                object.write_bytes(POISON_FREE, size - 1);
                object.add(size - 1).write(POISON_END);
            }
        }
    }

    /// Frees an object of a debugged cache. Its address lies in a slab of the cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn debug_free(&self, cache: &SlabCache<P>, object: *mut u8, gfp: Gfp) {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            self.misuse(cache, object, Reason::Foreign);
        };
        let slab = cache.slab_of(arena, page);
        let node = cache.node(usize::from(slab.node()));
        let before = cache.reports();
        // Before the allocator enters: the checker reports a second free.
        let left = cache.layout.left as usize;
        self.watch(cache, Watch::Free { object, left });
        self.watch(cache, Watch::Enter);
        let who = self.who(cache);
        let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
            cache.deferred.push(object, cache.links.offset);
            return self.watch(cache, Watch::Leave);
        };
        let mut gone = SlabList::new();
        if self.may_free(cache, slab, object) {
            self.watch(cache, Watch::Open(cache.slot_of(object)));
            self.put_object(cache, &mut lists, slab, (object, who), &mut gone);
            self.watch(cache, Watch::Close(cache.slot_of(object)));
            self.count(cache, StatItem::FreeSlowpath, 1);
        }
        self.watch(cache, Watch::Leave);
        node.update_counts(&lists);
        drop(lists);
        if !gone.is_empty() && !gfp.may_spin() {
            // It stays empty until a call that may wait.
            for slab in gone.drain(arena) {
                slab.set_partial(true);
                node.push_pending(arena, slab);
            }
        }
        self.discard_list(cache, gone);
        self.end_if_fatal(cache, before);
    }

    /// The checks of a free. Without F, misuse ends the process, as for other caches.
    fn may_free(&self, cache: &SlabCache<P>, slab: &Slab, object: *mut u8) -> bool {
        let is_slot = cache.is_debug_slot(self.slab_base(slab), object);
        if !cache.debug.get().contains(DebugFlags::CONSISTENCY_CHECKS) {
            if !is_slot {
                self.misuse(cache, object, Reason::Interior);
            }
            if self.is_on_freelist(cache, slab, object) {
                self.misuse(cache, object, Reason::Freed);
            }
            return true;
        }
        let good = self.check_slab(cache, slab) && self.may_free_object(cache, slab, object);
        if !good {
            self.report_fix(cache, format_args!("Object at {object:p} not freed"));
        }
        good
    }

    /// The kernel looks at the count first. The walk says more: it names the object's tracks.
    fn may_free_object(&self, cache: &SlabCache<P>, slab: &Slab, object: *mut u8) -> bool {
        if !cache.is_debug_slot(self.slab_base(slab), object) {
            self.report_slab(
                cache,
                slab,
                format_args!("Invalid object pointer {object:p}"),
            );
            return false;
        }
        match self.walk_freelist(cache, slab, object) {
            Walk::Found => self.report_object(cache, object, "Object already free"),
            Walk::Cleared => {}
            Walk::NotFound if slab.state().inuse() == 0 => {
                let text = format_args!("Slab has 0 allocated objects but 1 are to be freed");
                self.report_slab(cache, slab, text);
            }
            Walk::NotFound => return self.check_object(cache, slab, object, Use::InUse),
        }
        false
    }

    /// Whether an object is on its slab's freelist; only reads.
    pub(crate) fn is_on_freelist(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        object: *mut u8,
    ) -> bool {
        let (base, links) = (self.slab_base(slab), cache.links_of(slab));
        let mut at = self.debug_head(slab);
        for _ in 0..cache.geometry.objects {
            if at == object || !cache.is_debug_slot(base, at) {
                break;
            }
            // SAFETY: a slot of the slab.
            at = unsafe { links.get(at) };
        }
        at == object
    }

    /// Links a checked object to its slab. A slab that must not stay moves to `gone`.
    fn put_object(
        &self,
        cache: &SlabCache<P>,
        lists: &mut NodeLists,
        slab: &Slab,
        (object, who): (*mut u8, Track),
        gone: &mut SlabList,
    ) {
        let (arena, base, flags) = (&self.zone.arena, self.slab_base(slab), cache.debug.get());
        if flags.contains(DebugFlags::TRACE) {
            self.trace(cache, slab, object, "free");
        }
        cache.set_track(object, Which::Free, who);
        cache.set_asked_for(object, cache.layout.object as usize);
        if flags.contains(DebugFlags::INIT_ON_FREE) && cache.ctor.is_none() && !cache.keeps_freed()
        {
            // SAFETY: freed by its owner.
            unsafe { object.write_bytes(0, cache.layout.object as usize) };
        }
        self.fill(cache, object, Use::Free);
        let state = slab.state();
        let head = state.head().map_or(null_mut(), |at| base.wrapping_add(at));
        // SAFETY: a slot of the slab, freed by its owner.
        unsafe { cache.links_of(slab).set(object, head) };
        let inuse = state.inuse().saturating_sub(1);
        slab.set_state(state.with(Some(object as usize - base as usize), inuse));
        if !slab.partial() && !state.frozen() {
            lists.full.remove(arena, slab);
            slab.set_partial(true);
            lists.partial.push_back(arena, slab);
        }
        if inuse == 0 && lists.partial.len() > cache.min_partial {
            lists.partial.remove(arena, slab);
            slab.set_partial(false);
            gone.push_back(arena, slab);
        }
    }

    /// A line for T.
    fn trace(&self, cache: &SlabCache<P>, slab: &Slab, object: *mut u8, call: &str) {
        let (name, inuse) = (cache.name(), slab.state().inuse());
        let head = self.debug_head(slab);
        (self.platform).report(format_args!(
            "TRACE {name} {call} {object:p} inuse={inuse} fp={head:p}"
        ));
        if call == "free" {
            self.dump_object(cache, object);
        }
        self.say_finder();
    }

    /// Checks an object in use, and changes the size that was asked for in place; zeroes new bytes
    /// with `zero`.
    #[cold]
    #[inline(never)]
    pub(crate) fn debug_resize(
        &self,
        cache: &SlabCache<P>,
        (slab, object): (&Slab, *mut u8),
        bytes: usize,
        zero: bool,
    ) {
        self.watch(cache, Watch::Enter);
        self.watch(cache, Watch::Open(cache.slot_of(object)));
        if cache.debug.get().contains(DebugFlags::RED_ZONE) {
            // The red zone is about to be written anew.
            let before = cache.reports();
            self.check_object(cache, slab, object, Use::InUse);
            self.end_if_fatal(cache, before);
        }
        let (old, size) = (cache.asked_for(object), cache.layout.object as usize);
        let red = cache.layout.asked != 0 && cache.debug.get().contains(DebugFlags::RED_ZONE);
        cache.set_asked_for(object, bytes);
        // SAFETY: the caller's object, `size` bytes long.
        unsafe {
            if zero && bytes > old {
                object.add(old).write_bytes(0, bytes - old);
            }
            if red {
                object.add(bytes).write_bytes(RED_ACTIVE, size - bytes);
            }
        }
        let slot = cache.slot_of(object);
        let start = object;
        let object = Block { start, bytes };
        self.watch(cache, Watch::Resize { object, old, slot });
        self.watch(cache, Watch::Leave);
    }

    /// Ends the process if there was a report of the cache since it had `before`, and reports are
    /// fatal. A report of another cache is another thread's.
    pub(crate) fn end_if_fatal(&self, cache: &SlabCache<P>, before: u32) {
        if cache.reports() != before && self.tunables().slab_debug_fatal == 1 {
            self.end_after_report(cache);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_after_report(&self, cache: &SlabCache<P>) -> ! {
        self.platform.fatal(format_args!(
            "cache '{}': memory was damaged; slab_debug_fatal=0 repairs it and goes on",
            cache.name()
        ))
    }
}
