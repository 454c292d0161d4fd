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

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::memory::metadata::Scratch;
use crate::percpu::sheaf::{self, Sheaf};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::SCRATCH_WORDS;
use crate::slab::node::{Node, SlabList};
use crate::slab::state::{Slab, State};

/// Objects that one scan covers, at most.
const TOGETHER: usize = SCRATCH_WORDS;

/// Ownership of the objects of an array.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// All belong to the cache: a foreign object ends the process.
    Ours,
    /// Not checked yet: foreign objects stay in the array.
    Anyones,
}

/// Slabs that were just emptied and are on no list.
struct Emptied {
    slabs: SlabList,
    count: usize,
    whose: Whose,
    /// Whether another CPU consumes the slabs: their cache lines are then handed off to it.
    offered: bool,
}

impl<P: Platform> Allocator<P> {
    /// Empties a slab if the last objects of an array are all of its objects; returns their number,
    /// or
    /// 0. The caller then owns the slab.
    #[inline(never)]
    pub(crate) fn empty_whole_at_end(
        &self,
        cache: &KmemCache<P>,
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
    fn empty_whole(&self, cache: &KmemCache<P>, slab: &Slab, objects: &[*mut u8]) -> bool {
        let whole = !cache.keeps_its_freelist()
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
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        whose: Whose,
        gfp: Gfp,
    ) -> usize {
        let mut gone = SlabList::new();
        let left = self.take_whole_slabs(cache, objects, whose, &mut gone, gfp);
        self.discard_list(cache, gone);
        left
    }

    /// As [`free_whole_slabs`](Self::free_whole_slabs), but slabs that must go back to the page
    /// layer go to `gone`, since freeing them needs stack.
    fn take_whole_slabs(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        whose: Whose,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> usize {
        let (count, bytes) = (cache.geometry.objects as usize, cache.geometry.bytes());
        let begins_with_one = |all: &[*mut u8]| is_near(all[0], all[count - 1], bytes);
        if !objects.get(..count).is_some_and(begins_with_one)
            && !may_have_whole(&[objects], count, bytes)
        {
            return objects.len();
        }
        self.take_whole_slabs_among(cache, objects, whose, gone, gfp)
    }

    /// As [`take_whole_slabs`](Self::take_whole_slabs), without the test whether there may be any.
    #[inline(never)]
    fn take_whole_slabs_among(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        whose: Whose,
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
            whose,
            offered: self.are_slabs_handed_off(cache, objects.len()),
        };
        while at < objects.len() {
            // Most whole slabs lie in one piece: one check is enough for them.
            if let Some(all) = objects.get(at..at + count)
                && is_near(all[0], all[count - 1], bytes)
                && self.note_whole(cache, all, &mut emptied)
            {
                at += count;
                continue;
            }
            let run = at..at + run_len(&objects[at..], bytes);
            at = run.end;
            if self.note_whole(cache, &objects[run.clone()], &mut emptied) {
                continue;
            }
            let (start, len) = (left, run.len());
            objects.copy_within(run, start);
            left += len;
            let is_of = |slab: &Range<usize>| {
                !slab.is_empty() && is_near(objects[slab.start], objects[start], bytes)
            };
            if is_of(&newer) {
                newer.end = left;
                if self.note_whole(cache, &objects[newer.clone()], &mut emptied) {
                    left = newer.start;
                    newer = core::mem::replace(&mut older, 0..0);
                }
            } else if is_of(&older) {
                rotate(&mut objects[newer.start..left], newer.len());
                older.end += len;
                newer = older.end..left;
                if self.note_whole(cache, &objects[older.clone()], &mut emptied) {
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
    fn note_whole(&self, cache: &KmemCache<P>, objects: &[*mut u8], emptied: &mut Emptied) -> bool {
        if objects.len() != cache.geometry.objects as usize {
            return false;
        }
        if emptied.whose == Whose::Anyones && self.cache_id_of(objects[0]) != Some(cache.id) {
            return false;
        }
        let slab = self.checked_slab(cache, objects[0]);
        if !self.empty_whole(cache, slab, objects) {
            return false;
        }
        if emptied.offered {
            // SAFETY: free objects of a slab that we own, which no reader knows any longer.
            unsafe { self.platform.offer(objects) };
        }
        emptied.slabs.push_back(&self.zone.arena, slab);
        emptied.count += 1;
        true
    }

    /// Frees objects that found no room, together with the objects of this CPU's full sheaves, and
    /// keeps the newest in the sheaves. Returns whether it did; if not, nothing changed.
    pub(crate) fn free_with_full_sheaves(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        gfp: Gfp,
    ) -> bool {
        // Of more objects than both sheaves hold, most would go to their slabs anyway.
        let most = (TOGETHER / 4).min(2 * cache.capacity);
        if cache.keeps_its_freelist() || objects.len() > most {
            return false;
        }
        let Some(newer) = self.detach_local(cache, sheaf::top_is_full) else {
            return false;
        };
        let older = match self.peek(cache.id.spare()) {
            0 => self.empty_sheaf(cache, gfp),
            spare if sheaf::top_is_full(spare) => self.detach_spare(cache, spare),
            _ => None,
        };
        let Some(older) = older else {
            self.install_filled(cache, newer, gfp);
            return false;
        };
        let mut gone = SlabList::new();
        let (main, spare, placed) = self.make_room(cache, older, newer, objects, &mut gone, gfp);
        self.install_with_room(cache, main, gfp);
        self.install_spare(cache, spare, gfp);
        self.push_to_slabs(cache, &mut objects[placed..], &mut gone, gfp);
        self.discard_list(cache, gone);
        true
    }

    /// Makes room in a full sheaf that was the spare: evicts its whole slabs, or its oldest
    /// objects. Slabs that must go back to the page layer go to `gone`.
    pub(crate) fn evict_for_one(
        &self,
        cache: &KmemCache<P>,
        mut sheaf: Sheaf,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> Sheaf {
        self.flush_whole_slabs(cache, &mut sheaf, gone, gfp);
        if sheaf.is_empty() {
            return self.adjust_capacity(cache, sheaf);
        }
        if cache.keeps_its_freelist() {
            self.flush_sheaf_but_keep(cache, &mut sheaf, gone, gfp);
            return self.adjust_capacity(cache, sheaf);
        }
        let Some(newer) = self.detach_local(cache, sheaf::top_is_full) else {
            self.flush_sheaf_but_keep(cache, &mut sheaf, gone, gfp);
            return self.adjust_capacity(cache, sheaf);
        };
        let (main, spare, _) = self.make_room(cache, sheaf, newer, &[], gone, gfp);
        self.install_spare(cache, spare, gfp);
        main
    }

    fn flush_whole_slabs(
        &self,
        cache: &KmemCache<P>,
        sheaf: &mut Sheaf,
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        let held = sheaf.len();
        let left = self.take_whole_slabs(cache, sheaf.objects_mut(), Whose::Ours, gone, gfp);
        self.count(cache, StatItem::SheafFlush, held - left);
        sheaf.truncate(left);
    }

    /// Makes room in two sheaves and appends `objects`: whole slabs are evicted, then the oldest of
    /// the rest. Returns the sheaves, the one with room first, and the number of objects handled.
    ///
    /// The rest keeps its order of arrival. So adjacent objects make whole slabs wherever the first
    /// of them began, since the objects before it have left.
    #[inline(always)]
    fn make_room(
        &self,
        cache: &KmemCache<P>,
        mut older: Sheaf,
        newer: Sheaf,
        objects: &[*mut u8],
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> (Sheaf, Sheaf, usize) {
        self.flush_whole_slabs(cache, &mut older, gone, gfp);
        let together = !older.is_empty() && may_have_whole_in(cache, &older, &newer, objects);
        let scratch = together.then(|| self.meta.scratch(&self.platform, gfp));
        let Some(mut scratch) = scratch.flatten() else {
            self.flush_sheaf_but_keep(cache, &mut older, gone, gfp);
            older = self.adjust_capacity(cache, older);
            let placed = older.extend_from(objects);
            return (older, newer, placed);
        };
        // SAFETY: this thread owns it until `give_scratch`.
        let all = unsafe { scratch.as_mut() };
        let (older, newer) = self.evict_among(cache, older, newer, objects, all, gone, gfp);
        self.meta.give_scratch(scratch);
        debug_assert!(!newer.is_full());
        (newer, older, objects.len())
    }

    /// As `make_room`, with room for [`TOGETHER`] objects. The newer sheaf is then the one with
    /// room.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a record of them takes stack")]
    fn evict_among(
        &self,
        cache: &KmemCache<P>,
        mut older: Sheaf,
        mut newer: Sheaf,
        objects: &[*mut u8],
        all: &mut Scratch,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> (Sheaf, Sheaf) {
        let mut passed = older.len() + newer.len() + objects.len();
        // The part to copy next, and the position in it.
        let (mut part, mut at, mut held) = (0, 0, 0);
        let (all, left) = loop {
            let from = match part {
                0 => older.objects(),
                1 => newer.objects(),
                _ => objects,
            };
            let more = (from.len() - at).min(TOGETHER - held);
            all[held..held + more].write_copy_of_slice(&from[at..at + more]);
            (at, held) = (at + more, held + more);
            if at == from.len() {
                (part, at) = (part + 1, 0);
                if part < 3 {
                    continue;
                }
            }
            // SAFETY: the first `held` entries are written.
            let all = unsafe { all[..held].assume_init_mut() };
            let left = self.take_whole_slabs_among(cache, all, Whose::Ours, gone, gfp);
            if part == 3 {
                break (all, left);
            }
            // No room left: whole slabs went; without any, the older half is flushed.
            held = left;
            if left == all.len() {
                let half = left / 2;
                self.count(cache, StatItem::SheafFlush, half);
                self.push_to_slabs(cache, &mut all[..half], gone, gfp);
                all.copy_within(half.., 0);
                (held, passed) = (left - half, passed - half);
            }
        };
        older.truncate(0);
        newer.truncate(0);
        (older, newer) = (
            self.adjust_capacity(cache, older),
            self.adjust_capacity(cache, newer),
        );
        let capacity = older.capacity() + newer.capacity();
        let first = eviction_count(
            &all[..left],
            left < passed,
            capacity,
            cache.geometry.bytes(),
        );
        self.push_to_slabs(cache, &mut all[..first], gone, gfp);
        let mut kept = &all[first..left];
        let flushed = (passed - objects.len()).saturating_sub(kept.len());
        self.count(cache, StatItem::SheafFlush, flushed);
        if kept.len() >= newer.capacity() {
            kept = &kept[older.extend_from(kept)..];
        }
        let placed = newer.extend_from(kept);
        debug_assert_eq!(placed, kept.len());
        (older, newer)
    }

    /// Installs a sheaf as this CPU's spare if the CPU has none; otherwise stores or flushes it.
    pub(crate) fn install_spare(&self, cache: &KmemCache<P>, sheaf: Sheaf, gfp: Gfp) {
        let top = sheaf.into_top();
        if !self.swap(cache.id.spare(), 0, top) {
            // SAFETY: it is in no slot, so this thread still owns it.
            self.store_or_flush(cache, unsafe { Sheaf::from_top(top) }, gfp);
        }
    }

    /// Keeps empty slabs that we own and that are on no list; the surplus goes to `gone`.
    fn place_emptied(
        &self,
        cache: &KmemCache<P>,
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
        cache: &KmemCache<P>,
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
                node.stash(arena, slab);
                continue;
            };
            lists.add(arena, slab, reserve);
            node.note(&lists);
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
/// pieces (see [`free_whole_slabs`](Allocator::free_whole_slabs); a piece may continue in the next
/// array). A piece of a quarter contains a whole sample.
#[inline(never)]
fn may_have_whole(arrays: &[&[*mut u8]], count: usize, bytes: usize) -> bool {
    if arrays.iter().map(|array| array.len()).sum::<usize>() < count {
        return false;
    }
    // A pair of objects may straddle two samples, so small slabs always pass the test.
    let eighth = if count < 4 { 1 } else { (count / 8).max(2) };
    let near = |array: &&[*mut u8]| {
        let parts = array.chunks_exact(eighth);
        parts
            .filter(|part| is_near(part[0], part[eighth - 1], bytes))
            .count()
    };
    arrays.iter().map(near).sum::<usize>() * eighth * 4 >= count
}

/// As [`may_have_whole`], for two sheaves and an array. A function of its own to save stack.
#[inline(never)]
fn may_have_whole_in<P: Platform>(
    cache: &KmemCache<P>,
    older: &Sheaf,
    newer: &Sheaf,
    objects: &[*mut u8],
) -> bool {
    let parts = [older.objects(), newer.objects(), objects];
    may_have_whole(
        &parts,
        cache.geometry.objects as usize,
        cache.geometry.bytes(),
    )
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
    let here = |&&object: &&*mut u8| is_near(object, objects[0], bytes);
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
pub(crate) fn is_near(a: *mut u8, b: *mut u8, bytes: usize) -> bool {
    (a as usize ^ b as usize) < bytes
}

/// Objects that stay in sheaves of `capacity` when room is made, at most.
fn retained_limit(capacity: usize) -> usize {
    capacity * 3 / 4
}

/// How many of an array's first objects to evict, so that sheaves of `capacity` have a quarter free
/// again. Objects of one slab of `bytes` bytes stay together: all of them go, or all wait for
/// objects that may follow. If whole slabs were freed (`whole`), only the last slab's objects wait:
/// the next slab then begins where a sheaf does.
#[inline(never)]
fn eviction_count(objects: &[*mut u8], whole: bool, capacity: usize, bytes: usize) -> usize {
    let (len, most) = (objects.len(), retained_limit(capacity));
    let Some(&last) = objects.last() else {
        return 0;
    };
    let with_last = |&&object: &&*mut u8| is_near(object, last, bytes);
    let start = len - objects.iter().rev().take_while(with_last).count();
    let may_wait = len - start <= most;
    if whole && may_wait {
        return start;
    }
    if len <= most {
        return 0;
    }
    let least = len - capacity / 2;
    if least > start {
        return if may_wait { start } else { least };
    }
    let here = |&&object: &&*mut u8| is_near(object, objects[least - 1], bytes);
    least + objects[least..].iter().take_while(here).count()
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
