//! Drain: flushes sheaves of all CPUs and barns, frees empty slabs, and maintains idle caches.
//!
//! | call | flushes | frees | drain lock |
//! |---|---|---|---|
//! | `flush` | one cache's sheaves and barns | – | waits |
//! | `shrink`, `shrink_all` | sheaves and barns | empty slabs | waits |
//! | `trim` | as `shrink_all` | empty slabs, dirty pages, cached mappings | waits |
//! | `tick` | – | surplus slabs, page batches, old pages and mappings | waits |
//! | `end_allocation` | cold caches, idle CPUs; at most every 10 ms | surplus slabs | tries |
//! | `decay_if_due` | – | old dirty pages, old mappings | not needed |
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
//! between.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::args::Flags;
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::sheaf::{self, Sheaf, SheafList};
use crate::percpu::try_lock;
use crate::percpu::{CacheId, MAX_CACHES, Region, Slot};
use crate::platform::Platform;
use crate::policy::{COLD_CHECK_MS, FLUSH_POLL_MS, SHRINK_SORTED_FREE};
use crate::sheaf::barn::Barn;
use crate::slab::node::{Node, SlabList};
use crate::sync::atomic::{self, AtomicU32};
use crate::sync::time::is_due;

/// The radix sort's digits of a number of free slots less one, and bits of a digit.
const DIGITS: u32 = 2;
const DIGIT_BITS: u32 = 3;
const _: () = assert!(SHRINK_SORTED_FREE <= 1 << (DIGITS * DIGIT_BITS));

/// The sheaves that a flush takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// Sheaves of CPUs that have objects.
    Used,
    /// All sheaves, also empty ones.
    All,
}

/// A slot of a cache, and the word that marks it empty.
pub(crate) type SlotOf = fn(CacheId) -> (Slot, usize);
/// The slots of main and spare.
const MAIN_AND_SPARE: [SlotOf; 2] = [|id| (id.main(), sheaf::bootstrap()), |id| (id.spare(), 0)];

/// A filter of caches.
type Which<'a, P> = dyn Fn(&KmemCache<P>) -> bool + 'a;

impl<P: Platform> Allocator<P> {
    /// Flushes the sheaves of all CPUs for the caches that `which` accepts.
    #[inline(never)]
    pub(crate) fn flush_cpus(&self, which: &Which<'_, P>, take: Take) {
        let mut taken = SheafList::new();
        let used = |region: &Region| take == Take::All || self.is_used(region, which);
        self.take_slots(&used, which, &MAIN_AND_SPARE, &mut taken);
        while let Some(sheaf) = taken.pop() {
            self.flush_taken(sheaf);
        }
    }

    /// As [`flush_cpus`](Self::flush_cpus), for CPUs that have objects; does nothing if another
    /// thread drains CPUs.
    #[inline(never)]
    fn try_flush_cpus(&self, which: &Which<'_, P>) {
        let mut taken = SheafList::new();
        let used = |region: &Region| self.is_used(region, which);
        self.try_while_draining(|| {
            self.take_slots_draining(&used, which, &MAIN_AND_SPARE, &mut taken);
        });
        while let Some(sheaf) = taken.pop() {
            self.flush_taken(sheaf);
        }
    }

    /// Detaches the sheaves of some slots of all CPUs whose regions `used` accepts.
    #[inline(never)]
    pub(crate) fn take_slots(
        &self,
        used: &dyn Fn(&Region) -> bool,
        which: &Which<'_, P>,
        slots: &[SlotOf],
        taken: &mut SheafList,
    ) {
        self.while_draining(|| self.take_slots_draining(used, which, slots, taken));
    }

    /// [`take_slots`](Self::take_slots), under the drain lock.
    #[inline(never)]
    fn take_slots_draining(
        &self,
        used: &dyn Fn(&Region) -> bool,
        which: &Which<'_, P>,
        slots: &[SlotOf],
        taken: &mut SheafList,
    ) {
        for cpu in 0..self.table.end() {
            let Some(region) = self.table.region(cpu).filter(|region| used(region)) else {
                continue;
            };
            if self.platform.slots_are_locked() {
                self.take_sheaves(region, which, slots, take_locked, taken);
            } else if let Some(region) = self.table.stop(&self.platform, cpu) {
                self.take_sheaves(region, which, slots, take_stopped, taken);
                self.table.resume(cpu);
            } else {
                self.take_own_sheaves(which, slots, taken);
                break;
            }
        }
    }

    fn each_cache(&self, which: &Which<'_, P>, visit: impl FnMut(&KmemCache<P>)) {
        self.caches().filter(|cache| which(cache)).for_each(visit);
    }

