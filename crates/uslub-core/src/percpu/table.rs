//! Per-CPU slots: where each CPU keeps its sheaves.
//!
//! Every CPU (or concurrency id) that ever ran a slow path owns a [`Region`]. A
//! [`Table`] indexed by the CPU leads to it. For each cache a region has three words, and counters:
//!
//! | word | holds |
//! |---|---|
//! | main | a sheaf's top, or a sentinel |
//! | spare | a sheaf's top, 0 for none, or the stopped sentinel |
//! | rcu | a sheaf's top, or a sentinel; 0 before the first free that waits for a grace period |
//!
//! A word is changed by one store of the CPU that it belongs to (in a
//! restartable sequence, or under the word's lock bit where there are none).
//! Taking a sheaf is replacing its top by a sentinel; the thread then owns it
//! with no lock and may be preempted, and others on that CPU fetch another sheaf.
//!
//! A remote CPU's slots are reached by [`Table::stop`]: the table entry is turned to a region in
//! which every slot says *stopped*, a fence waits until no thread is still in
//! the old one, and then the stopper owns all of it until [`Table::resume`].
//!
//! The words main and spare of a cache and its counts of allocations and frees lie side by side: a
//! call writes to one line. (Of counts in lines of their own two sizes in turn took a quarter
//! longer on a Zen 4.)
//!
//! A region is made of pages: page k serves the caches with index 128·k … 128·k+127,
//! so that a program with few caches touches one page a CPU.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::percpu::sheaf;
use crate::percpu::stats::{STAT_SLOTS, StatItem};
use crate::platform::{PAGE_SIZE, Platform};
use crate::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

/// Caches a page of a region serves.
pub(crate) const CACHES_A_PAGE: usize = 128;
/// Pages of a region.
const REGION_PAGES: usize = 16;
/// Words of a cache that lie side by side.
pub const CACHE_WORDS: usize = 4;
/// Words from a cache's main word to its rcu word: what few caches use lies in a page of its own.
const TO_RCU: usize = CACHE_WORDS * CACHES_A_PAGE;
/// Words of a region page.
const PAGE_WORDS: usize = 2 * TO_RCU;
/// Most caches an allocator can have, plus one (index 0 means none).
pub const MAX_CACHES: usize = CACHES_A_PAGE * REGION_PAGES;

/// Bytes from a cache's main word to its count of allocations.
pub const ALLOCS_OFFSET: usize = 16;
/// Bytes from a cache's main word to its count of frees, or from its rcu word to the count of what
/// was put into that sheaf.
pub const FREES_OFFSET: usize = 24;
/// Where in its page lies what fast paths only look at, to the page's end: where a region has words
/// of the caches from the 96th on, as few programs have. A processor takes a load for one of what
/// was just stored at the same place of another page, and waits.
pub const APART: usize = PAGE_SIZE / 4 * 3;

const _: () = assert!(8 * TO_RCU == PAGE_SIZE);

/// Identity of a cache: the index of its main word in a region, never 0.
///
/// The page map stores it, so that a free finds its slot without another look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheId(u16);

impl CacheId {
    /// The identity of the cache with this dense index, from 1.
    pub const fn from_index(index: usize) -> Self {
        assert!(index > 0 && index < MAX_CACHES);
        Self((index / CACHES_A_PAGE * PAGE_WORDS + index % CACHES_A_PAGE * CACHE_WORDS) as u16)
    }

    /// The identity of a size class, from 1: classes are the first caches, and all of them lie in
    /// one page of a region.
    #[inline]
    pub const fn of_class(class: u8) -> Self {
        Self(class as u16 * CACHE_WORDS as u16)
    }

    /// The identity as the page map stores it; `None` for 0.
    #[inline]
    pub const fn from_raw(raw: u16) -> Option<Self> {
        if raw == 0 { None } else { Some(Self(raw)) }
    }

    /// What the page map stores.
    #[inline]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// The dense index, from 1.
    #[inline]
    pub const fn index(self) -> usize {
        let (page, word) = (self.0 as usize / PAGE_WORDS, self.0 as usize % PAGE_WORDS);
        page * CACHES_A_PAGE + word / CACHE_WORDS
    }

    /// The word of the main sheaf.
    #[inline]
    pub const fn main(self) -> Slot {
        Slot(self.0)
    }

    /// The word of the rcu sheaf.
    #[inline]
    pub const fn rcu(self) -> Slot {
        Slot(self.0 + TO_RCU as u16)
    }

