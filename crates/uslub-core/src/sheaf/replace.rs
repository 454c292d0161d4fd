//! Replaces a CPU's empty or full main sheaf: the slow path of single allocations and frees.
//!
//! A sheaf moves by a compare-and-swap of one slot. A thread *detaches* a sheaf by putting a
//! sentinel (0 in the spare slot) in its place. It then owns the sheaf without a lock, and
//! *installs* a sheaf on whichever CPU it runs then. No lock is held while slabs are changed or the
//! system is asked for memory.
//!
//! Allocation, main empty:
//!
//! | spare | barn | action |
//! |---|---|---|
//! | has objects | – | spare becomes main |
//! | none or empty | has a full sheaf | it becomes main |
//! | none or empty | none | an empty sheaf is refilled from slabs and becomes main |
//!
//! Free, main full:
//!
//! | spare | barn | action |
//! |---|---|---|
//! | has room | – | spare becomes main, main spare |
//! | none | – | an empty sheaf (the barn's or a new one) becomes main, main spare |
//! | full | has room | spare goes to the barn, an empty sheaf becomes main, main spare |
//! | full | full | spare is flushed to slabs and becomes main, main spare |
//!
//! The emptied or displaced sheaf is installed after its successor is in the slot. If another
//! thread was faster, the sheaf goes to the first place with room: main, spare, barn. Failing all
//! three, its objects go to their slabs.

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::misuse::Misuse;
use crate::percpu::sheaf::{self, Sheaf};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::{RECLAIM_TRIES, SLOT_TRIES};
use crate::sheaf::spill::Spill;
use crate::slab::node::SlabList;
use crate::slab::take::Refill;

impl<P: Platform> Allocator<P> {
    /// Peeks at this CPU's slot; without a region it holds the stopped sentinel.
    #[inline]
    pub(crate) fn peek(&self, slot: crate::percpu::Slot) -> usize {
        self.table.here(self.platform.cpu()).peek(slot)
    }

    #[inline]
    pub(crate) fn compare_exchange_slot(
        &self,
        slot: crate::percpu::Slot,
        old: usize,
        new: usize,
    ) -> bool {
        // SAFETY: our table; callers own the sheaves that they put in.
        unsafe { self.platform.compare_exchange(&self.table, slot, old, new) }
    }

