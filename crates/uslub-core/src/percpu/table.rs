//! Which region each CPU uses, and how a CPU is stopped.
//!
//! A table entry has three states:
//!
//! | entry of a CPU | meaning |
//! |---|---|
//! | the stopped region, no own region | the CPU ran no slow path; see `ahead` |
//! | its own region | running: the CPU's threads use the words |
//! | the stopped region, with an own region | stopped: the stopper owns the words |
//!
//! [`Table::stop`] gives access to another CPU's words: it turns the table entry to the stopped
//! region, in which every slot says *stopped*. A fence waits until no thread is in a sequence on
//! the old region. The stopper then owns the region until [`Table::resume`]. Callers: fast paths
//! read; `Base` makes regions and `cache::drain` stops CPUs, under the drain lock.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::layout::{Row, rows};
use crate::percpu::ahead::Ahead;
use crate::percpu::closed::ClosedCaches;
use crate::percpu::region::*;
use crate::percpu::sheaf;
use crate::percpu::slot::LOCKED;
use crate::percpu::stats::STAT_SLOTS;
use crate::platform::{PAGE_SIZE, Platform};
use crate::sync::atomic::{AtomicPtr, AtomicUsize};

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
    /// Mapped regions without a CPU.
    ahead: Ahead,
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
    pub(crate) const ROWS: &'static [Row] =
        rows!("Table", Self, [regions, stopped, nr, end, pages]);

    /// Byte offset in the table of the word that fast paths read.
    pub const ACTIVE: usize = core::mem::offset_of!(Self, active);

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
            ahead: Ahead::new(),
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

    fn stopped_region(&self) -> Option<&Region> {
        // SAFETY: regions are never freed.
        unsafe { self.stopped().as_ref() }
    }

    /// All regions that may have counts: each CPU's region, and the stopped region.
    pub fn counting(&self) -> impl Iterator<Item = &Region> {
        (self.regions().map(|(_, region)| region)).chain(self.stopped_region())
    }

    /// Gives a CPU its region; returns false if the system refuses memory. The caller holds the
    /// drain lock.
    pub(crate) fn make<P: Platform>(
        &self,
        platform: &P,
        cpu: usize,
        closed: &ClosedCaches,
    ) -> bool {
        if self.region(cpu).is_none() {
            self.make_ahead(platform);
        }
        self.make_without_mapping(cpu, closed)
    }

    /// Unmaps the regions that were mapped ahead; returns whether there were any. The caller holds
    /// the drain lock.
    pub(crate) fn give_back_ahead<P: Platform>(&self, platform: &P) -> bool {
        self.ahead.give_back(platform)
    }

    /// Maps regions for CPUs that have none, if no mapped one is left. The caller holds the drain
    /// lock.
    pub(crate) fn make_ahead<P: Platform>(&self, platform: &P) {
        let cpus = platform.nr_cpus().min(self.nr());
        let missing = cpus.saturating_sub(self.regions().count());
        self.ahead.fill(platform, missing.max(1));
    }

    /// Regions that are mapped, but no CPU's yet.
    pub fn regions_ahead(&self) -> usize {
        self.ahead.left()
    }

    /// As [`make`](Self::make), without asking the system: returns false if no mapped region is
    /// left.
    pub(crate) fn make_without_mapping(&self, cpu: usize, closed: &ClosedCaches) -> bool {
        if self.region(cpu).is_some() {
            return true;
        }
        let Some(memory) = self.ahead.take() else {
            return false;
        };
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
        closed.close_in(region);
        // Release: a thread that finds the region must see its words.
        self.region_entry(cpu).store(memory.as_ptr(), Release);
        self.end.fetch_max(cpu + 1, Release);
        self.entry(cpu).store(memory.as_ptr(), Release);
        true
    }

    /// Makes the words of a cache usable in all regions, present and future. The caller holds the
    /// drain lock.
    pub fn prepare(&self, id: CacheId) {
        // Relaxed: changed only under the caller's lock.
        for page in self.pages.load(Relaxed)..=id.index() / CACHES_A_PAGE {
            if let Some(region) = self.stopped_region() {
                region.fill_page(page, sheaf::stopped(), sheaf::stopped());
            }
            for (_, region) in self.regions() {
                region.fill_page(page, sheaf::bootstrap(), 0);
            }
            // Relaxed: as above.
            self.pages.store(page + 1, Relaxed);
        }
    }

    /// Makes the rcu words of a cache usable in all regions, present and future. The caller holds
    /// the drain lock.
    pub(crate) fn prepare_rcu(&self, id: CacheId) {
        let page = id.index() / CACHES_A_PAGE;
        if let Some(region) = self.stopped_region() {
            region.fill_rcu(page, sheaf::stopped());
        }
        for (_, region) in self.regions() {
            region.fill_rcu(page, sheaf::bootstrap());
        }
        // Relaxed: changed only under the caller's lock.
        self.rcu_pages.fetch_or(1 << page, Relaxed);
    }

    /// Clears the counts of a cache whose identity is reused.
    pub(crate) fn reset_counts(&self, id: CacheId) {
        for region in self.counting() {
            for (slot, offset) in [
                (id.main(), ALLOCS_OFFSET),
                (id.main(), FREES_OFFSET),
                (id.rcu(), FREES_OFFSET),
            ] {
                // Relaxed, here and below: no cache uses the identity.
                region.words[slot.0 as usize + offset / 8].store(0, Relaxed);
            }
            region.capacity_state(id).store(0, Relaxed);
            for count in &region.stats[id.index() * STAT_SLOTS..][..STAT_SLOTS] {
                // Relaxed: as above.
                count.store(0, Relaxed);
            }
        }
    }

    /// Stops a CPU, and gives its region to the caller alone. `None` if it has no region or the
    /// platform refuses a fence. One stopper at a time.
    pub fn stop<P: Platform>(&self, platform: &P, cpu: usize) -> Option<&Region> {
        let (region, stopped) = (self.region(cpu)?, self.stopped());
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
    pub fn resume_all(&self) {
        // Relaxed, here and below: the child has one thread.
        let used = PAGE_WORDS * self.pages.load(Relaxed);
        for (cpu, region) in self.regions() {
            // Each group has main and spare, or the rcu word and an unused one.
            for word in region.words[..used]
                .chunks(CACHE_WORDS)
                .flat_map(|c| &c[..2])
            {
                // Each top is as before its lock. Relaxed: as above.
                if word.load(Relaxed) & LOCKED != 0 {
                    word.fetch_and(!LOCKED, Relaxed);
                }
            }
            self.resume(cpu);
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
