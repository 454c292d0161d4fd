//! Bulks: copies objects between a caller's array and sheaves.
//!
//! A thread detaches the sheaves from their places for the copy. It uses the CPU's own sheaves
//! first, then full or empty ones of the barn, as many as the bulk needs under one hold of the
//! barn's lock. Callers: `cache` (bulk calls).

use crate::gfp::Gfp;
use crate::percpu::Slot;
use crate::percpu::sheaf::{self, Sheaf};
use crate::percpu::sheaf_list::SheafList;
use crate::percpu::slot::{SlotState, Top};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::sheaf::cache::SheafCache;
use crate::slab::base::Base;

impl<P: Platform> Base<P> {
    /// Detaches this CPU's main or spare sheaf, if its top is `useful`.
    pub(crate) fn detach_local(
        &self,
        cache: &SheafCache<P>,
        useful: impl Fn(Top) -> bool,
    ) -> Option<Sheaf> {
        let main = self.detach_slot(cache.id.main(), sheaf::bootstrap(), &useful);
        main.or_else(|| self.detach_slot(cache.id.spare(), 0, useful))
    }

    /// Detaches the sheaf of a slot of this CPU, if its top is `useful`, and leaves `nothing` in
    /// the slot.
    fn detach_slot(
        &self,
        slot: Slot,
        nothing: usize,
        useful: impl Fn(Top) -> bool,
    ) -> Option<Sheaf> {
        let word = self.peek(slot);
        match SlotState::of(word) {
            SlotState::Sheaf(top) if useful(top) => self.detach(slot, word, nothing),
            _ => None,
        }
    }

    /// Whether an object is in this CPU's main or spare sheaf. Owns each sheaf while it searches.
    #[inline(never)]
    pub(crate) fn is_in_own_sheaves(
        &self,
        cache: &SheafCache<P>,
        object: *mut u8,
        gfp: Gfp,
    ) -> bool {
        if !self.platform.percpu_usable() {
            return false;
        }
        let mut found = false;
        for (slot, nothing) in [(cache.id.main(), sheaf::bootstrap()), (cache.id.spare(), 0)] {
            let Some(sheaf) = self.detach_slot(slot, nothing, |top| !top.is_empty()) else {
                continue;
            };
            found |= sheaf.objects().contains(&object);
            if let Err(sheaf) = self.replace(slot, nothing, sheaf) {
                self.install_filled(cache, sheaf, gfp);
            }
        }
        found
    }

    /// Takes objects from this CPU's main sheaf, without detaching it; returns how many, 0 if the
    /// sheaf changed meanwhile.
    pub(crate) fn take_from_main(&self, cache: &SheafCache<P>, out: &mut [*mut u8]) -> usize {
        let n = self.in_main(cache, Top::len).min(out.len());
        let out = &mut out[..n];
        // SAFETY: our table.
        let done = n > 0 && unsafe { self.platform.pop_many(&self.table, cache.id.main(), out) };
        if done { n } else { 0 }
    }

    /// Puts the first objects of an array into sheaves, this CPU's main sheaf first; returns how
    /// many, 0 if this context may not use sheaves, or if the cache is closed.
    pub(crate) fn put_into_own(
        &self,
        cache: &SheafCache<P>,
        gfp: Gfp,
        objects: &[*mut u8],
    ) -> usize {
        if !self.has_slots(gfp) || self.closed.contains(cache.id) {
            return 0;
        }
        let done = self.put_into_main(cache, objects);
        let put = self.put_into_sheaves(cache, gfp, &objects[done..]);
        self.count(cache, StatItem::FreeFastpath, put);
        done + put
    }

    /// Puts the first objects of an array into this CPU's main sheaf, as far as there is room,
    /// without detaching it; returns how many, 0 if the sheaf changed meanwhile.
    fn put_into_main(&self, cache: &SheafCache<P>, objects: &[*mut u8]) -> usize {
        let n = self.in_main(cache, Top::room).min(objects.len());
        let (main, objects) = (cache.id.main(), &objects[..n]);
        // SAFETY: our table; the caller frees the objects.
        let done = n > 0 && unsafe { self.platform.push_many(&self.table, main, objects) };
        if done { n } else { 0 }
    }

