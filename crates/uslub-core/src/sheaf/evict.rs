//! Makes room in a CPU's full sheaves.
//!
//! A free that finds both sheaves full, and no room in the barn, evicts objects from them. Whole
//! slabs go first: freeing one touches none of its objects ([`crate::slab::whole_slab`]). Of the
//! others the oldest go, so that the sheaves keep a quarter of room. Objects of one slab stay
//! together: they all go, or all wait for the slab's other objects.
//!
//! The caller owns the sheaves while they are worked on. Slabs that go back to the page layer are
//! collected in `gone`; the caller frees them last, where it has more stack. Callers: `replace`
//! (one object) and `cache::bulk`.

use crate::gfp::Gfp;
use crate::memory::metadata::Scratch;
use crate::percpu::sheaf::Sheaf;
use crate::percpu::slot::{SlotState, Top};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::sheaf::cache::SheafCache;
use crate::slab::base::Base;
use crate::slab::node::SlabList;
use crate::slab::whole_slab::{TOGETHER, Whose, may_have_whole, same_slab};

impl<P: Platform> Base<P> {
    /// Frees objects that found no room, together with the objects of this CPU's full sheaves, and
    /// keeps the newest in the sheaves. Returns whether it did; if not, nothing changed.
    pub(crate) fn free_with_full_sheaves(
        &self,
        cache: &SheafCache<P>,
        objects: &mut [*mut u8],
        gfp: Gfp,
    ) -> bool {
        // Of more objects than both sheaves hold, most would go to their slabs anyway.
        let most = (TOGETHER / 4).min(2 * cache.capacity);
        if cache.keeps_its_freelist() || objects.len() > most {
            return false;
        }
        let Some(newer) = self.detach_local(cache, Top::is_full) else {
            return false;
        };
        let spare = self.peek(cache.id.spare());
        let older = match SlotState::of(spare) {
            SlotState::Absent => self.empty_sheaf(cache, gfp),
            SlotState::Sheaf(top) if top.is_full() => self.detach_spare(cache, spare),
            _ => None,
        };
        let Some(older) = older else {
            self.install_filled(cache, newer, gfp);
            return false;
        };
        let mut gone = SlabList::new();
        let (main, spare, placed) = self.evict(cache, older, newer, objects, &mut gone, gfp);
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
        cache: &SheafCache<P>,
        mut sheaf: Sheaf,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> Sheaf {
        self.flush_whole_slabs(cache, &mut sheaf, gone, gfp);
        let alone = sheaf.is_empty() || cache.keeps_its_freelist();
        let newer = if alone {
            None
        } else {
            self.detach_local(cache, Top::is_full)
        };
        let Some(newer) = newer else {
            self.flush_sheaf_but_keep(cache, &mut sheaf, gone, gfp);
            return self.adjust_capacity(cache, sheaf);
        };
        let (main, spare, _) = self.evict(cache, sheaf, newer, &[], gone, gfp);
        self.install_spare(cache, spare, gfp);
        main
    }

    pub(crate) fn flush_whole_slabs(
        &self,
        cache: &SheafCache<P>,
        sheaf: &mut Sheaf,
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        let held = sheaf.len();
        let how = self.emptying(cache, Whose::Ours, held);
        let left = self.take_whole_slabs(cache, sheaf.objects_mut(), how, gone, gfp);
        self.count(cache, StatItem::SheafFlush, held - left);
        sheaf.truncate(left);
    }

    /// Makes room in two sheaves and appends `objects`: whole slabs are evicted, then the oldest of
    /// the rest. Returns the sheaves, the one with room first, and the number of objects handled.
    ///
    /// The rest keeps its order of arrival. So adjacent objects make whole slabs wherever the first
    /// of them began, since the objects before it have left.
    #[inline(always)]
    pub(crate) fn evict(
        &self,
        cache: &SheafCache<P>,
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

    /// As `evict`, with room for [`TOGETHER`] objects. The newer sheaf is then the one with room.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a record of them takes stack")]
    pub(crate) fn evict_among(
        &self,
        cache: &SheafCache<P>,
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
            for (entry, object) in all[held..].iter_mut().zip(&from[at..at + more]) {
                entry.write(*object);
            }
            (at, held) = (at + more, held + more);
            if at == from.len() {
                (part, at) = (part + 1, 0);
                if part < 3 {
                    continue;
                }
            }
            // SAFETY: the first `held` entries are written.
            let all = unsafe { &mut *(&raw mut all[..held] as *mut [*mut u8]) };
            let how = self.emptying(cache, Whose::Ours, held);
            let left = self.take_whole_slabs_among(cache, all, how, gone, gfp);
            if part == 3 {
                break (all, left);
            }
            // No room left: whole slabs went; without any, the older half is flushed.
            held = left;
            if left == all.len() {
                held = self.flush_half(cache, all, gone, gfp);
                passed -= left - held;
            }
        };
        older.truncate(0);
        newer.truncate(0);
        older = self.adjust_capacity(cache, older);
        newer = self.adjust_capacity(cache, newer);
        let (whole, capacity) = (left < passed, older.capacity() + newer.capacity());
        let first = eviction_count(&all[..left], whole, capacity, cache.geometry.bytes());
        self.push_to_slabs(cache, &mut all[..first], gone, gfp);
        let kept = &all[first..left];
        let flushed = (passed - objects.len()).saturating_sub(kept.len());
        self.count(cache, StatItem::SheafFlush, flushed);
        refill_pair(&mut older, &mut newer, kept);
        (older, newer)
    }

    /// Flushes the older half of an array; returns the length of the rest, now at its start.
    #[inline(always)]
    fn flush_half(
        &self,
        cache: &SheafCache<P>,
        objects: &mut [*mut u8],
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> usize {
        let half = objects.len() / 2;
        self.count(cache, StatItem::SheafFlush, half);
        self.push_to_slabs(cache, &mut objects[..half], gone, gfp);
        objects.copy_within(half.., 0);
        objects.len() - half
    }
}

/// Puts objects into two empty sheaves, in order of arrival; only the older one may become full.
#[inline(always)]
fn refill_pair(older: &mut Sheaf, newer: &mut Sheaf, mut objects: &[*mut u8]) {
    if objects.len() >= newer.capacity() {
        objects = &objects[older.extend_from(objects)..];
    }
    let placed = newer.extend_from(objects);
    debug_assert_eq!(placed, objects.len());
}

/// As [`may_have_whole`], for two sheaves and an array. A function of its own to save stack.
#[inline(never)]
fn may_have_whole_in<P: Platform>(
    cache: &SheafCache<P>,
    older: &Sheaf,
    newer: &Sheaf,
    objects: &[*mut u8],
) -> bool {
    let parts = [older.objects(), newer.objects(), objects];
    let slab = &cache.geometry;
    may_have_whole(&parts, slab.objects as usize, slab.bytes())
}

/// How many of an array's first objects to evict, so that sheaves of `capacity` have a quarter free
/// again. Objects of one slab of `bytes` bytes stay together: all of them go, or all wait for
/// objects that may follow. If whole slabs were freed (`whole`), only the last slab's objects wait:
/// the next slab then begins where a sheaf does.
#[inline(never)]
fn eviction_count(objects: &[*mut u8], whole: bool, capacity: usize, bytes: usize) -> usize {
    let (len, most) = (objects.len(), capacity * 3 / 4);
    let Some(&last) = objects.last() else {
        return 0;
    };
    let with_last = |&&object: &&*mut u8| same_slab(object, last, bytes);
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
    let here = |&&object: &&*mut u8| same_slab(object, objects[least - 1], bytes);
    least + objects[least..].iter().take_while(here).count()
}
