//! Per-CPU slots: the words in which each CPU keeps its sheaves.
//!
//! Each CPU (or concurrency id) that ever ran a slow path owns a [`Region`]. A [`Table`], indexed
//! by the CPU, leads to it. For each cache a region has counters and three words:
//!
//! | word | holds |
//! |---|---|
//! | main | a sheaf's top, or a sentinel |
//! | spare | a sheaf's top, 0 for none, or the stopped sentinel |
//! | rcu | a sheaf's top, or a sentinel; 0 before the first free that waits for a grace period |
//!
//! A table entry has three states:
//!
//! | entry of a CPU | meaning |
//! |---|---|
//! | the stopped region, no own region | the CPU never ran a slow path |
//! | its own region | running: the CPU's threads use the words |
//! | the stopped region, with an own region | stopped: the stopper owns the words |
//!
//! Only the CPU that owns a word changes it, by one store: in a restartable sequence, or under the
//! word's lock bit on platforms without sequences. To take a sheaf, a thread replaces its top by a
//! sentinel. The thread then owns the sheaf without a lock and may be preempted; other threads of
//! this CPU get another sheaf.
//!
//! [`Table::stop`] gives access to another CPU's words: it turns the table entry to the stopped
//! region, in which every slot says *stopped*. A fence waits until no thread is in a sequence on
//! the old region. The stopper then owns the region until [`Table::resume`].
//!
//! A cache's words main and spare and its counts of allocations and frees are adjacent, so a call
//! writes to one cache line. (With the counts in lines of their own, two alternating sizes took a
//! quarter longer on a Zen 4.)
//!
//! A region is made of pages: page k serves the caches with index 128·k … 128·k+127. A program with
//! few caches touches one page per CPU.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::percpu::sheaf;
use crate::percpu::stats::{STAT_SLOTS, StatItem};
use crate::platform::{PAGE_SIZE, Platform};
use crate::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

/// Caches that one page of a region serves.
pub(crate) const CACHES_A_PAGE: usize = 128;
/// Pages of a region.
const REGION_PAGES: usize = 16;
/// Adjacent words of a cache, 8 bytes each.
pub const CACHE_WORDS: usize = 4;
/// Words from a cache's main word to its rcu word. Few caches use it, so it lies in another page.
const TO_RCU: usize = CACHE_WORDS * CACHES_A_PAGE;
/// Words of a region page: 4096 bytes of main words, 4096 bytes of rcu words.
const PAGE_WORDS: usize = 2 * TO_RCU;
/// Most caches of an allocator, plus one (index 0 means no cache).
pub const MAX_CACHES: usize = CACHES_A_PAGE * REGION_PAGES;

/// Bytes from a cache's main word to its count of allocations.
pub const ALLOCS_OFFSET: usize = 16;
/// Bytes from a cache's main word to its count of frees, and from its rcu word to the count of
/// objects put into its rcu sheaf.
pub const FREES_OFFSET: usize = 24;
/// Byte offset in a page from which words lie that fast paths only read. At these offsets a region
/// has the words of caches 96 and up, which few programs have. The reason is 4 KiB aliasing: a
/// processor takes a load for one of a recent store at the same page offset, and waits.
pub const APART: usize = PAGE_SIZE / 4 * 3;

const _: () = assert!(8 * TO_RCU == PAGE_SIZE);

/// Identity of a cache: the index of its main word in a region, never 0.
///
/// The page map stores it, so a free finds its slot without another lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheId(u16);

impl CacheId {
    /// The identity of the cache with this index, from 1.
    pub const fn from_index(index: usize) -> Self {
        assert!(index > 0 && index < MAX_CACHES);
        Self((index / CACHES_A_PAGE * PAGE_WORDS + index % CACHES_A_PAGE * CACHE_WORDS) as u16)
    }

    /// The identity of a size class, from 1: the classes are the first caches, and their words lie
    /// in one page of a region.
    #[inline]
    pub const fn of_class(class: u8) -> Self {
        Self(class as u16 * CACHE_WORDS as u16)
    }

    /// The identity as the page map stores it; `None` for 0.
    #[inline]
    pub const fn from_raw(raw: u16) -> Option<Self> {
        if raw == 0 { None } else { Some(Self(raw)) }
    }

    /// The identity as the page map stores it.
    #[inline]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// The index, from 1.
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
    /// The main word of no cache: in every region it holds a sheaf without room.
    pub(crate) const NO_CACHE: Slot = Slot(0);

    /// Bytes from the region's start.
    #[inline]
    pub const fn offset(self) -> usize {
        self.0 as usize * 8
    }
}

/// The index of a cache's first slow-path counter in a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters(u32);