    /// The word of the spare sheaf.
    #[inline]
    pub const fn spare(self) -> Slot {
        Slot(self.0 + 1)
    }
}

/// Index of a word in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// The main word of no cache, where every region has a sheaf without room.
    pub(crate) const NOBODYS: Slot = Slot(0);

    /// Bytes from the region's start.
    #[inline]
    pub const fn offset(self) -> usize {
        self.0 as usize * 8
    }
}

/// Where a region has the counters of a cache's slow paths: the index of the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters(u32);

impl Counters {
    /// Those of a cache.
    pub(crate) const fn of(cache: CacheId) -> Self {
        Self((cache.index() * STAT_SLOTS) as u32)
    }

    /// The counter of an item.
    #[inline]
    pub(crate) const fn counter(self, item: StatItem) -> Counter {
        Counter(self.0 as usize + item as usize)
    }
}

/// A counter of the slow paths of a cache, by its index in a region.
#[derive(Clone, Copy, Debug)]
pub struct Counter(usize);

impl Counter {
    /// Bytes from the region's start.
    #[inline]
    pub const fn offset(self) -> usize {
        core::mem::offset_of!(Region, stats) + 8 * self.0
    }
}

/// The words of one CPU.
#[repr(C, align(4096))]
pub struct Region {
    words: [AtomicUsize; PAGE_WORDS * REGION_PAGES],
    stats: [AtomicU64; STAT_SLOTS * MAX_CACHES],
    wishes: [AtomicU64; MAX_CACHES],
}

impl Region {
    /// One word.
    #[inline]
    pub fn word(&self, slot: Slot) -> &AtomicUsize {
        &self.words[slot.0 as usize]
    }

    /// What a slot holds; a glance. Bit 0 may be a lock.
    #[inline]
    pub(crate) fn glance(&self, slot: Slot) -> usize {
        // Acquire: the sheaf's capacity may be looked at; the rest is confirmed by the exchange
        // that follows.
        self.word(slot).load(Acquire)
    }

    /// Objects allocated (`.0`) and freed (`.1`) through this CPU's sheaves of a cache.
    pub fn counts(&self, id: CacheId) -> (u64, u64) {
        let at = id.0 as usize;
        // Relaxed: statistics.
        (
            self.words[at + ALLOCS_OFFSET / 8].load(Relaxed) as u64,
            self.words[at + FREES_OFFSET / 8].load(Relaxed) as u64,
        )
    }

    /// A counter of the slow paths.
    #[inline]
    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        &self.stats[counter.0]
    }

    /// What the CPU wants of a cache's sheaves; see [`capacity`](crate::sheaf::capacity).
    #[inline]
    pub(crate) fn wish(&self, id: CacheId) -> &AtomicU64 {
        &self.wishes[id.index()]
    }

    pub(crate) fn count(&self, slot: Slot, offset: usize, n: usize) {
        // Relaxed: statistics, racy like the kernel's.
        self.words[slot.0 as usize + offset / 8].fetch_add(n, Relaxed);
    }

    /// Objects put into this CPU's rcu sheaf of a cache.
    pub fn rcu_count(&self, id: CacheId) -> u64 {
        // Relaxed: statistics.
        self.words[id.rcu().0 as usize + FREES_OFFSET / 8].load(Relaxed) as u64
    }

    /// Sets the rcu words of all caches on one region page, once.
    fn fill_rcu(&self, page: usize, rcu: usize) {
        for i in 0..CACHES_A_PAGE {
            // Relaxed: published with the region, or before a cache of this page uses them.
            let _ = self.words[page * PAGE_WORDS + TO_RCU + CACHE_WORDS * i]
                .compare_exchange(0, rcu, Relaxed, Relaxed);
        }
    }

    /// Sets the words of all caches on one region page.
    fn fill_page(&self, page: usize, main: usize, spare: usize) {
        for i in 0..CACHES_A_PAGE {
            let at = page * PAGE_WORDS + CACHE_WORDS * i;
            // Relaxed: published with the region, or before a cache of this page is.
            self.words[at].store(main, Relaxed);
            self.words[at + 1].store(spare, Relaxed);
        }
    }
}

