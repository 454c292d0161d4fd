//! Counters: calls of each cache, in all and by CPU slot, and events of the slow paths.
//!
//! Each CPU slot counts in its own region. All counts are racy, as the allocator's own sums are:
//! use them as rates.

use crate::heap::{Cache, Heap, words};

/// Allocations and frees of one cache.
pub type Calls = (u64, u64);

impl Heap<'_> {
    /// The regions that count: those of the CPU slots, then the one of stopped CPUs.
    fn counting(&self) -> impl Iterator<Item = u64> {
        let stopped = Some(self.stopped).filter(|&at| at != 0);
        (self.regions.iter().map(|&(_, at)| at)).chain(stopped)
    }

    /// Allocations and frees of each cache in one region, whose words are `words_here`.
    fn calls_in(&self, region: u64, words_here: &[u64], caches: &[Cache]) -> Vec<Calls> {
        let last = caches.iter().map(|cache| cache.index).max();
        let slots = last.map_or(0, |last| (last + 1) * self.f.stat_slots);
        let mut bytes = vec![0; slots * 8];
        let at = region.wrapping_add(self.f.region_stats as u64);
        self.memory.read_sparse(at, &mut bytes);
        let stats: Vec<_> = words(&bytes).collect();
        let of_cache = |cache: &Cache| {
            let fast = self.word_of(cache.index);
            let word = |at: usize| words_here.get(at).copied().unwrap_or(0);
            let stat = |item: usize| {
                let at = cache.index * self.f.stat_slots + item;
                stats.get(at).copied().unwrap_or(0)
            };
            let slow = |items: [usize; 2]| stat(items[0]).wrapping_add(stat(items[1]));
            let allocs = word(fast + 2).wrapping_add(slow(self.f.stat_allocs));
            let frees = word(fast + 3).wrapping_add(slow(self.f.stat_frees));
            (allocs, frees)
        };
        caches.iter().map(of_cache).collect()
    }

    /// Allocations and frees of each cache so far, of all regions; `regions` are the words of the
    /// CPU slots.
    pub(crate) fn calls(&self, caches: &[Cache], regions: &[Vec<u64>]) -> Vec<Calls> {
        let mut sums = vec![(0_u64, 0_u64); caches.len()];
        for (i, region) in self.counting().enumerate() {
            let here = match regions.get(i) {
                Some(words) => self.calls_in(region, words, caches),
                None => self.calls_in(region, &self.words_of(region, caches), caches),
            };
            for (sum, calls) in sums.iter_mut().zip(here) {
                sum.0 = sum.0.wrapping_add(calls.0);
                sum.1 = sum.1.wrapping_add(calls.1);
            }
        }
        sums
    }

    /// Allocations and frees of each cache so far on each CPU slot: for each cache one entry a
    /// slot, in the order of the slots. An object may be freed on another slot than it was
    /// allocated on.
    pub fn calls_by_slot(&self, caches: &[Cache]) -> Vec<Vec<Calls>> {
        let mut all = vec![Vec::new(); caches.len()];
        for &(_, region) in &self.regions {
            let here = self.calls_in(region, &self.words_of(region, caches), caches);
            for (slots, calls) in all.iter_mut().zip(here) {
                slots.push(calls);
            }
        }
        all
    }

    /// A counter of the slow paths, of each cache: a sum over all CPUs, racy. The names are those
    /// of `/sys/kernel/slab`, for example `sheaf_refill`. `None` if this version has no such
    /// counter.
    pub fn counter(&self, caches: &[Cache], name: &'static str) -> Option<Vec<u64>> {
        let most = self.f.stat_slots - 1;
        let item = self.root.layout.constant(name, 0..=most).ok()?;
        let sum = |cache: &Cache| {
            let offset = self.f.region_stats + 8 * (cache.index * self.f.stat_slots + item);
            let mut sum = 0_u64;
            for region in self.counting() {
                let mut word = [0; 8];
                (self.memory).read_sparse(region.wrapping_add(offset as u64), &mut word);
                sum = sum.wrapping_add(u64::from_le_bytes(word));
            }
            sum
        };
        Some(caches.iter().map(sum).collect())
    }
}