impl Counters {
    /// The counters of a cache.
    pub(crate) const fn of(cache: CacheId) -> Self {
        Self((cache.index() * STAT_SLOTS) as u32)
    }

    /// The counter of an item.
    #[inline]
    pub(crate) const fn counter(self, item: StatItem) -> Counter {
        Counter(self.0 as usize + item as usize)
    }
}

/// The index of one slow-path counter in a region.
#[derive(Clone, Copy, Debug)]
pub struct Counter(usize);

impl Counter {
    /// Bytes from the region's start.
    #[inline]
    pub const fn offset(self) -> usize {
        core::mem::offset_of!(Region, stats) + 8 * self.0
    }
}

/// The words and counters of one CPU.
#[repr(C, align(4096))]
pub struct Region {
    words: [AtomicUsize; PAGE_WORDS * REGION_PAGES],
    stats: [AtomicU64; STAT_SLOTS * MAX_CACHES],
    capacity_states: [AtomicU64; MAX_CACHES],
}

impl Region {
    /// The word of a slot.
    #[inline]
    pub fn word(&self, slot: Slot) -> &AtomicUsize {
        &self.words[slot.0 as usize]
    }

    /// Peeks at a slot. Bit 0 may be a lock.
    #[inline]
    pub(crate) fn peek(&self, slot: Slot) -> usize {
        // Acquire: the caller may read the sheaf's capacity; a later compare-and-swap confirms the
        // rest.
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

    /// A slow-path counter.
    #[inline]
    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        &self.stats[counter.0]
    }

    /// The CPU's capacity state of a cache; see [`capacity`](crate::sheaf::capacity).
    #[inline]
    pub(crate) fn capacity_state(&self, id: CacheId) -> &AtomicU64 {
        &self.capacity_states[id.index()]
    }

    pub(crate) fn count(&self, slot: Slot, offset: usize, n: usize) {
        // Relaxed: statistics, racy as the kernel's.
        self.words[slot.0 as usize + offset / 8].fetch_add(n, Relaxed);
    }

    /// Objects put into this CPU's rcu sheaf of a cache.
    pub fn rcu_count(&self, id: CacheId) -> u64 {
        // Relaxed: statistics.
        self.words[id.rcu().0 as usize + FREES_OFFSET / 8].load(Relaxed) as u64
    }

    /// Sets the unset rcu words of all caches of one region page.
    fn fill_rcu(&self, page: usize, rcu: usize) {
        for i in 0..CACHES_A_PAGE {
            // Relaxed: published with the region, or before a cache of this page uses them.
            let _ = self.words[page * PAGE_WORDS + TO_RCU + CACHE_WORDS * i]
                .compare_exchange(0, rcu, Relaxed, Relaxed);
        }
    }

    /// Sets the words of all caches of one region page.
    fn fill_page(&self, page: usize, main: usize, spare: usize) {
        for i in 0..CACHES_A_PAGE {
            let at = page * PAGE_WORDS + CACHE_WORDS * i;
            // Relaxed: published with the region, or before a cache of this page is.
            self.words[at].store(main, Relaxed);
            self.words[at + 1].store(spare, Relaxed);
        }
    }
}

/// The map from CPUs to regions.
#[repr(C)]
pub struct Table {
    /// Caller's memory for the array of active regions, used if it has an entry for every CPU.
    place: &'static [AtomicPtr<Region>],
    /// By CPU: its region, or the stopped region.
    active: AtomicPtr<AtomicPtr<Region>>,
    /// By CPU: its own region, or null.
    regions: AtomicPtr<AtomicPtr<Region>>,
    stopped: AtomicPtr<Region>,
    nr: AtomicUsize,
    /// CPUs from this number on have no region.
    pub(crate) end: AtomicUsize,
    pages: AtomicUsize,
    /// Bit k is set if the rcu words of page k are in use.
    pub(crate) rcu_pages: AtomicUsize,
}

/// Byte offset of the array of active regions in the table's own memory, for `nr` CPUs: behind the
/// array of regions, and at the page offset [`APART`] or above.
fn active_at(nr: usize) -> usize {
    (8 * nr).saturating_sub(APART).next_multiple_of(PAGE_SIZE) + APART
}

/// Bytes of the table's own memory, for `nr` CPUs.
fn table_bytes(nr: usize) -> usize {
    (active_at(nr) + 8 * nr).next_multiple_of(PAGE_SIZE)
}

impl Table {
    /// Byte offset in the table of the word that fast paths read.
    pub const ACTIVE: usize = core::mem::offset_of!(Self, active);

    /// A table that is not set up yet.
    pub const fn new() -> Self {
        Self::at(&[])
    }

    /// A table that is not set up yet. Its array of active regions will lie in `place`, to which no
    /// other code writes, or in the table's own memory if there are more CPUs than places.
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

