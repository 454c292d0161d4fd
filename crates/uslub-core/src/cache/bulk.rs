//! Many objects at once.
//!
//! Each slow path is indented under its caller:
//!
//! ```text
//! alloc_bulk(n)                     n = 1: alloc
//! └ alloc_many                      main has n objects: one sequence
//!   └ alloc_bulk_slow
//!     ├ alloc_bulk_from_new         nothing else has objects: whole new slabs
//!     ├ alloc_bulk_from_all         main, spare, full sheaves of the barn
//!     ├ alloc_once                  a few are missing: refill a sheaf, the next bulks use it too
//!     ├ alloc_bulk_from_slabs       the rest, straight into the array
//!     ├ reclaim_for                 memory is short: free some and try again
//!     └ finish_bulk                 zero all, or free what a failed bulk got
//!
//! free_bulk(n)                      n = 1: free
//! └ free_many                       all in the cache's range, main has room: one sequence
//!   └ free_scattered
//!     ├ free_large_slabs            more than both sheaves hold: whole slabs, if large
//!     ├ push_all                    all ours by the page map, main has room
//!     └ free_bulk_slow              drop foreign and remote objects, fill sheaves and barn
//!       └ free_bulk_rest            whole slabs, if small
//!         ├ free_with_full_sheaves  a few are left: evict from this CPU's sheaves
//!         └ free_to_slabs
//! ```
//!
//! A bulk looks for whole slabs in its array once. Large slabs leave first: their objects would
//! cost more on their way through sheaves. Small slabs leave last: sheaves are cheaper, and a barn
//! grows by the sheaves that it rejects. An eviction then looks at what sheaves held. Below,
//! `push_to_slabs` only compares neighbours in its array, for flushes. Any thread may call.

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::slot::{SlotState, Top};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::{BULK_COPY_CHECK_MIN, BULK_REFILL_PART, BULK_WHOLE_SLAB_MIN, RECLAIM_TRIES};
use crate::slab::whole_slab::{Whose, same_slab};
use crate::slab::within::all_in_range;

impl<P: Platform> Allocator<P> {
    /// Allocates `out.len()` objects, all or none; returns whether it did.
    ///
    /// Objects that the CPU's sheaves and the barn lack come from slabs straight into `out`,
    /// without passing through a sheaf.
    #[inline]
    pub fn alloc_bulk(&self, cache: &KmemCache<P>, gfp: Gfp, out: &mut [*mut u8]) -> bool {
        match out {
            [] => true,
            [one] => {
                *one = self.alloc(cache, gfp);
                !one.is_null()
            }
            out => self.alloc_many(cache, gfp, out),
        }
    }

    pub(crate) fn alloc_many(&self, cache: &KmemCache<P>, gfp: Gfp, out: &mut [*mut u8]) -> bool {
        if gfp.contains(Gfp::ZERO) && !self.may_zero(cache) {
            return false;
        }
        // SAFETY: our table.
        if !unsafe { self.platform.pop_many(&self.table, cache.id.main(), out) } {
            return self.alloc_bulk_slow(cache, gfp, out);
        }
        if gfp.contains(Gfp::ZERO) {
            out.iter()
                .for_each(|&object| self.zero_object(cache, object));
        }
        true
    }

    #[cold]
    pub(crate) fn alloc_bulk_slow(
        &self,
        cache: &KmemCache<P>,
        gfp: Gfp,
        out: &mut [*mut u8],
    ) -> bool {
        if cache.is_debugged() {
            return self.alloc_bulk_debugged(cache, gfp, out);
        }
        // Prefetch: the first write to it comes late.
        self.platform.prefetch_lines(out);
        if gfp.may_spin() {
            self.drain_deferred(cache);
        }
        let mut filled = if out.len() * BULK_REFILL_PART > cache.capacity
            && self.only_new_slabs_are_left(cache)
        {
            self.alloc_bulk_from_new(cache, out)
        } else {
            self.alloc_bulk_from_all(cache, gfp, out)
        };
        // For a few objects, refill a sheaf: the next bulks find the others there.
        while filled < out.len()
            && (out.len() - filled) * BULK_REFILL_PART <= cache.capacity
            && self.has_slots(gfp)
        {
            let object = self.alloc_once(cache, gfp);
            if object.is_null() {
                break;
            }
            out[filled] = object;
            filled += 1;
        }
        for attempt in 0.. {
            if filled < out.len() {
                filled += self.alloc_bulk_from_slabs(cache, gfp, &mut out[filled..]);
            }
            // Reclaim here: deeper calls leave less stack.
            if filled == out.len()
                || (attempt >= RECLAIM_TRIES && !gfp.contains(Gfp::NOFAIL))
                || !self.reclaim_for(cache, gfp)
            {
                break;
            }
        }
        let done = self.finish_bulk(cache, gfp, out, filled);
        self.end_allocation(gfp);
        done
    }