/// Which region belongs to which CPU.
#[repr(C)]
pub struct Table {
    /// Where the regions to use now are listed, if there are so many CPUs at most.
    place: &'static [AtomicPtr<Region>],
    /// By CPU: the region to use now, or the stopped one.
    active: AtomicPtr<AtomicPtr<Region>>,
    /// By CPU: its region, or null.
    regions: AtomicPtr<AtomicPtr<Region>>,
    stopped: AtomicPtr<Region>,
    nr: AtomicUsize,
    /// CPUs from this number on have no region.
    pub(crate) end: AtomicUsize,
    pages: AtomicUsize,
    /// Bit k is set when the rcu words of page k are in use.
    pub(crate) rcu_pages: AtomicUsize,
}

/// Where in the table's own memory the regions to use now are listed, for `nr` CPUs: behind all
/// regions, and [`APART`].
fn active_at(nr: usize) -> usize {
    (8 * nr).saturating_sub(APART).next_multiple_of(PAGE_SIZE) + APART
}

/// Bytes of the table's own memory for `nr` CPUs.
fn table_bytes(nr: usize) -> usize {
    (active_at(nr) + 8 * nr).next_multiple_of(PAGE_SIZE)
}

impl Table {
    /// Where in it the word lies that fast paths look at, in bytes.
    pub const ACTIVE: usize = core::mem::offset_of!(Self, active);

    /// A table that is not set up yet.
    pub const fn new() -> Self {
        Self::at(&[])
    }

    /// A table that is not set up yet, and will list the regions to use now at a place of the
    /// caller's, which nobody else writes; elsewhere if there are more CPUs than places.
    pub const fn at(place: &'static [AtomicPtr<Region>]) -> Self {
        Self {
            place,
            active: AtomicPtr::new(null_mut()),
            regions: AtomicPtr::new(null_mut()),
            stopped: AtomicPtr::new(null_mut()),
            nr: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            rcu_pages: AtomicUsize::new(0),
        }
    }

    /// Sets the table up; returns false when memory cannot be had.
    pub fn init<P: Platform>(&self, platform: &P) -> bool {
        let nr = platform.nr_cpu_ids();
        let table = platform.whole_pages(table_bytes(nr));
        let Some(memory) = platform.map(table) else {
            return false;
        };
        let Some(stopped) = platform.map(platform.whole_pages(size_of::<Region>())) else {
            // SAFETY: just mapped, used by no one.
            unsafe { platform.unmap(memory, table) };
            return false;
        };
        let stopped = stopped.cast::<Region>();
        // SAFETY: fresh zeroed memory of the right size; all-zero words are valid.
        unsafe { stopped.as_ref() }.fill_page(0, sheaf::stopped(), sheaf::stopped());
        let regions = memory.cast::<AtomicPtr<Region>>();
        // SAFETY: within the memory just mapped, behind the regions.
        let mut active: NonNull<AtomicPtr<Region>> = unsafe { memory.add(active_at(nr)) }.cast();
        if self.place.len() >= nr {
            active = NonNull::from(self.place).cast();
        }
        for cpu in 0..nr {
            // SAFETY: within the memory just mapped, or the place. Relaxed: published below.
            unsafe { active.add(cpu).as_ref() }.store(stopped.as_ptr(), Relaxed);
        }
        // Release, and Relaxed for what is published by the last: readers acquire `active`.
        self.regions.store(regions.as_ptr(), Relaxed);
        self.stopped.store(stopped.as_ptr(), Relaxed);
        self.nr.store(nr, Relaxed);
        self.pages.store(1, Relaxed);
        self.active.store(active.as_ptr(), Release);
        true
    }

    /// Takes [`init`](Self::init) back, when nobody has seen the table.
    pub(crate) fn undo<P: Platform>(&self, platform: &P) {
        // Relaxed: nobody else has the table.
        let (regions, stopped) = (self.regions.load(Relaxed), self.stopped.load(Relaxed));
        for (start, bytes) in [
            (regions.cast::<u8>(), table_bytes(self.nr())),
            (stopped.cast(), size_of::<Region>()),
        ] {
            if let Some(start) = NonNull::new(start) {
                // SAFETY: mapped by `init`, used by no one.
                unsafe { platform.unmap(start, platform.whole_pages(bytes)) };
            }
        }
        // Relaxed: as above.
        self.active.store(null_mut(), Relaxed);
    }

    /// The array of active regions, for restartable sequences.
    #[inline]
    pub fn active(&self) -> *mut AtomicPtr<Region> {
        // Acquire: pairs with `init`.
        self.active.load(Acquire)
    }

    /// Whether the table was made.
    pub fn is_there(&self) -> bool {
        !self.active().is_null()
    }