    /// Whether a region has objects of the caches that `which` accepts.
    fn is_used(&self, region: &Region, which: &Which<'_, P>) -> bool {
        let mut used = false;
        self.each_cache(which, |cache| {
            // Acquire: a peek that also reads the sheaf's capacity.
            let main = region.word(cache.id.main()).load(Acquire) & !1;
            let spare = region.word(cache.id.spare()).load(Acquire) & !1;
            used |= !sheaf::top_is_empty(main) || (spare != 0 && !sheaf::top_is_empty(spare));
        });
        used
    }

    fn take_sheaves(
        &self,
        region: &Region,
        which: &Which<'_, P>,
        slots: &[SlotOf],
        take: fn(&Region, Slot, usize) -> usize,
        taken: &mut SheafList,
    ) {
        self.each_cache(which, |cache| {
            for (slot, nothing) in slots.iter().map(|slot| slot(cache.id)) {
                let top = take(region, slot, nothing);
                if top != 0 && !sheaf::is_sentinel(top) {
                    // Relaxed: under the drain lock; a thread that waits for the count has held it
                    // after us.
                    cache.flushes_in_flight.fetch_add(1, Relaxed);
                    // SAFETY: just taken out of its slot, and no sentinel.
                    taken.push(unsafe { Sheaf::from_top(top) });
                }
            }
        });
    }

    /// Detaches the sheaves of this thread's CPU, if no CPU can be stopped.
    fn take_own_sheaves(&self, which: &Which<'_, P>, slots: &[SlotOf], taken: &mut SheafList) {
        if !self.platform.percpu_usable() {
            return;
        }
        self.each_cache(which, |cache| {
            for (slot, nothing) in slots.iter().map(|slot| slot(cache.id)) {
                let top = self.peek(slot);
                if top != 0 && !sheaf::is_sentinel(top) && self.swap(slot, top, nothing) {
                    // Relaxed: under the drain lock, as in `take_sheaves`.
                    cache.flushes_in_flight.fetch_add(1, Relaxed);
                    // SAFETY: just taken out of its slot, and no sentinel.
                    taken.push(unsafe { Sheaf::from_top(top) });
                }
            }
        });
    }