    /// Takes whole new slabs, if no other place has objects; returns the number of objects.
    #[inline(never)]
    pub(crate) fn alloc_bulk_from_new(&self, cache: &KmemCache<P>, out: &mut [*mut u8]) -> usize {
        self.on_barn_access(cache, true);
        self.record_consumer(cache);
        let filled = self.alloc_entire_slabs(cache, 0, out);
        self.count(cache, StatItem::BarnGetFail, 1);
        self.count(cache, StatItem::AllocSlowpath, filled);
        filled
    }

    /// Takes objects from sheaves; returns how many.
    #[inline(never)]
    pub(crate) fn alloc_bulk_from_all(
        &self,
        cache: &KmemCache<P>,
        gfp: Gfp,
        out: &mut [*mut u8],
    ) -> usize {
        if !self.has_slots(gfp) {
            return 0;
        }
        let filled = self.take_from_main(cache, out);
        let taken = self.take_from_sheaves(cache, gfp, &mut out[filled..]);
        self.count(cache, StatItem::AllocFastpath, taken);
        filled + taken
    }

    /// Takes objects from slabs; returns how many.
    #[inline(never)]
    pub(crate) fn alloc_bulk_from_slabs(
        &self,
        cache: &KmemCache<P>,
        gfp: Gfp,
        out: &mut [*mut u8],
    ) -> usize {
        let n = self.refill_objects(cache, out, out.len(), gfp);
        self.count(cache, StatItem::AllocSlowpath, n);
        n
    }

    /// Ends a bulk with `filled` objects: zeroes all objects, or frees the objects of a failed
    /// bulk. Returns whether the bulk is complete.
    #[inline(never)]
    pub(crate) fn finish_bulk(
        &self,
        cache: &KmemCache<P>,
        gfp: Gfp,
        out: &mut [*mut u8],
        filled: usize,
    ) -> bool {
        if filled < out.len() {
            self.count(cache, StatItem::FreeSlowpath, filled);
            self.free_to_slabs(cache, &mut out[..filled], gfp);
            return false;
        }
        if gfp.contains(Gfp::ZERO) {
            out.iter()
                .for_each(|&object| self.zero_object(cache, object));
        }
        true
    }

    /// Whether this CPU's sheaves, the barns and the node's lists have no object; may be stale.
    pub(crate) fn only_new_slabs_are_left(&self, cache: &KmemCache<P>) -> bool {
        let (1, Some(region)) = (self.nr_nodes(), self.platform.region_here(&self.table)) else {
            return false;
        };
        let node = cache.node(0);
        let has_none = |slot| SlotState::sheaf_in(region.peek(slot)).is_none_or(Top::is_empty);
        has_none(cache.id.main())
            && has_none(cache.id.spare())
            && cache.barns().all(|barn| barn.nr_full() == 0)
            && node.lists_nothing(cache.has_reserve())
    }

    /// Frees all objects of an array, as [`free`](Self::free) does; does not keep the array's
    /// order.
    ///
    /// # Safety
    ///
    /// No object is there twice, and nobody uses the objects any longer.
    #[inline]
    pub unsafe fn free_bulk(&self, cache: &KmemCache<P>, objects: &mut [*mut u8]) {
        // SAFETY: passed on.
        unsafe { self.free_bulk_with(cache, objects, cache.free_gfp) };
    }

    /// As [`free_bulk`](Self::free_bulk), in the context `gfp`.
    ///
    /// # Safety
    ///
    /// As for [`free_bulk`](Self::free_bulk).
    #[inline]
    pub unsafe fn free_bulk_with(&self, cache: &KmemCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        match objects {
            [] => {}
            // SAFETY: passed on.
            [one] => unsafe { self.free_with(cache, *one, gfp) },
            objects => self.free_many(cache, objects, gfp),
        }
    }

