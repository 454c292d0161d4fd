//! Validation: every slot of every slab is in exactly one place.
//!
//! | place of a slot | checked against |
//! |---|---|
//! | freelist, or fresh | the slab's count of slots in use; no slot is in both |
//! | a sheaf, in a slot or a barn | its slab has it in use; in one sheaf, once |
//! | the program | no record |
//!
//! The allocator must be idle: no other thread may use it meanwhile. Callers: tests, and checks of
//! the faces.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::memory::{Arena, PageIndex, PageKind};
use crate::percpu::sheaf::Sheaf;
use crate::platform::Platform;
use crate::slab::node::{Node, SlabList};
use crate::slab::order::MAX_OBJECTS;
use crate::slab::state::Slab;

/// A broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Index of the cache, 0 for none.
    pub cache: usize,
    /// The broken rule.
    pub what: &'static str,
}

/// Slots of a slab, one bit each.
pub(crate) struct SlotSet([u64; MAX_OBJECTS / 64 + 1]);

impl SlotSet {
    pub(crate) const NONE: Self = Self([0; MAX_OBJECTS / 64 + 1]);

    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// Adds a slot; false if the set has it.
    fn insert(&mut self, slot: usize) -> bool {
        let is_new = !self.contains(slot);
        self.0[slot / 64] |= 1 << (slot % 64);
        is_new
    }

    fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

impl<P: Platform> Allocator<P> {
    /// Checks pages, slabs, lists and sheaves.
    ///
    /// # Errors
    ///
    /// With the first broken rule.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.zone
            .validate()
            .map_err(|what| Invalid { cache: 0, what })?;
        for cache in self.caches() {
            self.validate_cache(cache).map_err(|what| Invalid {
                cache: cache.id.index(),
                what,
            })?;
        }
        Ok(())
    }

