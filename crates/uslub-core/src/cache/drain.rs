//! Drain: takes and flushes the sheaves of other CPUs.
//!
//! One thread at a time drains CPUs, under the drain lock. How it takes another CPU's sheaf:
//!
//! | platform | way |
//! |---|---|
//! | lock bits | locks each word |
//! | restartable sequences, with a fence | [stops](crate::percpu::Table::stop) the CPU |
//! | restartable sequences, without a fence | only this CPU's own sheaves, by compare-and-swap |
//!
//! The sheaves are flushed after the drain lock is released; `flushes_in_flight` counts the sheaves
//! between. A drain leaves the words of closed (`percpu::closed`) caches alone: they have no
//! sheaves. Callers: `shrink`, `destroy`, `rcu`, and `kmalloc`, which closes size classes.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::closed::CacheSet;
use crate::percpu::sheaf::{self, Sheaf};
use crate::percpu::sheaf_list::SheafList;
use crate::percpu::slot::{LOCKED, SlotState, Top};
use crate::percpu::{CacheId, Region, Slot, try_lock};
use crate::platform::Platform;
use crate::policy::FLUSH_POLL_MS;
use crate::sync::atomic::{self, AtomicU32};

/// The sheaves that a flush takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainScope {
    /// Sheaves of CPUs that have objects.
    Used,
    /// All sheaves, also empty ones.
    All,
}

/// A slot of a cache, and the word that marks it empty.
pub(crate) type SlotSelector = fn(CacheId) -> (Slot, usize);
/// The slots of main and spare.
const MAIN_AND_SPARE: [SlotSelector; 2] =
    [|id| (id.main(), sheaf::bootstrap()), |id| (id.spare(), 0)];

/// A filter of caches.
pub(crate) type CacheFilter<'a, P> = dyn Fn(&KmemCache<P>) -> bool + 'a;

impl<P: Platform> Allocator<P> {
    /// Flushes the sheaves of all CPUs for the caches that `which` accepts.
    #[inline(never)]
    pub(crate) fn flush_cpus(&self, which: &CacheFilter<'_, P>, take: DrainScope) {
        let mut taken = SheafList::new();
        let used = |region: &Region| take == DrainScope::All || self.is_used(region, which);
        self.take_slots(&used, which, &MAIN_AND_SPARE, &mut taken);
        self.flush_taken(taken);
    }

    /// As [`flush_cpus`](Self::flush_cpus), for CPUs that have objects; does nothing if another
    /// thread drains CPUs.
    #[inline(never)]
    pub(crate) fn try_flush_cpus(&self, which: &CacheFilter<'_, P>) {
        self.try_flush(&|region| self.is_used(region, which), which);
    }

    /// As [`try_flush_cpus`](Self::try_flush_cpus), for CPUs whose regions `used` accepts.
    pub(crate) fn try_flush(&self, used: &dyn Fn(&Region) -> bool, which: &CacheFilter<'_, P>) {
        let mut taken = SheafList::new();
        self.try_while_draining(|| {
            self.take_slots_draining(used, which, &MAIN_AND_SPARE, &mut taken);
        });
        self.flush_taken(taken);
    }

    /// Detaches the sheaves of some slots of all CPUs whose regions `used` accepts.
    #[inline(never)]
    pub(crate) fn take_slots(
        &self,
        used: &dyn Fn(&Region) -> bool,
        which: &CacheFilter<'_, P>,
        slots: &[SlotSelector],
        taken: &mut SheafList,
    ) {
        self.while_draining(|| self.take_slots_draining(used, which, slots, taken));
    }

    /// [`take_slots`](Self::take_slots), under the drain lock.
    #[inline(never)]
    fn take_slots_draining(
        &self,
        used: &dyn Fn(&Region) -> bool,
        which: &CacheFilter<'_, P>,
        slots: &[SlotSelector],
        taken: &mut SheafList,
    ) {
        for cpu in 0..self.table.end() {
            let Some(region) = self.table.region(cpu).filter(|region| used(region)) else {
                continue;
            };
            if self.platform.slots_are_locked() {
                let take = |slot, nothing| take_locked(region, slot, nothing);
                self.take_sheaves(which, slots, take, taken);
            } else if let Some(region) = self.table.stop(&self.platform, cpu) {
                let take = |slot, nothing| take_stopped(region, slot, nothing);
                self.take_sheaves(which, slots, take, taken);
                self.table.resume(cpu);
            } else {
                if self.platform.percpu_usable() {
                    let detach = |slot, nothing| self.detach(slot, self.peek(slot), nothing);
                    let take = |slot, nothing| detach(slot, nothing).map_or(0, Sheaf::into_top);
                    self.take_sheaves(which, slots, take, taken);
                }
                break;
            }
        }
    }

    fn each_cache(&self, which: &CacheFilter<'_, P>, visit: impl FnMut(&KmemCache<P>)) {
        self.caches().filter(|cache| which(cache)).for_each(visit);
    }

    /// Whether a region has objects of the caches that `which` accepts.
    fn is_used(&self, region: &Region, which: &CacheFilter<'_, P>) -> bool {
        let mut used = false;
        self.each_cache(which, |cache| {
            for slot in [cache.id.main(), cache.id.spare()] {
                used |= !SlotState::sheaf_in(region.peek(slot)).is_none_or(Top::is_empty);
            }
        });
        used
    }

    /// Detaches the sheaves of some slots. `take` gets a slot and the word to leave there; it
    /// returns the word that it took.
    fn take_sheaves(
        &self,
        which: &CacheFilter<'_, P>,
        slots: &[SlotSelector],
        take: impl Fn(Slot, usize) -> usize,
        taken: &mut SheafList,
    ) {
        self.each_cache(which, |cache| {
            for (slot, nothing) in slots.iter().map(|slot| slot(cache.id)) {
                if slot != cache.id.rcu() && self.closed.contains(cache.id) {
                    continue;
                }
                add_taken(cache, take(slot, nothing), taken);
            }
        });
    }

