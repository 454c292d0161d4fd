//! Whole slabs: frees an array that holds all objects of a full slab without touching an object.
//!
//! A slab that becomes empty starts over as fresh (`refill`), so its links would never be read. The
//! check therefore needs only addresses. If n distinct slots of an n-slot slab are present, all of
//! its objects are present, and a full slab had all of them in use. A full slab is on no list, and
//! no other thread can push to it.
//!
//! A free of more than a CPU's sheaves hold looks for whole slabs first and keeps the rest. The
//! neighbours of the rest often follow in the next free and complete their slab.
//!
//! Callers: `cache` (bulk frees) and `sheaf` (evictions).

use core::ops::Range;

use crate::gfp::Gfp;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::SCRATCH_WORDS;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::node::{Node, SlabList};
use crate::slab::state::{Slab, State};

/// Objects that one scan covers, at most.
pub(crate) const TOGETHER: usize = SCRATCH_WORDS;

/// Ownership of the objects of an array.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// All belong to the cache: a foreign object ends the process.
    Ours,
    /// Not checked yet: foreign objects stay in the array.
    Anyones,
}

/// How whole slabs are emptied.
#[derive(Clone, Copy)]
pub(crate) struct Emptying {
    pub(crate) whose: Whose,
    /// Whether another CPU consumes the slabs: their cache lines are then handed off to it.
    pub(crate) handed_off: bool,
}

/// Slabs that were just emptied and are on no list.
struct Emptied {
    slabs: SlabList,
    count: usize,
    how: Emptying,
}

impl<P: Platform> Base<P> {
    /// Empties a slab if the last objects of an array are all of its objects; returns their number,
    /// or
    /// 0. The caller then owns the slab.
    #[inline(never)]
    pub(crate) fn empty_whole_at_end(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        objects: &[*mut u8],
    ) -> usize {
        let count = cache.geometry.objects as usize;
        if objects.len() < count
            || !self.empty_whole(cache, slab, &objects[objects.len() - count..])
        {
            return 0;
        }
        count
    }

    /// Empties a slab if these are all of its objects; returns whether they are. The caller then
    /// owns the slab.
    fn empty_whole(&self, cache: &SlabCache<P>, slab: &Slab, objects: &[*mut u8]) -> bool {
        let whole = cache.tuning.detached_freelist == 1
            && !cache.keeps_its_freelist()
            && slab.state() == State::without_list(cache.geometry.objects)
            && self.covers_slab(cache, slab, objects);
        if whole {
            slab.set_state(State::without_list(0));
            slab.set_partial(false);
        }
        whole
    }

    /// Frees the whole slabs of an array and moves the rest to its start; returns the length of the
    /// rest.
    ///
    /// A slab's objects may lie in two pieces, with a piece of another slab in between. A bulk that
    /// begins in one slab and ends in the next leaves such pieces.
    pub(crate) fn free_whole_slabs(
        &self,
        cache: &SlabCache<P>,
        objects: &mut [*mut u8],
        how: Emptying,
        gfp: Gfp,
    ) -> usize {
        let mut gone = SlabList::new();
        let left = self.take_whole_slabs(cache, objects, how, &mut gone, gfp);
        self.discard_list(cache, gone);
        left
    }

