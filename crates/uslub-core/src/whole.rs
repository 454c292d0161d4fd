//! Whole slabs: an array that holds all objects of a full slab frees it without touching one of them.
//!
//! A slab that becomes empty [starts over as fresh](crate::refill), so no link would ever be read. The objects' addresses
//! alone are looked at: so many different slots of the slab as it has are all of them, and all were in use, as the
//! slab was full. It is on no list, and nobody else can push to it.
//!
//! So whoever has more to free than a sheaf holds looks for whole slabs first, and keeps what is left over: its neighbours, which
//! often follow, make it whole.

use core::ptr::null_mut;

use crate::allocator::Allocator;
use crate::cache::KmemCache;
use crate::gfp::Gfp;
use crate::node::SlabList;
use crate::platform::Platform;
use crate::sheaf;
use crate::slab::{Slab, State};
use crate::stats::StatItem;

/// Objects of a slab, at most, for which this is done.
const MOST: usize = 512;

impl<P: Platform> Allocator<P> {
    /// Frees the last objects of an array if they are all that a slab has; returns how many that were, or 0.
    pub(crate) fn free_whole_slab(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        objects: &[*mut u8],
        gfp: Gfp,
    ) -> usize {
        let count = cache.oo.objects as usize;
        if objects.len() < count
            || cache.keeps_its_freelist()
            || slab.state() != State::without_list(count as u32)
            || !self.are_all(cache, slab, &objects[objects.len() - count..])
        {
            return 0;
        }
        slab.set_state(State::without_list(0));
        self.place_emptied(cache, slab, gfp);
        count
    }

    /// Frees the whole slabs of an array, and moves what is left over to its beginning; returns how many that are.
    pub(crate) fn free_whole_slabs(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        gfp: Gfp,
    ) -> usize {
        let (count, bytes) = (cache.oo.objects as usize, cache.oo.bytes());
        let (mut at, mut left) = (0, 0);
        while at < objects.len() {
            // Slabs are as aligned as they are large.
            let is_near = |&&o: &&*mut u8| (o as usize ^ objects[at] as usize) < bytes;
            let run = at..at + objects[at..].iter().take_while(is_near).count();
            at = run.end;
            let whole = run.len() == count && {
                let slab = self.checked_slab(cache, objects[run.start]);
                self.free_whole_slab(cache, slab, &objects[run.clone()], gfp) == count
            };
            if whole {
                self.count(cache, StatItem::FreeDetached, 1);
            } else {
                let start = left;
                left += run.len();
                objects.copy_within(run, start);
            }
        }
        left
    }

    /// Frees objects that found no room together with those of one of this CPU's sheaves, if it is full: whole slabs go, and of
    /// what is left over the newest stay in the sheaf. Returns whether there was one; if not, nothing is done.
    pub(crate) fn free_with_own(
        &self,
        cache: &KmemCache<P>,
        objects: &[*mut u8],
        gfp: Gfp,
    ) -> bool {
        let most = objects.len() + cache.capacity;
        if objects.is_empty() || !(cache.oo.objects as usize..=MOST).contains(&most) {
            return false;
        }
        let Some(mut sheaf) = self.take_own(cache, sheaf::top_is_full) else {
            return false;
        };
        let held = sheaf.len();
        let mut all = [null_mut(); MOST];
        let Some(all) = all.get_mut(..held + objects.len()) else {
            self.place_filled(cache, sheaf, gfp);
            return false;
        };
        all[..held].copy_from_slice(sheaf.objects_mut());
        all[held..].copy_from_slice(objects);
        sheaf.truncate(0);
        let left = self.free_whole_slabs(cache, all, gfp);
        let done = left < all.len();
        let (first, kept) = match done {
            true => (
                left - left.min(sheaf.capacity()),
                left.min(sheaf.capacity()),
            ),
            // As it was.
            false => (0, held),
        };
        self.free_to_slabs(cache, &mut all[..first], gfp);
        sheaf.room()[..kept].copy_from_slice(&all[first..first + kept]);
        sheaf.grow(kept);
        self.count(cache, StatItem::SheafFlush, held - kept.min(held));
        self.place_filled(cache, sheaf, gfp);
        done
    }

    /// Whether these, as many as a slab has, are all its objects.
    fn are_all(&self, cache: &KmemCache<P>, slab: &Slab, objects: &[*mut u8]) -> bool {
        let base = self.slab_base(slab) as usize;
        let bytes = cache.oo.bytes();
        let is_here = |&object: &*mut u8| (object as usize).wrapping_sub(base) < bytes;
        // The first look is at the far end: most arrays that are none end elsewhere.
        if objects.len() > MOST || !objects.first().is_some_and(is_here) {
            return false;
        }
        if is_ladder(objects, cache.size as usize) {
            // As many rungs as slots, so the ends say all.
            let ends = [objects[0], objects[objects.len() - 1]];
            let is_slot = |object: &*mut u8| cache.is_slot((*object as usize).wrapping_sub(base));
            return ends.iter().all(is_slot);
        }
        let mut seen = [0u64; MOST / 64];
        for object in objects {
            let offset = (*object as usize).wrapping_sub(base);
            if offset >= bytes || !cache.is_slot(offset) {
                return false;
            }
            let slot = cache.slot_at(offset);
            let bit = 1 << (slot % 64);
            if seen[slot / 64] & bit != 0 {
                return false;
            }
            seen[slot / 64] |= bit;
        }
        true
    }

    /// Keeps an empty slab of ours that is on no list, or gives it back.
    fn place_emptied(&self, cache: &KmemCache<P>, slab: &Slab, gfp: Gfp) {
        let arena = &self.zone.arena;
        let node = cache.node(usize::from(slab.node()));
        slab.set_partial(false);
        if cache.has_reserve() {
            if node.put_at_hand(arena, slab) {
                return;
            }
        } else if gfp.may_spin() && node.nr_partial() >= cache.min_partial {
            return self.discard_slab(cache, node, slab);
        }
        let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
            return node.stash(arena, slab);
        };
        if cache.has_reserve() && gfp.may_spin() {
            let mut emptied = SlabList::new();
            emptied.push_back(arena, slab);
            return self.slabs_emptied(cache, node, lists, emptied);
        }
        lists.add(arena, slab, cache.has_reserve());
        node.note(&lists);
        self.count(cache, StatItem::FreeAddPartial, 1);
    }
}

/// Whether each object lies `size` bytes above the one before it, or each as far below it.
fn is_ladder(objects: &[*mut u8], size: usize) -> bool {
    let step = |pair: &[*mut u8]| (pair[1] as usize).wrapping_sub(pair[0] as usize);
    let Some(first) = objects.windows(2).next().map(step) else {
        return false;
    };
    // Without a branch an object.
    let others = objects
        .windows(2)
        .fold(0, |all, pair| all | (step(pair) ^ first));
    others == 0 && (first == size || first == size.wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_has_rungs_of_one_height() {
        let ladder = |at: &[usize]| {
            let objects: [*mut u8; 4] =
                core::array::from_fn(|i| at.get(i).copied().unwrap_or(0) as *mut u8);
            is_ladder(&objects[..at.len()], 16)
        };
        assert!(ladder(&[16, 32, 48]));
        assert!(ladder(&[48, 32, 16, 0]));
        assert!(!ladder(&[16, 32, 32]));
        assert!(!ladder(&[16, 48, 80]));
        assert!(!ladder(&[16]));
    }
}