    pub(crate) fn free_many(&self, cache: &KmemCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        let done = if objects.len() >= BULK_COPY_CHECK_MIN {
            self.push_checked(cache, objects)
        } else {
            let bounds = cache.range.bounds(&self.zone.arena);
            all_in_range(objects, bounds) && self.push_all(cache, objects)
        };
        if !done {
            self.free_scattered(cache, objects, gfp);
        }
    }

    /// As `push_all`, with the range check during the copy; false also if the platform cannot do
    /// this. Not inlined, so that it need not save its caller's values.
    #[inline(never)]
    pub(crate) fn push_checked(&self, cache: &KmemCache<P>, objects: &[*mut u8]) -> bool {
        let (main, bounds) = (cache.id.main(), cache.range.bounds(&self.zone.arena));
        self.nr_nodes() == 1
            // SAFETY: our table; the caller frees the objects, and all addresses in the range are
            // the cache's.
            && unsafe { self.platform.push_many_checked(&self.table, main, objects, bounds) }
    }

    /// Slow path of `free_many`: the main sheaf is too full, an address is outside the cache's
    /// address range, or the check during the copy is unavailable.
    #[cold]
    pub(crate) fn free_scattered(&self, cache: &KmemCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        if cache.is_debugged() {
            return self.free_bulk_debugged(cache, objects, gfp);
        }
        let left = self.free_large_slabs(cache, objects, gfp);
        if left == 0 {
            return;
        }
        let rest = &mut objects[..left];
        let ours = self.all_of(cache, rest);
        if !(ours && self.push_all(cache, rest)) {
            self.free_bulk_slow(cache, rest, gfp, ours);
        }
    }

    /// Frees the whole slabs of an array, if slabs are large and this CPU's sheaves lack room, and
    /// moves the rest to its start. Returns the length of the rest, whose owner is not checked yet.
    pub(crate) fn free_large_slabs(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        gfp: Gfp,
    ) -> usize {
        let may_be_whole = has_large_slabs(cache)
            && objects.len() >= cache.geometry.objects as usize
            && has_neighbours(cache, objects);
        if !may_be_whole || (self.has_slots(gfp) && objects.len() <= self.room_of_own(cache)) {
            return objects.len();
        }
        let how = self.emptying(cache, Whose::Anyones, objects.len());
        let left = self.free_whole_slabs(cache, objects, how, gfp);
        self.count(cache, StatItem::FreeSlowpath, objects.len() - left);
        left
    }

    /// Pushes objects, all of them the cache's, onto this CPU's main sheaf; false if it lacks room.
    #[inline]
    pub(crate) fn push_all(&self, cache: &KmemCache<P>, objects: &[*mut u8]) -> bool {
        self.nr_nodes() == 1
            // SAFETY: our table; the caller frees the objects.
            && unsafe { self.platform.push_many(&self.table, cache.id.main(), objects) }
    }

    /// As [`free_bulk`](Self::free_bulk), without a check of each object. An object of another
    /// cache is detected only when it leaves the sheaf for its slab, and may be allocated before.
    ///
    /// # Safety
    ///
    /// As for [`free_bulk`](Self::free_bulk), and all objects came from this cache.
    #[inline(always)]
    pub unsafe fn free_bulk_unchecked(&self, cache: &KmemCache<P>, objects: &mut [*mut u8]) {
        match *objects {
            [] => {}
            [one] => {
                // SAFETY: passed on.
                if !unsafe { self.free_own_fast(cache, one) } {
                    self.free_checked(cache, one, cache.free_gfp);
                }
            }
            _ => self.free_many_unchecked(cache, objects),
        }
    }

    pub(crate) fn free_many_unchecked(&self, cache: &KmemCache<P>, objects: &mut [*mut u8]) {
        if !self.push_all(cache, objects) {
            self.free_unchecked_slow(cache, objects, cache.free_gfp);
        }
    }

    /// Whether all objects lie in slabs of the cache.
    #[inline]
    pub(crate) fn all_of(&self, cache: &KmemCache<P>, objects: &[*mut u8]) -> bool {
        let (arena, bytes) = (&self.zone.arena, cache.geometry.bytes());
        // One slab: one lookup in the page map, instead of a range check for each object.
        let one_slab = matches!(objects, [first, .., last] if same_slab(*first, *last, bytes));
        (!one_slab && all_in_range(objects, cache.range.bounds(arena)))
            || arena.all_of(objects, cache.id, bytes)
    }

