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
//! three, its objects go to their slabs. Callers: `cache`, `kmalloc` and `prefill`.

use crate::gfp::Gfp;
use crate::percpu::Slot;
use crate::percpu::sheaf::{self, Sheaf};
use crate::percpu::slot::{SlotState, Top};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::SLOT_TRIES;
use crate::sheaf::cache::SheafCache;
use crate::sheaf::spill::Spill;
use crate::slab::base::Base;
use crate::slab::node::SlabList;
use crate::slab::take::Refill;
use crate::sync::atomic;
use crate::sync::choice::Choice;

impl<P: Platform> Base<P> {
    /// Peeks at the word of this CPU's slot.
    #[inline]
    pub(crate) fn peek(&self, slot: Slot) -> usize {
        self.table.here(self.platform.cpu()).peek(slot)
    }

    /// Peeks at a slot after an operation on it has failed. `None` if no thread may use the slot;
    /// 0, for another try, if the CPU lacked a region and now has one.
    pub(crate) fn peek_after_miss(&self, slot: Slot, gfp: Gfp) -> Option<usize> {
        self.map_what_is_awaited(gfp);
        let word = self.peek(slot);
        if SlotState::of(word) != SlotState::Stopped {
            return Some(word);
        }
        (self.region_is_missing() && self.make_region(gfp)).then_some(0)
    }

    #[inline]
    fn compare_exchange_slot(&self, slot: Slot, old: usize, new: usize) -> bool {
        // SAFETY: our table; callers own the sheaves that they put in.
        unsafe { self.platform.compare_exchange(&self.table, slot, old, new) }
    }

    /// Detaches the sheaf of a slot whose word was `word`, if it is still there; leaves `nothing`.
    #[inline]
    pub(crate) fn detach(&self, slot: Slot, word: usize, nothing: usize) -> Option<Sheaf> {
        (matches!(SlotState::of(word), SlotState::Sheaf(_))
            && self.compare_exchange_slot(slot, word, nothing))
        // SAFETY: just taken out of its slot.
        .then(|| unsafe { Sheaf::from_top(word) })
    }

    /// Installs a sheaf in a slot whose word was `word`, if this is still so; returns the sheaf
    /// that was there, or `sheaf` as the error.
    #[inline]
    pub(crate) fn replace(
        &self,
        slot: Slot,
        word: usize,
        sheaf: Sheaf,
    ) -> Result<Option<Sheaf>, Sheaf> {
        let top = sheaf.into_top();
        let done = self.compare_exchange_slot(slot, word, top);
        // SAFETY: this thread owns the sheaf that is in no slot, the old or the new one.
        unsafe {
            match SlotState::of(word) {
                _ if !done => Err(Sheaf::from_top(top)),
                SlotState::Sheaf(_) => Ok(Some(Sheaf::from_top(word))),
                _ => Ok(None),
            }
        }
    }

    /// Installs a sheaf in a slot without one (word 0), or gives it back.
    #[inline]
    pub(crate) fn try_install(&self, slot: Slot, sheaf: Sheaf) -> Result<(), Sheaf> {
        self.replace(slot, 0, sheaf).map(drop)
    }

    /// Installs a sheaf as main in place of none or of a `spent` one; as [`replace`](Self::replace)
    /// otherwise.
    #[inline]
    fn replace_main(
        &self,
        cache: &SheafCache<P>,
        sheaf: Sheaf,
        spent: impl FnOnce(Top) -> bool,
    ) -> Result<Option<Sheaf>, Sheaf> {
        let main = self.peek(cache.id.main());
        if SlotState::of(main).is_free_or(spent) {
            self.replace(cache.id.main(), main, sheaf)
        } else {
            Err(sheaf)
        }
    }