    /// The region of stopped CPUs, in which several CPUs may count at a time.
    #[inline]
    pub fn stopped(&self) -> *mut Region {
        // Relaxed: set once, before anyone has the table.
        self.stopped.load(Relaxed)
    }

    /// Number of CPU indices.
    pub fn nr(&self) -> usize {
        // Relaxed: set once, before anyone has the table.
        self.nr.load(Relaxed)
    }

    /// CPUs from this number on have no region.
    pub fn end(&self) -> usize {
        // Acquire: pairs with `make`.
        self.end.load(Acquire)
    }

    fn entry(&self, cpu: usize) -> &AtomicPtr<Region> {
        assert!(cpu < self.nr());
        // SAFETY: the array has `nr` entries and lives for ever.
        unsafe { &*self.active().add(cpu) }
    }

    fn region_entry(&self, cpu: usize) -> &AtomicPtr<Region> {
        assert!(cpu < self.nr());
        // Relaxed: set once, before anyone has the table.
        let regions = self.regions.load(Relaxed);
        // SAFETY: the array has `nr` entries and lives for ever.
        unsafe { &*regions.add(cpu) }
    }

    /// The region to use on a CPU now.
    #[inline]
    pub fn here(&self, cpu: usize) -> &Region {
        // SAFETY: entries are never null and regions live for ever. Acquire: pairs with `make`.
        unsafe { &*self.entry(cpu).load(Acquire) }
    }

    /// A CPU's own region, if it has one. Racy for any but statistics and the stopper.
    pub fn region(&self, cpu: usize) -> Option<&Region> {
        // Acquire: pairs with `make`.
        let region = NonNull::new(self.region_entry(cpu).load(Acquire))?;
        // SAFETY: regions live for ever.
        Some(unsafe { region.as_ref() })
    }

    /// The regions that exist, with their CPUs.
    pub fn regions(&self) -> impl Iterator<Item = (usize, &Region)> {
        (0..self.end()).filter_map(|cpu| Some((cpu, self.region(cpu)?)))
    }

    /// The regions in which somebody may have counted: all that exist, and the one of stopped CPUs.
    pub fn counting(&self) -> impl Iterator<Item = &Region> {
        // Relaxed: set once. SAFETY: regions live for ever.
        let stopped = unsafe { self.stopped.load(Relaxed).as_ref() };
        self.regions().map(|(_, region)| region).chain(stopped)
    }

    /// Gives a CPU its region; returns false when memory cannot be had. The
    /// caller holds the lock over the list of caches, and nobody stops CPUs meanwhile.
    pub fn make<P: Platform>(&self, platform: &P, cpu: usize) -> bool {
        if self.region(cpu).is_some() {
            return true;
        }
        let Some(memory) = platform.map(platform.whole_pages(size_of::<Region>())) else {
            return false;
        };
        let memory = memory.cast::<Region>();
        // SAFETY: fresh zeroed memory; all-zero words are valid.
        let region = unsafe { memory.as_ref() };
        // Relaxed: changed only under the caller's lock.
        for page in 0..self.pages.load(Relaxed) {
            region.fill_page(page, sheaf::bootstrap(), 0);
            // Relaxed: as above.
            if self.rcu_pages.load(Relaxed) >> page & 1 == 1 {
                region.fill_rcu(page, sheaf::bootstrap());
            }
        }
        // Release: whoever finds the region must see its words.
        self.region_entry(cpu).store(memory.as_ptr(), Release);
        self.end.fetch_max(cpu + 1, Release);
        self.entry(cpu).store(memory.as_ptr(), Release);
        true
    }

    /// Makes the words of a cache usable in all regions, now and to come. The
    /// caller holds the lock over the list of caches.
    pub fn prepare(&self, id: CacheId) {
        let page = id.index() / CACHES_A_PAGE;
        // Relaxed: changed only under the caller's lock.
        while self.pages.load(Relaxed) <= page {
            let next = self.pages.load(Relaxed);
            // SAFETY: set up by `init`; regions live for ever. Relaxed: as above.
            unsafe { &*self.stopped.load(Relaxed) }.fill_page(
                next,
                sheaf::stopped(),
                sheaf::stopped(),
            );
            for (_, region) in self.regions() {
                region.fill_page(next, sheaf::bootstrap(), 0);
            }
            // Relaxed: as above.
            self.pages.store(next + 1, Relaxed);
        }
    }