    /// The main sheaf lacks room, or an object may belong to another cache (`all_ours` is false).
    #[cold]
    pub(crate) fn free_bulk_slow(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        gfp: Gfp,
        all_ours: bool,
    ) {
        let mut left = objects.len();
        if !all_ours {
            left = self.gather_ours(cache, objects);
        }
        if self.nr_nodes() > 1 {
            // Objects of other nodes go to their slabs at once.
            let ours = left;
            left = gather(&mut objects[..ours], |object| {
                self.is_cacheable_here(cache, object)
            });
            self.count(cache, StatItem::FreeSlowpath, ours - left);
            self.free_to_slabs(cache, &mut objects[left..ours], gfp);
        }
        let done = self.put_into_own(cache, gfp, &objects[..left]);
        self.free_bulk_rest(cache, &mut objects[done..left], gfp);
    }

    /// As `free_bulk_slow`, but checks only the objects that find no room in sheaves.
    #[cold]
    pub(crate) fn free_unchecked_slow(
        &self,
        cache: &KmemCache<P>,
        objects: &mut [*mut u8],
        gfp: Gfp,
    ) {
        if cache.is_debugged() {
            return self.free_bulk_debugged(cache, objects, gfp);
        }
        let left = self.free_large_slabs(cache, objects, gfp);
        if left == 0 {
            return;
        }
        let whole = left < objects.len();
        let objects = &mut objects[..left];
        // Whole slabs leave a small rest, so the check costs little.
        if whole || self.nr_nodes() > 1 {
            return self.free_bulk_slow(cache, objects, gfp, false);
        }
        let done = self.put_into_own(cache, gfp, objects);
        let rest = &mut objects[done..];
        let ours = self.gather_ours(cache, rest);
        self.free_bulk_rest(cache, &mut rest[..ours], gfp);
    }

    /// The end of a bulk free: the objects, all of them the cache's, found no room in sheaves.
    pub(crate) fn free_bulk_rest(&self, cache: &KmemCache<P>, objects: &mut [*mut u8], gfp: Gfp) {
        if objects.is_empty() {
            return;
        }
        self.count(cache, StatItem::FreeSlowpath, objects.len());
        let near = has_neighbours(cache, objects);
        let mut left = objects.len();
        if near && !has_large_slabs(cache) {
            let how = self.emptying(cache, Whose::Ours, objects.len());
            left = self.free_whole_slabs(cache, objects, how, gfp);
        }
        if left == 0 {
            return;
        }
        let rest = &mut objects[..left];
        if !(near && self.has_slots(gfp) && self.free_with_full_sheaves(cache, rest, gfp)) {
            self.free_to_slabs(cache, rest, gfp);
        }
    }

    /// Moves the cache's objects to the start and reports each other object; returns how many are
    /// the cache's.
    pub(crate) fn gather_ours(&self, cache: &KmemCache<P>, objects: &mut [*mut u8]) -> usize {
        if self.all_of(cache, objects) {
            objects.len()
        } else {
            gather(objects, |object| self.is_object_of(cache, object))
        }
    }
}

/// Whether neighbours in an array seem to lie in one slab: only these can form whole slabs.
fn has_neighbours<P: Platform>(cache: &KmemCache<P>, objects: &[*mut u8]) -> bool {
    let near = |a: *mut u8, b: *mut u8| same_slab(a, b, cache.geometry.bytes());
    matches!(objects, [a, b, ..] if near(*a, *b)) || matches!(objects, [.., a, b] if near(*a, *b))
}

/// Whether slabs are cheaper to free whole than their objects are in sheaves.
fn has_large_slabs<P: Platform>(cache: &KmemCache<P>) -> bool {
    cache.geometry.objects as usize >= BULK_WHOLE_SLAB_MIN
}

/// Moves the objects that `wanted` accepts to the start; returns how many there are.
fn gather(objects: &mut [*mut u8], wanted: impl Fn(*mut u8) -> bool) -> usize {
    let mut front = 0;
    for at in 0..objects.len() {
        if wanted(objects[at]) {
            objects.swap(at, front);
            front += 1;
        }
    }
    front
}