    #[inline(never)]
    pub(crate) fn alloc_once(&self, cache: &SheafCache<P>, gfp: Gfp) -> *mut u8 {
        if self.platform.percpu_usable() {
            for _ in 0..SLOT_TRIES {
                // SAFETY: our table.
                let object = unsafe { self.platform.pop(&self.table, cache.id.main()) };
                if !object.is_null() {
                    return object;
                }
                let Some(main) = self.peek_after_miss(cache.id.main(), gfp) else {
                    break;
                };
                if !SlotState::of(main).is_free_or(Top::is_empty) {
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
        self.map_what_is_awaited(gfp);
        self.platform.percpu_usable() && (!self.region_is_missing() || self.make_region(gfp))
    }

    /// Whether this CPU has no region yet (a stopped CPU has one).
    pub(crate) fn region_is_missing(&self) -> bool {
        self.table.region(self.platform.cpu()).is_none()
    }

    /// Allocates one object directly from a slab.
    fn alloc_from_slab(&self, cache: &SheafCache<P>, gfp: Gfp) -> *mut u8 {
        let mut object = [core::ptr::null_mut()];
        if self.refill_objects(cache, &mut object, 1, gfp) == 1 {
            self.count(cache, StatItem::AllocSlowpath, 1);
        }
        object[0]
    }

    /// Replaces an empty main sheaf: returns a sheaf with objects, which the caller owns: the
    /// spare, one from the barn, or a refilled one.
    fn replace_empty_main(&self, cache: &SheafCache<P>, main: usize, gfp: Gfp) -> Option<Sheaf> {
        let spare = self.peek(cache.id.spare());
        let mut empty = None;
        if let Some(sheaf) = self.detach_spare(cache, spare) {
            if !sheaf.is_empty() {
                self.on_swap(cache);
                return Some(self.adjust_capacity(cache, sheaf));
            }
            empty = Some(sheaf);
        }
        let full = self.barn_get_full(cache, &mut empty, gfp);
        // `refill_needs_blocking=1`: a caller that may not ask the system takes single objects from
        // slabs.
        if full.is_some() || (cache.tuning.refill_needs_blocking == 1 && !gfp.may_map()) {
            if let Some(empty) = empty {
                self.install_empty(cache, empty, gfp);
            }
            return full;
        }
        let mut sheaf = empty
            .or_else(|| self.detach(cache.id.main(), main, sheaf::bootstrap()))
            .or_else(|| self.empty_sheaf(cache, gfp))?;
        sheaf = self.adjust_capacity(cache, sheaf);
        if sheaf.is_full() {
            return Some(sheaf);
        }
        let room = sheaf.room();
        let mut most = room.len();
        if SlotState::of(main) == SlotState::Bootstrap {
            most -= usize::from(cache.fill_skew).min(most / 2);
        }
        let mut spill = Spill::new(self, cache, gfp);
        let overflow = spill.overflow();
        let least = (most * cache.tuning.refill_min_percent as usize).div_ceil(100);
        let least = atomic::choose(Choice::Refill { capacity: most }, least).clamp(1, most);
        let mut refill = Refill::new(cache, &mut room[..most], least, gfp, overflow);
        self.refill(&mut refill);
        let n = refill.filled;
        // The newest object leaves first: with the lowest address on top, a program's addresses
        // rise.
        room[..n].reverse();
        sheaf.grow(n);
        self.count(cache, StatItem::SheafRefill, n);
        self.install_spilled(spill, gfp);
        if n == 0 {
            self.install_empty(cache, sheaf, gfp);
            return None;
        }
        Some(sheaf)
    }

    /// Detaches the spare sheaf, if the slot's word is still `spare`.
    pub(crate) fn detach_spare(&self, cache: &SheafCache<P>, spare: usize) -> Option<Sheaf> {
        self.detach(cache.id.spare(), spare, 0)
    }

    /// An empty sheaf from the barn, or a new one.
    pub(crate) fn empty_sheaf(&self, cache: &SheafCache<P>, gfp: Gfp) -> Option<Sheaf> {
        if let Some(empty) = self.barn_get_empty(cache, gfp) {
            return Some(self.adjust_capacity(cache, empty));
        }
        self.new_sheaf(cache, gfp)
    }

    /// Allocates a new sheaf.
    #[inline(never)]
    pub(crate) fn new_sheaf(&self, cache: &SheafCache<P>, gfp: Gfp) -> Option<Sheaf> {
        let Some(window) = self.meta.window(&self.platform, gfp) else {
            self.await_memory(gfp);
            return None;
        };
        self.count(cache, StatItem::SheafAlloc, 1);
        let capacity = self.wanted_capacity(cache);
        self.account_made(cache, capacity);
        // SAFETY: a window of ours, which is never freed.
        let mut sheaf = unsafe { Sheaf::new(window, capacity, cache.id.index()) };
        self.prefetch_room(&mut sheaf);
        Some(sheaf)
    }

    /// Installs a sheaf with objects where allocations find it.
    pub(crate) fn install_filled(&self, cache: &SheafCache<P>, sheaf: Sheaf, gfp: Gfp) {
        if sheaf.is_empty() {
            return self.install_empty(cache, sheaf, gfp);
        }
        match self.replace_main(cache, sheaf, Top::is_empty) {
            Ok(None) => {}
            Ok(Some(empty)) => self.install_empty(cache, empty, gfp),
            Err(sheaf) => self.install_spare(cache, sheaf, gfp),
        }
    }

    /// Installs a sheaf as this CPU's spare if the CPU has none; otherwise stores or flushes it.
    pub(crate) fn install_spare(&self, cache: &SheafCache<P>, sheaf: Sheaf, gfp: Gfp) {
        if let Err(sheaf) = self.try_install(cache.id.spare(), sheaf) {
            self.store_or_flush(cache, sheaf, gfp);
        }
    }

    /// Installs an empty sheaf as the spare, or stores it in the barn, or frees it.
    pub(crate) fn install_empty(&self, cache: &SheafCache<P>, sheaf: Sheaf, gfp: Gfp) {
        if !sheaf.is_empty() {
            // It filled up between the peek and the detach.
            return self.store_or_flush(cache, sheaf, gfp);
        }
        self.install_drained(cache, sheaf, gfp);
    }

    /// As `install_empty`, for a sheaf that is surely empty.
    #[inline(never)]
    fn install_drained(&self, cache: &SheafCache<P>, sheaf: Sheaf, gfp: Gfp) {
        let sheaf = self.adjust_capacity(cache, sheaf);
        if let Err(sheaf) = self.try_install(cache.id.spare(), sheaf)
            && let Err(sheaf) = self.barn_put_empty(cache, sheaf, gfp)
        {
            self.free_sheaf(cache, sheaf, gfp);
        }
    }

    /// Stores a full sheaf in the barn if there is room; otherwise frees its objects to the slabs.
    pub(crate) fn store_or_flush(&self, cache: &SheafCache<P>, sheaf: Sheaf, gfp: Gfp) {
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
    pub(crate) fn flush_sheaf(&self, cache: &SheafCache<P>, sheaf: &mut Sheaf, gfp: Gfp) {
        let mut gone = SlabList::new();
        self.flush_sheaf_but_keep(cache, sheaf, &mut gone, gfp);
        self.discard_list(cache, gone);
    }

    /// As [`flush_sheaf`](Self::flush_sheaf), but slabs that must go back to the page layer go to
    /// `gone`.
    #[inline(always)]
    pub(crate) fn flush_sheaf_but_keep(
        &self,
        cache: &SheafCache<P>,
        sheaf: &mut Sheaf,
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        self.count(cache, StatItem::SheafFlush, sheaf.len());
        self.push_to_slabs(cache, sheaf.objects_mut(), gone, gfp);
        sheaf.truncate(0);
    }

    /// Frees an empty sheaf.
    pub(crate) fn free_sheaf(&self, cache: &SheafCache<P>, sheaf: Sheaf, gfp: Gfp) {
        self.count(cache, StatItem::SheafFree, 1);
        self.account_freed(cache, sheaf.capacity());
        self.meta
            .give_window(&self.platform, sheaf.into_window(), gfp.may_spin());
    }

    /// Slow path of a free.
    #[cold]
    pub(crate) fn free_slow(&self, cache: &SheafCache<P>, object: *mut u8, gfp: Gfp) {
        if gfp.may_spin() {
            self.drain_deferred(cache);
        }
        if cache.is_debugged() {
            return self.debug_free(cache, object, gfp);
        }
        if self.platform.percpu_usable() && self.is_cacheable_here(cache, object) {
            for _ in 0..SLOT_TRIES {
                // SAFETY: our table; the object is being freed.
                if unsafe { self.platform.push(&self.table, cache.id.main(), object) } {
                    return;
                }
                let Some(main) = self.peek_after_miss(cache.id.main(), gfp) else {
                    break;
                };
                if !SlotState::of(main).is_free_or(Top::is_full) {
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
        cache: &SheafCache<P>,
        gone: &mut SlabList,
        gfp: Gfp,
    ) -> Option<Sheaf> {
        let spare = self.peek(cache.id.spare());
        match SlotState::of(spare) {
            SlotState::Sheaf(top) if top.is_full() => {}
            SlotState::Stopped => return None,
            _ => match self.detach_spare(cache, spare) {
                Some(sheaf) => return Some(self.adjust_capacity(cache, sheaf)),
                None => return self.empty_sheaf(cache, gfp),
            },
        }
        let no_room = self.barns_are_full(cache);
        if no_room {
            self.on_full_barns(cache);
        }
        let sheaf = self.detach_spare(cache, spare)?;
        let traded = match no_room {
            true => Err(sheaf),
            false => self.barn_replace_full(cache, sheaf, gfp),
        };
        match traded {
            Ok(Some(empty)) => Some(self.adjust_capacity(cache, empty)),
            Ok(None) => self.new_sheaf(cache, gfp),
            Err(sheaf) => Some(self.evict_for_one(cache, sheaf, gone, gfp)),
        }
    }

    /// Installs a sheaf with room as main, and finds a place for the sheaf that it displaces.
    pub(crate) fn install_with_room(&self, cache: &SheafCache<P>, sheaf: Sheaf, gfp: Gfp) {
        match self.replace_main(cache, sheaf, Top::is_full) {
            Ok(None) => {}
            Ok(Some(other)) | Err(other) => self.install_spare(cache, other, gfp),
        }
    }
}
