//! Statistics of caches and of the allocator: the columns of `/proc/slabinfo`, and the counters.
//!
//! The figures are sums over CPUs and nodes, taken while other threads run: exact only if the
//! allocator is idle. Any thread may call if it may wait for locks.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::memory::PageKind;
use crate::memory::mapped::Lookup;
use crate::percpu::slot::{SlotState, Top};
use crate::percpu::stats::StatItem;
use crate::percpu::{CacheId, Region};
use crate::platform::{PAGE_SIZE, Platform};
use crate::sheaf::barn::Barn;

/// Statistics of one cache; exact if no thread uses the cache meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheInfo {
    /// Slots in all slabs.
    pub num_objs: usize,
    /// Slots in use, including objects in sheaves.
    pub active_objs: usize,
    /// Objects in sheaves.
    pub cached_objs: usize,
    /// Slabs, including those of page batches.
    pub num_slabs: usize,
    /// Slabs with a slot in use.
    pub active_slabs: usize,
    /// Most slabs that there were at once, including those of page batches.
    pub peak_slabs: usize,
    /// Objects allocated.
    pub allocs: u64,
    /// Objects freed.
    pub frees: u64,
}

impl CacheInfo {
    /// Objects that the program holds.
    pub fn live_objs(&self) -> usize {
        self.active_objs.saturating_sub(self.cached_objs)
    }
}

/// How full the slab of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabUse {
    /// Slots in use, including objects in sheaves.
    pub used: usize,
    /// All slots.
    pub slots: usize,
}

/// Statistics of an allocator, in bytes except for the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects that the program holds.
    pub live: usize,
    /// Objects in sheaves.
    pub cached: usize,
    /// Free slots in slabs.
    pub free: usize,
    /// All slabs.
    pub slabs: usize,
    /// Large objects.
    pub large: usize,
    /// Huge objects.
    pub huge: usize,
    /// Free pages and cached mappings that may be resident.
    pub dirty: usize,
    /// The allocator's own records.
    pub metadata: usize,
    /// Number of objects allocated.
    pub allocs: u64,
    /// Number of objects freed.
    pub frees: u64,
}

impl<P: Platform> Allocator<P> {
    /// Calls `look` with the cache of an identity, if it exists; no thread destroys it meanwhile.
    /// `look` may take only the locks of [`info`](Self::info).
    pub fn look_at<T>(&self, id: CacheId, look: impl FnOnce(&KmemCache<P>) -> T) -> Option<T> {
        self.while_draining(|| self.cache(id).map(look))
    }

    /// Statistics of a cache.
    pub fn info(&self, cache: &KmemCache<P>) -> CacheInfo {
        let arena = &self.zone.arena;
        let objects = cache.geometry.objects as usize;
        let num_slabs = cache.nr_slabs();
        let (mut free, mut empty) = (0, 0);
        for node in cache.nodes() {
            let mut lists = node.lists.lock();
            node.drain_all_pending(arena, &mut lists, cache.has_reserve());
            for slab in lists.partial.iter(arena) {
                let inuse = slab.state().inuse() as usize;
                free += objects - inuse;
                empty += usize::from(inuse == 0);
            }
            // Relaxed: a statistic.
            let waiting = node.nr_waiting.load(Relaxed);
            let untouched = lists.empty.len() + node.ahead.slabs() + waiting;
            free += untouched * objects;
            empty += untouched;
        }
        let num_objs = num_slabs * objects;
        CacheInfo {
            num_objs,
            active_objs: num_objs.saturating_sub(free),
            cached_objs: self.cached(cache),
            num_slabs,
            active_slabs: num_slabs.saturating_sub(empty),
            peak_slabs: cache.peak_slabs(),
            allocs: self.stat(cache, StatItem::AllocFastpath)
                + self.stat(cache, StatItem::AllocSlowpath),
            frees: self.stat(cache, StatItem::FreeFastpath)
                + self.stat(cache, StatItem::FreeSlowpath),
        }
    }

    /// How full the slab is that an address lies in; `None` for an address in no slab. The start of
    /// a large or huge object counts as a slab with one slot.
    ///
    /// Takes no lock for an object of a cache.
    pub fn slab_use(&self, address: *const u8) -> Option<SlabUse> {
        let alone = SlabUse { used: 1, slots: 1 };
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(address as usize) else {
            // The table's empty entries have the address 0.
            let found =
                (!address.is_null()).then(|| self.mapped.find(address as usize, true))??;
            return matches!(found, Lookup::Start(_)).then_some(alone);
        };
        let Some(cache) = arena.cache_of(page).and_then(|id| self.cache(id)) else {
            // Only the first page of a large object says what it is.
            return (arena.slab(page).kind() == PageKind::Large).then_some(alone);
        };
        Some(SlabUse {
            used: cache.slab_of(arena, page).state().inuse() as usize,
            slots: cache.geometry.objects as usize,
        })
    }

    /// Value of a counter, summed over all CPUs.
    pub fn stat(&self, cache: &KmemCache<P>, item: StatItem) -> u64 {
        let regions = self.table.counting();
        regions.map(|region| count_in(region, cache, item)).sum()
    }

    /// Value of a counter on one CPU.
    pub fn stat_on(&self, cache: &KmemCache<P>, item: StatItem, cpu: usize) -> u64 {
        let region = (cpu < self.table.end()).then(|| self.table.region(cpu));
        region
            .flatten()
            .map_or(0, |region| count_in(region, cache, item))
    }