    /// Makes the rcu words of a cache usable in all regions, now and to come. The
    /// caller holds the lock over the list of caches.
    pub(crate) fn prepare_rcu(&self, id: CacheId) {
        let page = id.index() / CACHES_A_PAGE;
        // SAFETY: set up by `init`; regions live for ever. Relaxed: changed only under the caller's
        // lock.
        unsafe { &*self.stopped.load(Relaxed) }.fill_rcu(page, sheaf::stopped());
        for (_, region) in self.regions() {
            region.fill_rcu(page, sheaf::bootstrap());
        }
        // Relaxed: as above.
        self.rcu_pages.fetch_or(1 << page, Relaxed);
    }

    /// Sets the counts of a cache to zero, whose identity is used again.
    pub(crate) fn reset_counts(&self, id: CacheId) {
        for region in self.counting() {
            let (main, rcu) = (id.main().0 as usize, id.rcu().0 as usize);
            for counted in [
                main + ALLOCS_OFFSET / 8,
                main + FREES_OFFSET / 8,
                rcu + FREES_OFFSET / 8,
            ] {
                // Relaxed: statistics; nobody uses the identity.
                region.words[counted].store(0, Relaxed);
            }
            // Relaxed: as above.
            region.wishes[id.index()].store(0, Relaxed);
            // Relaxed: as above.
            for count in &region.stats[id.index() * STAT_SLOTS..][..STAT_SLOTS] {
                // Relaxed: as above.
                count.store(0, Relaxed);
            }
        }
    }

    /// Keeps all threads off a CPU's region and returns it to the caller alone;
    /// `None` when the CPU has none or no fence can be had. One stopper at a time.
    pub fn stop<P: Platform>(&self, platform: &P, cpu: usize) -> Option<&Region> {
        let region = self.region(cpu)?;
        // Relaxed: set once.
        let stopped = self.stopped.load(Relaxed);
        // AcqRel: the fence orders it against the sequences of other CPUs.
        let before = self.entry(cpu).swap(stopped, AcqRel);
        debug_assert_ne!(before, stopped);
        if platform.fence() {
            Some(region)
        } else {
            self.resume(cpu);
            None
        }
    }

    /// Ends what [`stop`](Self::stop) began.
    pub fn resume(&self, cpu: usize) {
        // Relaxed: our own store, or one that `make` released before we stopped.
        let region = self.region_entry(cpu).load(Relaxed);
        // Release: threads that find the region must see what the stopper wrote.
        self.entry(cpu).store(region, Release);
    }

    /// Ends every stop and unlocks every word, in the child of a fork: who did it may be a thread
    /// that is no more.
    pub fn resume_all<'a>(&'a self) {
        for cpu in 0..self.end() {
            if let Some(region) = self.region(cpu) {
                // Threads that held a word's lock bit are no more; the tops are as before they took
                // it. Relaxed: the child has one thread.
                let pages = region
                    .words
                    .chunks(PAGE_WORDS)
                    .take(self.pages.load(Relaxed));
                // Main and spare, or the rcu word and one that is not in use.
                let tops = |page: &'a [AtomicUsize]| page.chunks(CACHE_WORDS).flat_map(|c| &c[..2]);
                for word in pages.flat_map(tops) {
                    // Relaxed: as above.
                    if word.load(Relaxed) & 1 != 0 {
                        word.fetch_and(!1, Relaxed);
                    }
                }
                self.resume(cpu);
            }
        }
    }

    /// Bytes in use by the table and its regions (pages touched).
    pub fn bytes(&self) -> usize {
        if self.nr() == 0 {
            return 0;
        }
        // Relaxed: statistics.
        let pages = self.pages.load(Relaxed);
        table_bytes(self.nr()) + 4096 * pages * (1 + self.regions().count())
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_and_indices_agree() {
        for index in 1..MAX_CACHES {
            let id = CacheId::from_index(index);
            assert_eq!(id.index(), index);
            assert_eq!(CacheId::from_raw(id.raw()), Some(id));
            assert_eq!(id.spare().offset() - id.main().offset(), 8);
        }
        assert_eq!(CacheId::from_raw(0), None);
    }

    #[test]
    fn the_regions_to_use_are_listed_behind_all_and_apart_from_what_is_written() {
        for nr in [1, 64, 127, 128, 129, 640, 641, 8192] {
            let at = active_at(nr);
            assert!(at >= 8 * nr && at % PAGE_SIZE == APART && at + 8 * nr <= table_bytes(nr));
        }
        assert_eq!(table_bytes(64), PAGE_SIZE);
    }
}