    /// Closes caches on all CPUs, and flushes the sheaves that they had there. Returns false, with
    /// nothing closed, if the platform refuses a fence, so that other CPUs would keep theirs.
    pub(crate) fn close_caches(&self, set: CacheSet) -> bool {
        let mut taken = SheafList::new();
        let done = self.while_draining(|| self.close_draining(set, &mut taken));
        self.flush_taken(taken);
        done
    }

    #[inline(never)]
    fn close_draining(&self, set: CacheSet, taken: &mut SheafList) -> bool {
        let fresh = self.closed.insert(set);
        for cpu in 0..self.table.end() {
            let Some(region) = self.table.region(cpu) else {
                continue;
            };
            if self.platform.slots_are_locked() {
                self.close_words(region, fresh, take_locked, taken);
            } else if let Some(region) = self.table.stop(&self.platform, cpu) {
                self.close_words(region, fresh, take_stopped, taken);
                self.table.resume(cpu);
            } else {
                self.open_draining(fresh);
                return false;
            }
        }
        true
    }

    /// Closes the words of caches in one region, by `take`.
    fn close_words(
        &self,
        region: &Region,
        set: CacheSet,
        take: fn(&Region, Slot, usize) -> usize,
        taken: &mut SheafList,
    ) {
        for cache in set.iter().filter_map(|id| self.cache(id)) {
            for (slot, _) in MAIN_AND_SPARE.map(|slot| slot(cache.id)) {
                add_taken(cache, take(region, slot, sheaf::stopped()), taken);
            }
        }
    }

    /// Opens closed caches on all CPUs; under the drain lock.
    pub(crate) fn open_draining(&self, set: CacheSet) {
        let gone = self.closed.remove(set);
        for (_, region) in self.table.regions() {
            for id in gone.iter() {
                for (slot, nothing) in MAIN_AND_SPARE.map(|slot| slot(id)) {
                    open_word(region, slot, nothing);
                }
            }
        }
    }

    /// Flushes and frees detached sheaves.
    #[inline(never)]
    fn flush_taken(&self, mut taken: SheafList) {
        while let Some(mut sheaf) = taken.pop() {
            match self.cache(CacheId::from_index(sheaf.cache())) {
                Some(cache) => {
                    self.flush_sheaf(cache, &mut sheaf, Gfp::KERNEL);
                    self.free_sheaf(cache, sheaf, Gfp::KERNEL);
                    self.finish_flush(cache);
                }
                None => debug_assert!(false, "a sheaf of no cache"),
            }
        }
    }

    /// Records that a detached sheaf is flushed or installed again.
    pub(crate) fn finish_flush(&self, cache: &KmemCache<P>) {
        // Release: a thread that waits sees where its objects are.
        cache.flushes_in_flight.fetch_sub(1, Release);
    }

    /// Waits until all sheaves of a cache that flushes detached before are flushed.
    pub(crate) fn wait_for_flushes(&self, cache: &KmemCache<P>) {
        // Acquire: pairs with `finish_flush`.
        while cache.flushes_in_flight.load(Acquire) > 0 {
            P::wait(&AtomicU32::new(0), 0, Some(FLUSH_POLL_MS));
        }
    }

    /// Flushes the sheaves of all CPUs for one cache. Afterwards the objects of sheaves that other
    /// threads detached before are in their slabs too.
    pub(crate) fn flush_all(&self, cache: &KmemCache<P>, take: DrainScope) {
        self.flush_cpus(&|c| c.id == cache.id, take);
        self.wait_for_flushes(cache);
    }
}

/// Adds the sheaf of a word that was just taken out of its slot, if it has one.
fn add_taken<P>(cache: &KmemCache<P>, word: usize, taken: &mut SheafList) {
    if let SlotState::Sheaf(_) = SlotState::of(word) {
        // Relaxed: under the drain lock; a thread that waits for the count has held it after us.
        cache.flushes_in_flight.fetch_add(1, Relaxed);
        // SAFETY: just taken out of its slot.
        taken.push(unsafe { Sheaf::from_top(word) });
    }
}

/// Opens a word if it is closed. No CPU changes a closed word but for its lock bit, so the CPU need
/// not be stopped.
fn open_word(region: &Region, slot: Slot, nothing: usize) {
    let closed = sheaf::stopped();
    while SlotState::of(region.peek(slot) & !LOCKED) == SlotState::Stopped
        && !try_lock::compare_exchange(region, slot, closed, nothing)
    {
        atomic::spin_loop();
    }
}

/// Takes a word of a stopped region, which the caller owns.
fn take_stopped(region: &Region, slot: Slot, nothing: usize) -> usize {
    // AcqRel: acquires the sheaf's words from the CPU's threads; the fence ordered them.
    let word = region.word(slot).swap(nothing, AcqRel);
    debug_assert_ne!(
        SlotState::of(word),
        SlotState::Busy,
        "in use by a stopped CPU"
    );
    word
}

/// Takes a word whose lock bit another thread may hold for a moment.
fn take_locked(region: &Region, slot: Slot, nothing: usize) -> usize {
    loop {
        // Relaxed: confirmed by the compare-and-swap.
        let word = region.word(slot).load(Relaxed);
        if SlotState::of(word) != SlotState::Busy
            && try_lock::compare_exchange(region, slot, word, nothing)
        {
            return word;
        }
        atomic::spin_loop();
    }
}