    /// Slow path of an allocation; null without memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_slow(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        let object = self.alloc_or_reclaim(cache, gfp);
        self.end_allocation(gfp);
        object
    }

    #[inline]
    fn alloc_or_reclaim(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        if cache.is_destroyed() {
            self.allocation_after_end(cache);
        }
        if gfp.may_spin() {
            self.drain_deferred(cache);
        }
        for attempt in 0.. {
            let object = self.alloc_once(cache, gfp);
            if !object.is_null()
                || (attempt >= RECLAIM_TRIES && !gfp.contains(Gfp::NOFAIL))
                || !self.reclaim_for(cache, gfp)
            {
                return object;
            }
        }
        core::ptr::null_mut()
    }

    /// Ends the process: an allocation from a destroyed cache.
    #[cold]
    #[inline(never)]
    fn allocation_after_end(&self, cache: &KmemCache<P>) -> ! {
        Misuse::Ended(cache.name(), "allocation").fatal(&self.platform)
    }

    #[inline(never)]
    pub(crate) fn alloc_once(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        if self.platform.percpu_usable() {
            for _ in 0..SLOT_TRIES {
                // SAFETY: our table.
                let object = unsafe { self.platform.pop(&self.table, cache.id.main()) };
                if !object.is_null() {
                    return object;
                }
                let main = self.peek(cache.id.main());
                if main == sheaf::stopped() {
                    if gfp.may_map() && self.region_is_missing() && self.make_region() {
                        continue;
                    }
                    break;
                }
                if main & 1 != 0 || !sheaf::top_is_empty(main) {
                    continue;
                }
                let Some(mut sheaf) = self.replace_empty_main(cache, main, gfp) else {
                    break;
                };
                let object = sheaf.pop();
                self.install_filled(cache, sheaf, gfp);
                if let Some(object) = object {
                    self.count(cache, StatItem::AllocFastpath, 1);
                    return object;
                }
            }
        }
        self.alloc_from_slab(cache, gfp)
    }

    /// Whether this thread may use its CPU's slots; makes the CPU's region if necessary.
    pub(crate) fn has_slots(&self, gfp: Gfp) -> bool {
        self.platform.percpu_usable()
            && (!self.region_is_missing() || (gfp.contains(Gfp::KERNEL) && self.make_region()))
    }

    /// Whether this CPU has no region yet (a stopped CPU has one).
    pub(crate) fn region_is_missing(&self) -> bool {
        self.table.region(self.platform.cpu()).is_none()
    }

    /// Allocates one object directly from a slab.
    fn alloc_from_slab(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        let mut object = [core::ptr::null_mut()];
        if self.refill_objects(cache, &mut object, 1, gfp) == 1 {
            self.count(cache, StatItem::AllocSlowpath, 1);
        }
        object[0]
    }

    /// Replaces an empty main sheaf: returns a sheaf with objects, which the caller owns: the
    /// spare, one from the barn, or a refilled one.
    fn replace_empty_main(&self, cache: &KmemCache<P>, main: usize, gfp: Gfp) -> Option<Sheaf> {
        let spare = self.peek(cache.id.spare());
        let mut empty = None;
        if let Some(sheaf) = self.detach_spare(cache, spare) {
            if !sheaf.is_empty() {
                self.on_swap(cache);
                return Some(self.adjust_capacity(cache, sheaf));
            }
            empty = Some(sheaf);
        }
        if let Some(full) = self.barn_get_full(cache, &mut empty, gfp) {
            if let Some(empty) = empty {
                self.install_empty(cache, empty, gfp);
            }
            return Some(full);
        }
        if cache.tuning.refill_needs_blocking == 1 && !gfp.may_map() {
            // `refill_needs_blocking=1`: a caller that may not ask the system takes single objects
            // from slabs.
            if let Some(empty) = empty {
                self.install_empty(cache, empty, gfp);
            }
            return None;
        }
        let mut sheaf = empty
            .or_else(|| self.detach_main(cache, main))
            .or_else(|| self.empty_sheaf(cache, gfp))?;
        sheaf = self.adjust_capacity(cache, sheaf);
        if sheaf.is_full() {
            return Some(sheaf);
        }
        let room = sheaf.room();
        let mut most = room.len();
        if main == sheaf::bootstrap() {
            most -= usize::from(cache.fill_skew).min(most / 2);
        }
        let mut spill = Spill::new();
        let overflow = spill.overflow_of(cache);
        let mut refill = Refill::new(cache, &mut room[..most], most, gfp, overflow);
        self.refill(&mut refill);
        let n = refill.filled;
        // The newest object leaves first: with the lowest address on top, a program's addresses
        // rise.
        room[..n].reverse();
        sheaf.grow(n);
        self.count(cache, StatItem::SheafRefill, n);
        self.install_spilled(cache, spill, gfp);
        if n == 0 {
            self.install_empty(cache, sheaf, gfp);
            return None;
        }
        Some(sheaf)
    }

    /// Detaches the main sheaf with the top `main`, if it is still there and no sentinel.
    pub(crate) fn detach_main(&self, cache: &KmemCache<P>, main: usize) -> Option<Sheaf> {
        (main != sheaf::bootstrap()
            && self.compare_exchange_slot(cache.id.main(), main, sheaf::bootstrap()))
        // SAFETY: just taken out of its slot, and no sentinel.
        .then(|| unsafe { Sheaf::from_top(main) })
    }

    /// Detaches the spare sheaf with the top `spare`, if it is still there.
    pub(crate) fn detach_spare(&self, cache: &KmemCache<P>, spare: usize) -> Option<Sheaf> {
        if spare == 0 || spare & 1 != 0 || spare == sheaf::stopped() {
            return None;
        }
        self.compare_exchange_slot(cache.id.spare(), spare, 0)
            // SAFETY: just taken out of its slot, and no sentinel.
            .then(|| unsafe { Sheaf::from_top(spare) })
    }

    /// An empty sheaf from the barn, or a new one.
    pub(crate) fn empty_sheaf(&self, cache: &KmemCache<P>, gfp: Gfp) -> Option<Sheaf> {
        if let Some(empty) = self.barn_get_empty(cache, gfp) {
            return Some(self.adjust_capacity(cache, empty));
        }
        self.new_sheaf(cache, gfp)
    }

    /// Allocates a new sheaf.
    #[inline(never)]
    pub(crate) fn new_sheaf(&self, cache: &KmemCache<P>, gfp: Gfp) -> Option<Sheaf> {
        let window = self.meta.window(&self.platform, gfp)?;
        self.count(cache, StatItem::SheafAlloc, 1);
        let capacity = self.wanted_capacity(cache);
        self.account_made(cache, capacity);
        // SAFETY: a window of ours, which is never freed.
        let mut sheaf = unsafe { Sheaf::new(window, capacity, cache.id.index()) };
        self.prefetch_room(&mut sheaf);
        Some(sheaf)
    }

    /// Installs a sheaf with objects where allocations find it.
    pub(crate) fn install_filled(&self, cache: &KmemCache<P>, sheaf: Sheaf, gfp: Gfp) {
        if sheaf.is_empty() {
            return self.install_empty(cache, sheaf, gfp);
        }
        let top = sheaf.into_top();
        let main = self.peek(cache.id.main());
        if main & 1 == 0
            && main != sheaf::stopped()
            && sheaf::top_is_empty(main)
            && self.compare_exchange_slot(cache.id.main(), main, top)
        {
            if main != sheaf::bootstrap() {
                // SAFETY: just taken out of its slot, and no sentinel.
                self.install_empty(cache, unsafe { Sheaf::from_top(main) }, gfp);
            }
            return;
        }
        if self.compare_exchange_slot(cache.id.spare(), 0, top) {
            return;
        }
        // SAFETY: in no slot, so this thread still owns it.
        let sheaf = unsafe { Sheaf::from_top(top) };
        self.store_or_flush(cache, sheaf, gfp);
    }

    /// Installs an empty sheaf as the spare, or stores it in the barn, or frees it.
    pub(crate) fn install_empty(&self, cache: &KmemCache<P>, sheaf: Sheaf, gfp: Gfp) {
        if !sheaf.is_empty() {
            // It filled up between the peek and the detach.
            return self.store_or_flush(cache, sheaf, gfp);
        }
        self.install_drained(cache, sheaf, gfp);
    }

    /// As `install_empty`, for a sheaf that is surely empty.
    #[inline(never)]
    fn install_drained(&self, cache: &KmemCache<P>, sheaf: Sheaf, gfp: Gfp) {
        let top = self.adjust_capacity(cache, sheaf).into_top();
        if self.compare_exchange_slot(cache.id.spare(), 0, top) {
            return;
        }
        // SAFETY: in no slot, so this thread still owns it.
        let sheaf = unsafe { Sheaf::from_top(top) };
        if let Err(sheaf) = self.barn_put_empty(cache, sheaf, gfp) {
            self.free_sheaf(cache, sheaf, gfp);
        }
    }

    /// Stores a full sheaf in the barn if there is room; otherwise frees its objects to the slabs.
    pub(crate) fn store_or_flush(&self, cache: &KmemCache<P>, sheaf: Sheaf, gfp: Gfp) {
        let mut sheaf = sheaf;
        if sheaf.is_full() {
            match self.barn_put(cache, sheaf, gfp) {
                Ok(()) => return,
                Err(back) => sheaf = back,
            }
        }
        self.flush_sheaf(cache, &mut sheaf, gfp);
        self.install_drained(cache, sheaf, gfp);
    }

    /// Frees the objects of a sheaf to their slabs.
    #[inline(always)]
    pub(crate) fn flush_sheaf(&self, cache: &KmemCache<P>, sheaf: &mut Sheaf, gfp: Gfp) {
        let mut gone = SlabList::new();
        self.flush_sheaf_but_keep(cache, sheaf, &mut gone, gfp);
        self.discard_list(cache, gone);
    }

    /// As [`flush_sheaf`](Self::flush_sheaf), but slabs that must go back to the page layer go to
    /// `gone`.
    #[inline(always)]
    pub(crate) fn flush_sheaf_but_keep(
        &self,
        cache: &KmemCache<P>,
        sheaf: &mut Sheaf,
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        self.count(cache, StatItem::SheafFlush, sheaf.len());
        self.push_to_slabs(cache, sheaf.objects_mut(), gone, gfp);
        sheaf.truncate(0);
    }

    /// Frees an empty sheaf.
    pub(crate) fn free_sheaf(&self, cache: &KmemCache<P>, sheaf: Sheaf, gfp: Gfp) {
        self.count(cache, StatItem::SheafFree, 1);
        self.account_freed(cache, sheaf.capacity());
        self.meta.give_window(sheaf.into_window(), gfp.may_spin());
    }

    /// Slow path of a free.
    #[cold]
    pub(crate) fn free_slow(&self, cache: &KmemCache<P>, object: *mut u8, gfp: Gfp) {
        if gfp.may_spin() {
            self.drain_deferred(cache);
        }
        if self.platform.percpu_usable() && self.is_cacheable_here(cache, object) {
            for _ in 0..SLOT_TRIES {
                // SAFETY: our table; the object is being freed.
                if unsafe { self.platform.push(&self.table, cache.id.main(), object) } {
                    return;
                }
                let main = self.peek(cache.id.main());
                if main == sheaf::stopped() {
                    if gfp.may_map() && self.region_is_missing() && self.make_region() {
                        continue;
                    }
                    break;
                }
                if main & 1 != 0 || !sheaf::top_is_full(main) {
                    continue;
                }
                let mut gone = SlabList::new();
                let Some(mut sheaf) = self.replace_full_main(cache, &mut gone, gfp) else {
                    break;
                };
                if sheaf.is_full() {
                    // It filled up between the peek and the detach.
                    self.store_or_flush(cache, sheaf, gfp);
                    self.discard_list(cache, gone);
                    continue;
                }
                sheaf.push(object);
                self.count(cache, StatItem::FreeFastpath, 1);
                self.install_with_room(cache, sheaf, gfp);
                self.discard_list(cache, gone);
                if gfp.contains(Gfp::KERNEL) {
                    self.decay_if_due();
                }
                return;
            }
        }
        self.count(cache, StatItem::FreeSlowpath, 1);
        self.free_to_slabs(cache, &mut [object], gfp);
    }

    /// Replaces a full main sheaf: returns a sheaf with room, which the caller owns: the spare, an
    /// empty one, or the spare after an eviction. Slabs that must go back to the page layer go to
    /// `gone`.
    #[inline]
    fn replace_full_main(
        &self,
        cache: &KmemCache<P>,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> Option<Sheaf> {
        let spare = self.peek(cache.id.spare());
        let spare_is_full = spare != 0 && spare & 1 == 0 && sheaf::top_is_full(spare);
        if !spare_is_full && let Some(sheaf) = self.detach_spare(cache, spare) {
            return Some(self.adjust_capacity(cache, sheaf));
        }
        if !spare_is_full {
            return self.empty_sheaf(cache, gfp);
        }
        if self.barn_is_full(cache) {
            self.on_full_barn(cache);
            let sheaf = self.detach_spare(cache, spare)?;
            return Some(self.evict_for_one(cache, sheaf, gone, gfp));
        }
        let sheaf = self.detach_spare(cache, spare)?;
        match self.barn_replace_full(cache, sheaf, gfp) {
            Ok(Some(empty)) => Some(self.adjust_capacity(cache, empty)),
            Ok(None) => self.new_sheaf(cache, gfp),
            Err(sheaf) => Some(self.evict_for_one(cache, sheaf, gone, gfp)),
        }
    }

    /// Installs a sheaf with room as main, and finds a place for the sheaf that it displaces.
    pub(crate) fn install_with_room(&self, cache: &KmemCache<P>, sheaf: Sheaf, gfp: Gfp) {
        let top = sheaf.into_top();
        let main = self.peek(cache.id.main());
        let mut other = top;
        if main & 1 == 0
            && main != sheaf::stopped()
            && sheaf::top_is_full(main)
            && self.compare_exchange_slot(cache.id.main(), main, top)
        {
            other = main;
        }
        if other == sheaf::bootstrap() || self.compare_exchange_slot(cache.id.spare(), 0, other) {
            return;
        }
        // SAFETY: taken out of its slot, or never put into one; no sentinel.
        let sheaf = unsafe { Sheaf::from_top(other) };
        self.store_or_flush(cache, sheaf, gfp);
    }
}