    /// Objects that fit into this CPU's sheaves; may be stale. An absent sheaf counts as an empty
    /// one.
    pub(crate) fn room_of_own(&self, cache: &SheafCache<P>) -> usize {
        let room = |slot| match SlotState::of(self.peek(slot)) {
            SlotState::Absent | SlotState::Bootstrap | SlotState::Stopped => cache.capacity,
            SlotState::Busy => 0,
            SlotState::Sheaf(top) => top.room(),
        };
        room(cache.id.main()) + room(cache.id.spare())
    }

    /// `of` this CPU's main sheaf (objects or room); may be stale; 0 without one.
    fn in_main(&self, cache: &SheafCache<P>, of: impl Fn(Top) -> usize) -> usize {
        match SlotState::of(self.peek(cache.id.main())) {
            SlotState::Sheaf(top) => of(top),
            _ => 0,
        }
    }

    /// Takes objects out of this CPU's sheaves, then out of full ones of the barn; returns how
    /// many.
    pub(crate) fn take_from_sheaves(
        &self,
        cache: &SheafCache<P>,
        gfp: Gfp,
        out: &mut [*mut u8],
    ) -> usize {
        let mut filled = 0;
        while filled < out.len()
            && let Some(mut sheaf) = self.detach_local(cache, |top| !top.is_empty())
        {
            filled += sheaf.pop_into(&mut out[filled..]);
            self.install_filled(cache, sheaf, gfp);
        }
        if filled == out.len() {
            return filled;
        }
        let mut fulls = self.barn_get_full_for(cache, out.len() - filled, gfp);
        if fulls.is_empty() {
            return filled;
        }
        let mut empties = SheafList::new();
        while let Some(mut sheaf) = fulls.pop() {
            filled += sheaf.pop_into(&mut out[filled..]);
            if !sheaf.is_empty() {
                self.install_filled(cache, sheaf, gfp);
            } else if self.peek(cache.id.main()) == sheaf::bootstrap() {
                // A bulk like this one, freed, finds room at once.
                self.install_with_room(cache, self.adjust_capacity(cache, sheaf), gfp);
            } else {
                self.handoff_room(&mut sheaf);
                empties.push(sheaf);
            }
        }
        self.barn_put_list(cache, &mut SheafList::new(), &mut empties, gfp);
        while let Some(sheaf) = empties.pop() {
            self.install_empty(cache, sheaf, gfp);
        }
        filled
    }

    /// Puts the first objects of an array into this CPU's sheaves, then into empty ones as far as
    /// the barn has room for them; returns how many.
    fn put_into_sheaves(&self, cache: &SheafCache<P>, gfp: Gfp, objects: &[*mut u8]) -> usize {
        let mut left = objects.len();
        while left > 0
            && let Some(mut sheaf) = self.detach_local(cache, |top| !top.is_full())
        {
            left -= sheaf.extend_from(&objects[objects.len() - left..]);
            self.install_with_room(cache, sheaf, gfp);
        }
        if left == 0 {
            return objects.len();
        }
        let mut empties = self.barn_room_for(cache, left, gfp);
        let mut fulls = SheafList::new();
        while let Some(mut sheaf) = empties.pop() {
            self.prefetch_room(&mut sheaf);
            left -= sheaf.extend_from(&objects[objects.len() - left..]);
            if sheaf.is_full() {
                fulls.push(sheaf);
            } else {
                self.install_with_room(cache, sheaf, gfp);
            }
        }
        if left > 0 {
            self.count(cache, StatItem::BarnPutFail, 1);
            self.on_barn_access(cache, true);
        }
        self.barn_put_list(cache, &mut fulls, &mut SheafList::new(), gfp);
        while let Some(sheaf) = fulls.pop() {
            self.store_or_flush(cache, sheaf, gfp);
        }
        objects.len() - left
    }
}
