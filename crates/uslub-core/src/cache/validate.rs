//! Validation: every slot of every slab is in exactly one place.
//!
//! | place of a slot | checked against |
//! |---|---|
//! | freelist, or fresh | the slab's count of slots in use; no slot is in both |
//! | a sheaf, in a slot or a barn | its slab has it in use; in one sheaf, once |
//! | the program | no record |
//!
//! The allocator must be idle: no other thread may use it meanwhile.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::memory::{PageIndex, PageKind};
use crate::percpu::sheaf::Sheaf;
use crate::platform::Platform;
use crate::slab::node::SlabList;
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

type Bits = [u64; MAX_OBJECTS / 64 + 1];

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
        let arena = &self.zone.arena;
        let mut partial = 0;
        for node in cache.nodes() {
            let mut lists = node.lists.lock();
            node.drain_all_pending(arena, &mut lists, cache.has_reserve());
            let mut at = lists.partial.first(arena);
            let mut len = 0;
            while let Some(slab) = at {
                if !slab.partial() {
                    return Err("a slab on the partial list is not marked so");
                }
                if slab.state().inuse() == cache.geometry.objects {
                    return Err("a full slab is on the partial list");
                }
                len += 1;
                at = SlabList::after(arena, slab);
            }
            if len != lists.partial.len() || len != node.nr_partial() {
                return Err("the partial list's length is wrong");
            }
            partial += len;
            let mut at = lists.empty.first(arena);
            let mut len = 0;
            while let Some(slab) = at {
                if !slab.partial() || slab.state().inuse() != 0 {
                    return Err("a slab in reserve is not marked so or in use");
                }
                len += 1;
                at = SlabList::after(arena, slab);
            }
            if len != lists.empty.len() || len != node.nr_empty() {
                return Err("the reserve's length is wrong");
            }
            if len > 0 && !cache.has_reserve() {
                return Err("a cache without a reserve has slabs in it");
            }
            partial += len;
        }
        let (mut slabs, mut page) = (0, 0);
        while page < arena.limit() as u32 {
            let slab = arena.slab(PageIndex(page));
            let ours = arena.cache_of(PageIndex(page)) == Some(cache.id);
            if !ours {
                page += 1;
                continue;
            }
            if slab.kind() != PageKind::Slab {
                return Err("a page of a slab leads to no slab");
            }
            self.validate_slab(cache, slab)?;
            slabs += 1;
            if slab.state().inuse() < cache.geometry.objects {
                partial = partial
                    .checked_sub(1)
                    .ok_or("a slab with free slots is not listed")?;
            }
            page += cache.geometry.pages() as u32;
        }
        if partial != 0 {
            return Err("the partial list holds slabs of somebody else");
        }
        // Relaxed: the allocator is idle.
        if slabs
            != cache
                .nodes()
                .map(|n| n.nr_slabs.load(Relaxed) - n.ahead.slabs())
                .sum::<usize>()
        {
            return Err("the number of slabs is wrong");
        }
        self.validate_sheaves(cache)
    }

    fn validate_slab(&self, cache: &KmemCache<P>, slab: &Slab) -> Result<(), &'static str> {
        let base = self.slab_base(slab);
        let mut seen: Bits = [0; MAX_OBJECTS / 64 + 1];
        let state = slab.state();
        let mut at = state
            .head()
            .map_or(core::ptr::null_mut(), |o| base.wrapping_add(o));
        let mut free = 0;
        while !at.is_null() {
            let offset = (at as usize).wrapping_sub(base as usize);
            if offset >= cache.geometry.bytes() || !cache.is_slot(offset) {
                return Err("a freelist leads out of its slab");
            }
            let slot = cache.slot_at(offset);
            if seen[slot / 64] >> (slot % 64) & 1 == 1 {
                return Err("a freelist has a cycle");
            }
            seen[slot / 64] |= 1 << (slot % 64);
            free += 1;
            // SAFETY: a free slot of an idle slab.
            at = unsafe { cache.links_of(slab).get(at) };
        }
        if state.inuse() > 0 {
            for position in u32::from(slab.position())..cache.geometry.objects {
                let slot =
                    cache.slot_at(cache.offset_at(usize::from(slab.start()), position as usize));
                if seen[slot / 64] >> (slot % 64) & 1 == 1 {
                    return Err("a fresh slot is on the freelist");
                }
                free += 1;
            }
        } else {
            free = cache.geometry.objects;
        }
        if state.inuse() + free == cache.geometry.objects {
            Ok(())
        } else {
            Err("a slab's counter disagrees with its freelist")
        }
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
        let base = self.slab_base(slab);
        if !cache.is_slot(object as usize - base as usize) {
            return Err("an interior pointer is in a sheaf");
        }
        let slot = cache.slot_at(object as usize - base as usize);
        if !cache.is_random() && slot >= usize::from(slab.position()) {
            return Err("a slot that was never handed out is in a sheaf");
        }
        let mut at = slab
            .state()
            .head()
            .map_or(core::ptr::null_mut(), |o| base.wrapping_add(o));
        while !at.is_null() {
            if at == object {
                return Err("an object is in a sheaf and on a freelist");
            }
            // SAFETY: a free slot of an idle slab.
            at = unsafe { cache.links_of(slab).get(at) };
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