    /// As [`free_whole_slabs`](Self::free_whole_slabs), but slabs that must go back to the page
    /// layer go to `gone`, since freeing them needs stack.
    pub(crate) fn take_whole_slabs(
        &self,
        cache: &SlabCache<P>,
        objects: &mut [*mut u8],
        how: Emptying,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> usize {
        let (count, bytes) = (cache.geometry.objects as usize, cache.geometry.bytes());
        let begins_with_one = |all: &[*mut u8]| same_slab(all[0], all[count - 1], bytes);
        if !objects.get(..count).is_some_and(begins_with_one)
            && !may_have_whole(&[objects], count, bytes)
        {
            return objects.len();
        }
        self.take_whole_slabs_among(cache, objects, how, gone, gfp)
    }

    /// As [`take_whole_slabs`](Self::take_whole_slabs), without the test whether there may be any.
    #[inline(never)]
    pub(crate) fn take_whole_slabs_among(
        &self,
        cache: &SlabCache<P>,
        objects: &mut [*mut u8],
        how: Emptying,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> usize {
        let (count, bytes) = (cache.geometry.objects as usize, cache.geometry.bytes());
        let (mut at, mut left) = (0, 0);
        // The pieces of the last two slabs with a rest, one after the other.
        let (mut older, mut newer) = (0..0, 0..0);
        let mut emptied = Emptied {
            slabs: SlabList::new(),
            count: 0,
            how,
        };
        while at < objects.len() {
            // Most whole slabs lie in one piece: one check is enough for them.
            if let Some(all) = objects.get(at..at + count)
                && same_slab(all[0], all[count - 1], bytes)
                && self.free_whole(cache, all, &mut emptied)
            {
                at += count;
                continue;
            }
            let run = at..at + run_len(&objects[at..], bytes);
            at = run.end;
            if self.free_whole(cache, &objects[run.clone()], &mut emptied) {
                continue;
            }
            let (start, len) = (left, run.len());
            objects.copy_within(run, start);
            left += len;
            let is_of = |slab: &Range<usize>| {
                !slab.is_empty() && same_slab(objects[slab.start], objects[start], bytes)
            };
            if is_of(&newer) {
                newer.end = left;
                if self.free_whole(cache, &objects[newer.clone()], &mut emptied) {
                    left = newer.start;
                    newer = core::mem::replace(&mut older, 0..0);
                }
            } else if is_of(&older) {
                rotate(&mut objects[newer.start..left], newer.len());
                older.end += len;
                newer = older.end..left;
                if self.free_whole(cache, &objects[older.clone()], &mut emptied) {
                    objects.copy_within(newer, older.start);
                    left -= count;
                    newer = older.start..left;
                    older = 0..0;
                }
            } else {
                older = core::mem::replace(&mut newer, start..left);
            }
        }
        self.count(cache, StatItem::FreeDetached, emptied.count);
        self.place_emptied(cache, emptied.slabs, gone, gfp);
        left
    }

    /// Empties a slab if the objects, all in this slab, are all of its objects; returns whether
    /// they are.
    fn free_whole(&self, cache: &SlabCache<P>, objects: &[*mut u8], emptied: &mut Emptied) -> bool {
        if objects.len() != cache.geometry.objects as usize {
            return false;
        }
        if emptied.how.whose == Whose::Anyones && self.cache_id_of(objects[0]) != Some(cache.id) {
            return false;
        }
        let slab = self.checked_slab(cache, objects[0]);
        if !self.empty_whole(cache, slab, objects) {
            return false;
        }
        if emptied.how.handed_off {
            // SAFETY: free objects of a slab that we own, which no reader knows any longer.
            unsafe { self.platform.handoff_objects(objects) };
        }
        emptied.slabs.push_back(&self.zone.arena, slab);
        emptied.count += 1;
        true
    }

    /// Keeps empty slabs that we own and that are on no list; the surplus goes to `gone`.
    fn place_emptied(
        &self,
        cache: &SlabCache<P>,
        mut emptied: SlabList,
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        let arena = &self.zone.arena;
        while let Some(first) = emptied.first(arena) {
            let home = first.node();
            let mut own = SlabList::new();
            if self.nr_nodes() == 1 {
                own.append(arena, &mut emptied);
            }
            while let Some(slab) = emptied.first(arena)
                && slab.node() == home
            {
                emptied.remove(arena, slab);
                own.push_back(arena, slab);
            }
            self.place_on_node(cache, cache.node(usize::from(home)), own, gone, gfp);
        }
    }

    /// As `place_emptied`, for slabs of one node.
    #[inline(never)]
    pub(crate) fn place_on_node(
        &self,
        cache: &SlabCache<P>,
        node: &Node<P>,
        mut emptied: SlabList,
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        let arena = &self.zone.arena;
        let reserve = cache.has_reserve();
        while let Some(slab) = emptied.first(arena) {
            emptied.remove(arena, slab);
            if reserve && node.put_ready(arena, slab) {
                continue;
            }
            if gfp.may_spin() && (reserve || node.nr_partial() >= cache.min_partial) {
                emptied.push_front(arena, slab);
                break;
            }
            let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
                node.push_pending(arena, slab);
                continue;
            };
            lists.add(arena, slab, reserve);
            node.update_counts(&lists);
            self.count(cache, StatItem::FreeAddPartial, 1);
        }
        if emptied.is_empty() {
            return;
        }
        if reserve && let Some(lists) = self.lock_lists(cache, node, true) {
            return self.slabs_emptied(cache, node, lists, emptied, gone);
        }
        gone.append(arena, &mut emptied);
    }
}

/// Whether the arrays have enough adjacent neighbours to contain all `count` objects of a slab of
/// `bytes` bytes. It samples eighths of a slab. A slab of at least 16 objects lies in at most four
/// pieces (see [`free_whole_slabs`](Base::free_whole_slabs); a piece may continue in the next
/// array). A piece of a quarter contains a whole sample.
#[inline(never)]
pub(crate) fn may_have_whole(arrays: &[&[*mut u8]], count: usize, bytes: usize) -> bool {
    if arrays.iter().map(|array| array.len()).sum::<usize>() < count {
        return false;
    }
    // A pair of objects may straddle two samples, so small slabs always pass the test.
    let eighth = if count < 4 { 1 } else { (count / 8).max(2) };
    let near = |array: &&[*mut u8]| {
        let parts = array.chunks_exact(eighth);
        parts
            .filter(|part| same_slab(part[0], part[eighth - 1], bytes))
            .count()
    };
    arrays.iter().map(near).sum::<usize>() * eighth * 4 >= count
}

/// Objects at the start of a non-empty array that lie in the slab of the first.
fn run_len(objects: &[*mut u8], bytes: usize) -> usize {
    let first = objects[0] as usize;
    // Eight at a time without a branch: the bits in which any of them differs from the first.
    let (eights, _) = objects.as_chunks::<8>();
    let differs = |eight: &[*mut u8; 8]| eight.iter().fold(0, |all, &o| all | (o as usize ^ first));
    let whole = eights
        .iter()
        .take_while(|&eight| differs(eight) < bytes)
        .count()
        * 8;
    let here = |&&object: &&*mut u8| same_slab(object, objects[0], bytes);
    whole + objects[whole..].iter().take(8).take_while(here).count()
}

/// Moves the first `first` objects of an array behind the others.
#[inline(never)]
fn rotate(objects: &mut [*mut u8], first: usize) {
    // Three reversals: `rotate_left` has a buffer on the stack.
    objects[..first].reverse();
    objects[first..].reverse();
    objects.reverse();
}

/// Whether two objects lie in one slab: slabs are aligned to their size.
pub(crate) fn same_slab(a: *mut u8, b: *mut u8, bytes: usize) -> bool {
    (a as usize ^ b as usize) < bytes
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_whole_slab_is_looked_for_wherever_it_lies() {
        for count in (1..=40).chain([64, 128, 256]) {
            for before in 0..20 {
                // Others, each of a slab of its own; then all objects of slab 0.
                let others = (1..=before + 3).map(|slab| (slab << 16) as *mut u8);
                let mut all: Vec<*mut u8> = others.collect();
                all.splice(before..before, (0..count).map(|i| (i * 16) as *mut u8));
                assert!(may_have_whole(&[&all], count, 1 << 16), "{count} {before}");
                let few = &all[..count.min(before)];
                assert!(!may_have_whole(&[few], count + 4, 1 << 16));
            }
        }
    }
}