    /// Flushes and frees a detached sheaf.
    #[inline(never)]
    fn flush_taken(&self, mut sheaf: Sheaf) {
        match self.cache(CacheId::from_index(sheaf.cache())) {
            Some(cache) => {
                self.flush_sheaf(cache, &mut sheaf, Gfp::KERNEL);
                self.free_sheaf(cache, sheaf, Gfp::KERNEL);
                self.finish_flush(cache);
            }
            None => debug_assert!(false, "a sheaf of no cache"),
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
    pub(crate) fn flush_all(&self, cache: &KmemCache<P>, take: Take) {
        self.flush_cpus(&|c| c.id == cache.id, take);
        self.wait_for_flushes(cache);
    }

    /// Flushes all sheaves of a cache, including those in barns: their objects go back to their
    /// slabs.
    pub fn flush(&self, cache: &KmemCache<P>) {
        self.flush_all(cache, Take::Used);
        self.drain_deferred(cache);
        cache.barns().for_each(|barn| self.flush_barn(cache, barn));
    }

    /// Flushes all sheaves of a cache and frees its empty slabs; sorts partial slabs so that the
    /// fullest are used first. Returns whether slabs remain.
    #[inline(never)]
    pub fn shrink(&self, cache: &KmemCache<P>) -> bool {
        self.flush_all(cache, Take::Used);
        self.shrink_nodes(cache);
        cache.nr_slabs() > 0
    }

    /// As [`shrink`](Self::shrink), for all caches except those whose slabs must wait for a grace
    /// period.
    #[inline(never)]
    pub fn shrink_all(&self) {
        self.flush_cpus(&|_| true, Take::Used);
        let at_once = |cache: &&KmemCache<P>| !cache.flags.contains(Flags::TYPESAFE_BY_RCU);
        self.while_draining(|| {
            let caches = self.caches().filter(at_once);
            caches.for_each(|cache| self.shrink_nodes(cache));
        });
    }

    /// Gives as much memory as possible back to the system; returns whether there was any.
    pub fn trim(&self) -> bool {
        self.shrink_all();
        let any = self.zone.dirty_bytes() + self.huge.kept_bytes() > 0;
        self.zone.purge(&self.platform);
        self.meta.purge(&self.platform);
        self.purge_huge(self.platform.now_ms(), |_| true);
        any
    }

    #[inline(never)]
    pub(crate) fn shrink_nodes(&self, cache: &KmemCache<P>) {
        self.drain_deferred(cache);
        // All barns first: a barn may hold objects of another node.
        cache.barns().for_each(|barn| self.flush_barn(cache, barn));
        for node in cache.nodes() {
            self.discard_empty(cache, node);
        }
    }

    #[inline(never)]
    fn flush_barn(&self, cache: &KmemCache<P>, barn: &Barn<P>) {
        let (mut full, mut empty) = barn.take_all();
        while let Some(mut sheaf) = full.pop() {
            self.flush_sheaf(cache, &mut sheaf, Gfp::KERNEL);
            self.free_sheaf(cache, sheaf, Gfp::KERNEL);
        }
        while let Some(sheaf) = empty.pop() {
            self.free_sheaf(cache, sheaf, Gfp::KERNEL);
        }
    }

    /// Ends an allocation: evicts pages for the ones it took, and maintains caches at most every
    /// [`COLD_CHECK_MS`] milliseconds. It comes last, since in its middle an allocation has little
    /// stack left. For callers that may take the page layer's locks.
    ///
    /// The maintenance flushes the surplus of barns and all sheaves of cold caches (not used for
    /// two periods), since a few cached objects pin whole slabs. Cold caches that [keep
    /// little](crate::cache::args::CacheArgs::kept_bytes) also free their empty slabs.
    #[inline]
    pub(crate) fn end_allocation(&self, gfp: Gfp) {
        if gfp.may_map() {
            self.zone.make_room_for_taken(&self.platform);
        }
        // Relaxed, both: a hint.
        if gfp.contains(Gfp::KERNEL)
            && self.looks_for_cold.load(Relaxed)
            && self.looks_for_cold.swap(false, Relaxed)
        {
            self.maintain_if_due();
        }
    }

    /// Maintains caches if it is time. No allocation waits for this: it is skipped while another
    /// thread drains CPUs or forks.
    #[inline(never)]
    fn maintain_if_due(&self) {
        let now = self.platform.now_ms();
        // Relaxed: the winner does the work; no other data depends on it.
        let due = self.next_cold.load(Relaxed);
        if !is_due(now, due, COLD_CHECK_MS)
            || self
                .next_cold
                .compare_exchange(due, now.saturating_add(COLD_CHECK_MS), Relaxed, Relaxed)
                .is_err()
        {
            return;
        }
        // Each in a function of its own: all need much stack.
        let Some(any) = self.look_for_cold() else {
            return;
        };
        self.flush_idle_cpus();
        if any {
            self.try_flush_cpus(&|cache| cache.is_cold());
            self.flush_cold_nodes();
        }
    }

    /// Trims reserves and barns, and checks which caches are cold. Returns whether a cold cache has
    /// something to flush; `None` if another thread drains CPUs.
    #[inline(never)]
    fn look_for_cold(&self) -> Option<bool> {
        self.try_while_draining(|| {
            self.trim_reserves();
            let mut any = false;
            for cache in self.caches() {
                if cache.is_adaptive() || cache.keeps_little {
                    self.trim_barns(cache);
                }
                let cold = cache.record_activity(self.activity_of(cache));
                let idle_slabs = cache.keeps_little && cache.is_just_cold() && cache.nr_slabs() > 0;
                any |= cold && (idle_slabs || self.is_cached(cache));
            }
            any
        })
    }

    /// Flushes the barns of cold caches, and frees the slabs that they do not keep; does nothing if
    /// another thread drains CPUs.
    #[inline(never)]
    fn flush_cold_nodes(&self) {
        self.try_while_draining(|| {
            for cache in self.caches().filter(|cache| cache.is_cold()) {
                cache.barns().for_each(|barn| self.flush_barn(cache, barn));
                if cache.keeps_little && cache.is_just_cold() {
                    (cache.nodes()).for_each(|node| self.discard_empty(cache, node));
                }
            }
        });
    }

    /// Flushes the sheaves of CPUs that do not use an adaptive cache.
    #[inline(never)]
    fn flush_idle_cpus(&self) {
        let mut at = 1;
        // One cache at a time, since each has other idle CPUs.
        while at < MAX_CACHES {
            let next = self.try_while_draining(|| {
                (self.caches().filter(|cache| cache.is_adaptive()))
                    .find(|cache| cache.id.index() >= at && self.mark_idle_cpus(cache))
                    .map(|cache| cache.id)
            });
            let Some(id) = next.flatten() else {
                return;
            };
            let mut taken = SheafList::new();
            let idle = |region: &Region| {
                self.cache(id)
                    .is_some_and(|cache| Self::is_idle_on(cache, region))
            };
            let which = |cache: &KmemCache<P>| cache.id == id;
            self.try_while_draining(|| {
                self.take_slots_draining(&idle, &which, &MAIN_AND_SPARE, &mut taken);
            });
            while let Some(sheaf) = taken.pop() {
                self.flush_taken(sheaf);
            }
            at = id.index() + 1;
        }
    }

    /// Gives back pages that have been free for the decay time, if it is time to check. Slow paths
    /// call it.
    #[inline]
    pub(crate) fn decay_if_due(&self) {
        if self.zone.dirty_bytes() + self.huge.kept_bytes() == 0 {
            return;
        }
        let (now, decay) = (self.platform.now_ms(), u64::from(self.tunables().decay_ms));
        self.zone.decay_if_due(&self.platform, now, decay);
        self.purge_huge(now, |age| age >= decay);
    }

    /// Unmaps cached mappings of huge objects that are old enough at the time `now` (milliseconds).
    fn purge_huge(&self, now: u64, old_enough: impl Fn(u64) -> bool) {
        if self.huge.purge(&self.platform, now, old_enough) {
            self.note_huge();
        }
    }

    /// Whether a sheaf of the cache has objects; may be stale.
    fn is_cached(&self, cache: &KmemCache<P>) -> bool {
        let mut cached = cache.barns().any(|barn| barn.nr_full() > 0);
        self.for_each_top(cache, |top| cached |= !sheaf::top_is_empty(top));
        cached
    }

    #[inline(never)]
    fn discard_empty(&self, cache: &KmemCache<P>, node: &Node<P>) {
        self.discard_ahead(cache, node);
        let empty = self.take_empty(cache, node);
        self.discard_list(cache, empty);
    }

    /// Takes the empty slabs of a node off its lists, and sorts the partial ones.
    #[inline(never)]
    pub(crate) fn take_empty(&self, cache: &KmemCache<P>, node: &Node<P>) -> SlabList {
        let arena = &self.zone.arena;
        let mut empty = SlabList::new();
        {
            let mut lists = node.lists.lock();
            node.drain_all_pending(arena, &mut lists, cache.has_reserve());
            while let Some(slab) = lists.empty.first(arena) {
                lists.empty.remove(arena, slab);
                slab.set_partial(false);
                empty.push_back(arena, slab);
            }
            let list = &mut lists.partial;
            let (mut sorted, mut at) = (SlabList::new(), list.first(arena));
            while let Some(slab) = at {
                at = SlabList::after(arena, slab);
                let inuse = slab.state().inuse();
                if inuse == 0 {
                    list.remove(arena, slab);
                    slab.set_partial(false);
                    empty.push_back(arena, slab);
                } else if cache.geometry.objects - inuse <= SHRINK_SORTED_FREE {
                    list.remove(arena, slab);
                    sorted.push_back(arena, slab);
                }
            }
            // Radix sort by the number of free slots, lowest digit first: it needs few lists.
            for digit in 0..DIGITS {
                let mut buckets = [const { SlabList::new() }; 1 << DIGIT_BITS];
                while let Some(slab) = sorted.first(arena) {
                    sorted.remove(arena, slab);
                    // At least one slot is free.
                    let free = cache.geometry.objects - slab.state().inuse() - 1;
                    let bucket = free >> (digit * DIGIT_BITS) & ((1 << DIGIT_BITS) - 1);
                    buckets[bucket as usize].push_back(arena, slab);
                }
                for bucket in &mut buckets {
                    sorted.append(arena, bucket);
                }
            }
            sorted.append(arena, list);
            *list = sorted;
            node.note(&lists);
        }
        empty
    }

    /// Gives back memory that has been idle for the decay time, and the pages of unused windows, at
    /// the time `now` in milliseconds. For a background helper.
    pub fn tick(&self, now: u64) {
        let decay = u64::from(self.tunables().decay_ms);
        self.while_draining(|| {
            self.trim_reserves();
            for cache in self.caches() {
                (cache.nodes()).for_each(|node| self.discard_ahead(cache, node));
            }
        });
        self.zone.decay(&self.platform, now, decay);
        self.meta.purge(&self.platform);
        self.purge_huge(now, |age| age >= decay);
    }
}

/// Takes a word of a stopped region, which the caller owns.
fn take_stopped(region: &Region, slot: Slot, nothing: usize) -> usize {
    // AcqRel: acquires the sheaf's words from the CPU's threads; the fence ordered them.
    region.word(slot).swap(nothing, AcqRel)
}

/// Takes a word whose lock bit another thread may hold for a moment.
fn take_locked(region: &Region, slot: Slot, nothing: usize) -> usize {
    loop {
        // Relaxed: confirmed by the compare-and-swap.
        let top = region.word(slot).load(Relaxed);
        if top & 1 == 0 && try_lock::exchange(region, slot, top, nothing) {
            return top;
        }
        atomic::spin_loop();
    }
}