    /// A number that changes with each allocation or free: tells whether a program is idle.
    pub fn activity(&self) -> u64 {
        let pcp = &self.memory.pcp;
        let large = pcp.calls(0).wrapping_add(pcp.calls(1));
        self.while_draining(|| {
            self.caches().fold(large as u64, |sum, cache| {
                sum.wrapping_add(self.activity_of(cache))
            })
        })
    }

    /// A number that changes with each allocation from a cache or free to it.
    pub(crate) fn activity_of(&self, cache: &KmemCache<P>) -> u64 {
        let items = [
            StatItem::AllocFastpath,
            StatItem::FreeFastpath,
            StatItem::AllocSlowpath,
            StatItem::FreeSlowpath,
        ];
        let sum = items.iter().map(|&item| self.stat(cache, item));
        sum.fold(0, u64::wrapping_add)
    }

    /// Objects in the sheaves of all CPUs and barns, and deferred ones.
    fn cached(&self, cache: &KmemCache<P>) -> usize {
        let mut n = cache.deferred.len();
        self.for_each_top(cache, |top| n += top.len());
        for barn in cache.barns() {
            barn.for_each_full(|objects| n += objects.len());
        }
        n
    }

    /// Calls `visit` with the top of each sheaf in a CPU's slot.
    pub(crate) fn for_each_top(&self, cache: &KmemCache<P>, mut visit: impl FnMut(Top)) {
        for (_, region) in self.table.regions() {
            for slot in [cache.id.main(), cache.id.spare()] {
                SlotState::sheaf_in(region.peek(slot)).map(&mut visit);
            }
        }
    }

    /// Whether a lock that the statistics need is taken; may be stale. The holder is another
    /// thread, or the code that a signal handler interrupted.
    pub fn is_busy(&self) -> bool {
        let is_busy = |cache: &KmemCache<P>| {
            cache.nodes().any(|node| node.lists.is_held()) || cache.barns().any(Barn::is_held)
        };
        self.drain.is_held() || self.caches().any(is_busy)
    }

    /// Bytes of large objects now, those of mappings excepted.
    fn large_bytes(&self) -> usize {
        // Relaxed: a statistic.
        let taken = self.large_pages.load(Relaxed) * PAGE_SIZE;
        taken.saturating_sub(self.memory.pcp.bytes())
    }

    /// Most bytes of large and huge objects at once.
    pub fn peak_large_bytes(&self) -> usize {
        // Relaxed: a statistic.
        let now = self.large_bytes() + self.mapped.live_bytes();
        self.peak_large.load(Relaxed).max(now)
    }

    /// Records the bytes of large and huge objects. Each maximum ends with a free, so a call before
    /// each free is enough, and allocations pay nothing. A maximum that is above the last one by
    /// less than what other CPUs keep may be missed.
    #[inline]
    pub(crate) fn note_large_peak(&self) {
        let here = self.memory.pcp.bytes_on(self.platform.cpu());
        // Relaxed, both: statistics.
        let taken = self.large_pages.load(Relaxed) * PAGE_SIZE;
        let bytes = taken.saturating_sub(here) + self.mapped.live_bytes();
        if bytes > self.most_large.load(Relaxed) {
            self.note_larger_peak(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_larger_peak(&self, most: usize) {
        let bytes = self.large_bytes() + self.mapped.live_bytes();
        // Relaxed, both: statistics.
        self.peak_large.fetch_max(bytes, Relaxed);
        self.most_large.fetch_max(most, Relaxed);
    }

    /// Large and huge objects that the program holds.
    pub fn large_objs(&self) -> usize {
        let [allocs, frees] = [0, 1].map(|which| self.memory.pcp.calls(which));
        allocs.saturating_sub(frees)
    }

    /// Statistics of the whole allocator.
    pub fn totals(&self) -> Totals {
        let mut t = Totals {
            large: self.large_bytes(),
            huge: self.mapped.live_bytes(),
            dirty: self.kept_bytes(),
            metadata: self.metadata_bytes(),
            allocs: self.memory.pcp.calls(0) as u64,
            frees: self.memory.pcp.calls(1) as u64,
            ..Totals::default()
        };
        t.live = t.large + t.huge;
        self.while_draining(|| {
            for cache in self.caches() {
                let (info, size) = (self.info(cache), cache.size as usize);
                t.live += info.live_objs() * size;
                t.cached += info.cached_objs * size;
                t.free += (info.num_objs - info.active_objs) * size;
                t.slabs += info.num_slabs * cache.geometry.bytes();
                t.allocs += info.allocs;
                t.frees += info.frees;
            }
        });
        t
    }
}

/// Value of a counter in one region.
pub(crate) fn count_in<P: Platform>(region: &Region, cache: &KmemCache<P>, item: StatItem) -> u64 {
    // Relaxed: statistics.
    let count = |counter| region.counter(counter).load(Relaxed);
    let elsewhere = match item {
        StatItem::AllocFastpath => region.counts(cache.id).0,
        StatItem::FreeFastpath => region.counts(cache.id).1,
        StatItem::FreeRcuSheaf => region.rcu_count(cache.id),
        _ => 0,
    };
    count(cache.counters.counter(item)) + elsewhere
}