    /// Sets the table up; returns false if the system refuses memory.
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
        // Relaxed: published by the last store. Release: pairs with `active`.
        self.regions.store(regions.as_ptr(), Relaxed);
        self.stopped.store(stopped.as_ptr(), Relaxed);
        self.nr.store(nr, Relaxed);
        self.pages.store(1, Relaxed);
        self.active.store(active.as_ptr(), Release);
        true
    }

    /// Undoes [`init`](Self::init), before any other thread has seen the table.
    pub(crate) fn undo<P: Platform>(&self, platform: &P) {
        // Relaxed: no other thread has the table.
        let (regions, stopped) = (self.regions.load(Relaxed), self.stopped.load(Relaxed));
        for (start, bytes) in [
            (regions.cast::<u8>(), table_bytes(self.nr())),
            (stopped.cast(), size_of::<Region>()),
        ] {
            if let Some(start) = NonNull::new(start) {
                // SAFETY: mapped by `init`, not used.
                unsafe { platform.unmap(start, platform.whole_pages(bytes)) };
            }
        }
        // Relaxed: no other thread has the table.
        self.active.store(null_mut(), Relaxed);
    }

    /// The array of active regions, for restartable sequences.
    #[inline]
    pub fn active(&self) -> *mut AtomicPtr<Region> {
        // Acquire: pairs with `init`.
        self.active.load(Acquire)
    }

    /// Whether the table is set up.
    pub fn is_there(&self) -> bool {
        !self.active().is_null()
    }

    /// The stopped region; several CPUs may count in it at a time.
    #[inline]
    pub fn stopped(&self) -> *mut Region {
        // Relaxed: set once, before any other thread has the table.
        self.stopped.load(Relaxed)
    }

    /// Number of CPU indices.
    pub fn nr(&self) -> usize {
        // Relaxed: set once, before any other thread has the table.
        self.nr.load(Relaxed)
    }

    /// CPUs from this number on have no region.
    pub fn end(&self) -> usize {
        // Acquire: pairs with `make`.
        self.end.load(Acquire)
    }

    fn entry(&self, cpu: usize) -> &AtomicPtr<Region> {
        assert!(cpu < self.nr());
        // SAFETY: the array has `nr` entries and is never freed.
        unsafe { &*self.active().add(cpu) }
    }

    fn region_entry(&self, cpu: usize) -> &AtomicPtr<Region> {
        assert!(cpu < self.nr());
        // Relaxed: set once, before any other thread has the table.
        let regions = self.regions.load(Relaxed);
        // SAFETY: the array has `nr` entries and is never freed.
        unsafe { &*regions.add(cpu) }
    }

    /// The region to use on a CPU now.
    #[inline]
    pub fn here(&self, cpu: usize) -> &Region {
        // SAFETY: entries are never null, regions are never freed. Acquire: pairs with `make`.
        unsafe { &*self.entry(cpu).load(Acquire) }
    }

    /// A CPU's own region, if it has one. Only the stopper may rely on its words; others read
    /// statistics.
    pub fn region(&self, cpu: usize) -> Option<&Region> {
        // Acquire: pairs with `make`.
        let region = NonNull::new(self.region_entry(cpu).load(Acquire))?;
        // SAFETY: regions are never freed.
        Some(unsafe { region.as_ref() })
    }

    /// One of the regions, selected by `spread`: for statistics, which readers add up. The stopped
    /// region while no CPU has one.
    pub fn any_region(&self, spread: usize) -> &Region {
        let end = self.end();
        // The last CPU before the end has a region.
        let mut cpus = spread.checked_rem(end).unwrap_or(0)..end;
        match cpus.find_map(|cpu| self.region(cpu)) {
            Some(region) => region,
            None => self.here(0),
        }
    }

    /// All regions, with their CPUs.
    pub fn regions(&self) -> impl Iterator<Item = (usize, &Region)> {
        (0..self.end()).filter_map(|cpu| Some((cpu, self.region(cpu)?)))
    }

    /// All regions that may have counts: each CPU's region, and the stopped region.
    pub fn counting(&self) -> impl Iterator<Item = &Region> {
        // Relaxed: set once. SAFETY: regions are never freed.
        let stopped = unsafe { self.stopped.load(Relaxed).as_ref() };
        self.regions().map(|(_, region)| region).chain(stopped)
    }

    /// Gives a CPU its region; returns false if the system refuses memory. The caller holds the
    /// lock of the cache list, and no thread stops CPUs meanwhile.
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
            // Relaxed: changed only under the caller's lock.
            if self.rcu_pages.load(Relaxed) >> page & 1 == 1 {
                region.fill_rcu(page, sheaf::bootstrap());
            }
        }
        // Release: a thread that finds the region must see its words.
        self.region_entry(cpu).store(memory.as_ptr(), Release);
        self.end.fetch_max(cpu + 1, Release);
        self.entry(cpu).store(memory.as_ptr(), Release);
        true
    }

    /// Makes the words of a cache usable in all regions, present and future. The caller holds the
    /// lock of the cache list.
    pub fn prepare(&self, id: CacheId) {
        let page = id.index() / CACHES_A_PAGE;
        // Relaxed: changed only under the caller's lock.
        while self.pages.load(Relaxed) <= page {
            let next = self.pages.load(Relaxed);
            // SAFETY: set up by `init`; regions are never freed. Relaxed: set once.
            unsafe { &*self.stopped.load(Relaxed) }.fill_page(
                next,
                sheaf::stopped(),
                sheaf::stopped(),
            );
            for (_, region) in self.regions() {
                region.fill_page(next, sheaf::bootstrap(), 0);
            }
            // Relaxed: changed only under the caller's lock.
            self.pages.store(next + 1, Relaxed);
        }
    }

    /// Makes the rcu words of a cache usable in all regions, present and future. The caller holds
    /// the lock of the cache list.
    pub(crate) fn prepare_rcu(&self, id: CacheId) {
        let page = id.index() / CACHES_A_PAGE;
        // SAFETY: set up by `init`; regions are never freed. Relaxed: set once.
        unsafe { &*self.stopped.load(Relaxed) }.fill_rcu(page, sheaf::stopped());
        for (_, region) in self.regions() {
            region.fill_rcu(page, sheaf::bootstrap());
        }
        // Relaxed: changed only under the caller's lock.
        self.rcu_pages.fetch_or(1 << page, Relaxed);
    }

    /// Clears the counts of a cache whose identity is reused.
    pub(crate) fn reset_counts(&self, id: CacheId) {
        for region in self.counting() {
            let (main, rcu) = (id.main().0 as usize, id.rcu().0 as usize);
            for counted in [
                main + ALLOCS_OFFSET / 8,
                main + FREES_OFFSET / 8,
                rcu + FREES_OFFSET / 8,
            ] {
                // Relaxed: statistics; no cache uses the identity.
                region.words[counted].store(0, Relaxed);
            }
            // Relaxed: no cache uses the identity.
            region.capacity_states[id.index()].store(0, Relaxed);
            // Relaxed: no cache uses the identity.
            for count in &region.stats[id.index() * STAT_SLOTS..][..STAT_SLOTS] {
                // Relaxed: no cache uses the identity.
                count.store(0, Relaxed);
            }
        }
    }

    /// Keeps all threads off a CPU's region and gives it to the caller alone. `None` if the CPU has
    /// no region or the platform refuses a fence. One stopper at a time.
    pub fn stop<P: Platform>(&self, platform: &P, cpu: usize) -> Option<&Region> {
        let region = self.region(cpu)?;
        // Relaxed: set once.
        let stopped = self.stopped.load(Relaxed);
        // AcqRel: the fence then orders the swap against sequences on other CPUs.
        let before = self.entry(cpu).swap(stopped, AcqRel);
        debug_assert_ne!(before, stopped);
        if platform.fence() {
            Some(region)
        } else {
            self.resume(cpu);
            None
        }
    }

    /// Ends [`stop`](Self::stop).
    pub fn resume(&self, cpu: usize) {
        // Relaxed: our own store, or one that `make` released before the stop.
        let region = self.region_entry(cpu).load(Relaxed);
        // Release: a thread that finds the region must see the stopper's stores.
        self.entry(cpu).store(region, Release);
    }

    /// Ends every stop and unlocks every word, in the child of a fork: the stopper or lock holder
    /// may be a thread that does not exist in the child.
    pub fn resume_all<'a>(&'a self) {
        for cpu in 0..self.end() {
            if let Some(region) = self.region(cpu) {
                // The lock holders do not exist in the child; each top is as before its lock.
                // Relaxed: the child has one thread.
                let pages = region
                    .words
                    .chunks(PAGE_WORDS)
                    .take(self.pages.load(Relaxed));
                // Each group has main and spare, or the rcu word and an unused one.
                let tops = |page: &'a [AtomicUsize]| page.chunks(CACHE_WORDS).flat_map(|c| &c[..2]);
                for word in pages.flat_map(tops) {
                    // Relaxed: the child has one thread.
                    if word.load(Relaxed) & 1 != 0 {
                        word.fetch_and(!1, Relaxed);
                    }
                }
                self.resume(cpu);
            }
        }
    }

    /// Bytes of the table and of the main words in use: an estimate without rcu words and slow-path
    /// counters.
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