    fn validate_cache(&self, cache: &KmemCache<P>) -> Result<(), &'static str> {
        if cache.is_debugged() {
            let before = cache.reports();
            self.drain_deferred(cache);
            self.validate_debugged(cache);
            return match cache.reports() == before && self.counts_agree(cache) {
                true => Ok(()),
                false => Err("a debugged cache has damaged objects or slabs"),
            };
        }
        let mut listed = 0;
        for node in cache.nodes() {
            listed += self.validate_lists(cache, node)?;
        }
        let slabs = self.validate_slabs(cache, listed)?;
        // Relaxed: the allocator is idle.
        let counted = |node: &Node<P>| node.nr_slabs.load(Relaxed) - node.ahead.slabs();
        if slabs != cache.nodes().map(counted).sum::<usize>() {
            return Err("the number of slabs is wrong");
        }
        self.validate_sheaves(cache)
    }

    /// Checks the lists of a node; returns the number of listed slabs.
    fn validate_lists(&self, cache: &KmemCache<P>, node: &Node<P>) -> Result<usize, &'static str> {
        let arena = &self.zone.arena;
        let mut lists = node.lists.lock();
        node.drain_all_pending(arena, &mut lists, cache.has_reserve());
        let partial = checked_len(arena, &lists.partial, |slab| {
            if !slab.partial() {
                return Err("a slab on the partial list is not marked so");
            }
            if slab.state().inuse() == cache.geometry.objects {
                return Err("a full slab is on the partial list");
            }
            Ok(())
        })?;
        if partial != lists.partial.len() || partial != node.nr_partial() {
            return Err("the partial list's length is wrong");
        }
        let empty = checked_len(arena, &lists.empty, |slab| {
            if !slab.partial() || slab.state().inuse() != 0 {
                return Err("a slab in reserve is not marked so or in use");
            }
            Ok(())
        })?;
        if empty != lists.empty.len() || empty != node.nr_empty() {
            return Err("the reserve's length is wrong");
        }
        if empty > 0 && !cache.has_reserve() {
            return Err("a cache without a reserve has slabs in it");
        }
        Ok(partial + empty)
    }

    /// Checks all slabs of a cache, of which `listed` must have free slots; returns their number.
    fn validate_slabs(
        &self,
        cache: &KmemCache<P>,
        mut listed: usize,
    ) -> Result<usize, &'static str> {
        let arena = &self.zone.arena;
        let mut waiting = cache.nr_waiting();
        let (mut slabs, mut page) = (0, 0);
        while page < arena.limit() as u32 {
            if arena.cache_of(PageIndex(page)) != Some(cache.id) {
                page += 1;
                continue;
            }
            let slab = arena.slab(PageIndex(page));
            if slab.kind() != PageKind::Slab {
                return Err("a page of a slab leads to no slab");
            }
            self.validate_slab(cache, slab)?;
            slabs += 1;
            let inuse = slab.state().inuse();
            // An empty slab that waits for its readers is on no list.
            if waiting > 0 && inuse == 0 && !slab.partial() {
                waiting -= 1;
            } else if inuse < cache.geometry.objects {
                listed = listed
                    .checked_sub(1)
                    .ok_or("a slab with free slots is not listed")?;
            }
            page += cache.geometry.pages() as u32;
        }
        if waiting != 0 {
            return Err("slabs that wait for their readers are missing");
        }
        if listed != 0 {
            return Err("the partial list holds slabs of somebody else");
        }
        Ok(slabs)
    }

    fn validate_slab(&self, cache: &KmemCache<P>, slab: &Slab) -> Result<(), &'static str> {
        let (mut free, inuse) = (SlotSet::NONE, slab.state().inuse());
        self.find_free(cache, slab, &mut free)?;
        if inuse > 0 && inuse + free.len() != cache.geometry.objects {
            return Err("a slab's counter disagrees with its freelist");
        }
        Ok(())
    }

    /// Adds the slots of an idle slab's freelist, and the fresh ones. A slab with no object in use
    /// has no fresh slots here, and its freelist may be an old one. An error is the broken rule.
    pub(crate) fn find_free(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        free: &mut SlotSet,
    ) -> Result<(), &'static str> {
        for offset in self.freelist(cache, slab) {
            let offset = offset.ok_or("a freelist leads out of its slab")?;
            if !free.insert(cache.slot_at(offset)) {
                return Err("a freelist has a cycle");
            }
        }
        if slab.state().inuse() > 0 {
            for position in usize::from(slab.position())..cache.geometry.objects as usize {
                let offset = cache.offset_at(slab.start().into(), position);
                if !free.insert(cache.slot_at(offset)) {
                    return Err("a fresh slot is on the freelist");
                }
            }
        }
        Ok(())
    }

    /// The freelist of an idle slab, as `Links::walk` gives it.
    fn freelist(&self, cache: &KmemCache<P>, slab: &Slab) -> impl Iterator<Item = Option<usize>> {
        let (base, head) = (self.slab_base(slab), slab.state().head());
        let head = head.map_or(null_mut(), |offset| base.wrapping_add(offset));
        let is_slot = |offset| offset < cache.geometry.bytes() && cache.is_slot(offset);
        // SAFETY: slots of an idle slab.
        unsafe { cache.links_of(slab).walk(base, head, is_slot) }
    }

    fn validate_sheaves(&self, cache: &KmemCache<P>) -> Result<(), &'static str> {
        let mut result = Ok(());
        let mut check = |objects: &[*mut u8], in_slots: usize| {
            for &object in objects {
                let here = objects.iter().filter(|&&o| o == object).count();
                if here != 1 || self.times_in_slots(cache, object) != in_slots {
                    result = Err("an object is in a sheaf twice");
                }
                if let Err(what) = self.validate_cached(cache, object) {
                    result = Err(what);
                }
            }
        };
        self.for_each_top(cache, |top| {
            // SAFETY: idle, so the sheaf stays in its slot; it is not freed here.
            check(unsafe { Sheaf::from_top(top.word()) }.objects(), 1);
        });
        for barn in cache.barns() {
            barn.for_each_full(|objects| check(objects, 0));
        }
        result
    }

    /// Checks that an object in a sheaf is a slot of the cache and in use in its slab.
    fn validate_cached(&self, cache: &KmemCache<P>, object: *mut u8) -> Result<(), &'static str> {
        let arena = &self.zone.arena;
        let page = arena
            .page_of(object as usize)
            .ok_or("a foreign pointer is in a sheaf")?;
        if arena.cache_of(page) != Some(cache.id) {
            return Err("an object of another cache is in a sheaf");
        }
        let slab = cache.slab_of(arena, page);
        let offset = object as usize - self.slab_base(slab) as usize;
        if !cache.is_slot(offset) {
            return Err("an interior pointer is in a sheaf");
        }
        if !cache.is_random() && cache.slot_at(offset) >= usize::from(slab.position()) {
            return Err("a slot that was never handed out is in a sheaf");
        }
        if (self.freelist(cache, slab)).any(|at| at == Some(offset)) {
            return Err("an object is in a sheaf and on a freelist");
        }
        Ok(())
    }

    /// How often an object is in the CPUs' sheaves of its cache.
    fn times_in_slots(&self, cache: &KmemCache<P>, object: *mut u8) -> usize {
        let count = |objects: &[*mut u8]| objects.iter().filter(|&&o| o == object).count();
        let mut times = 0;
        self.for_each_top(cache, |top| {
            // SAFETY: idle, so the sheaf stays in its slot; it is not freed here.
            times += count(unsafe { Sheaf::from_top(top.word()) }.objects());
        });
        times
    }
}

/// Length of a list whose slabs all pass a check.
fn checked_len(
    arena: &Arena,
    list: &SlabList,
    check: impl Fn(&Slab) -> Result<(), &'static str>,
) -> Result<usize, &'static str> {
    let mut len = 0;
    for slab in list.iter(arena) {
        check(slab)?;
        len += 1;
    }
    Ok(len)
}
