//! Sheaf capacity: grows while a CPU misses, shrinks while it is idle.
//!
//! Tunables:
//!
//! - `sheaf_capacity`: the minimum, or the fixed capacity, in objects.
//! - `sheaf_capacity_max`: the maximum, in objects; 0 for a fixed capacity.
//! - `sheaf_budget_mb`: MiB that the sheaves of all adaptive caches may hold. Sheaves get smaller
//!   as their total nears the budget. Above it, neither sheaves nor [barns](crate::sheaf::barn)
//!   grow.
//!
//! Each CPU has a target capacity per cache, one of [`CAPACITY_STEPS`]. Sheaves of different
//! capacities circulate. An empty sheaf gets the target capacity before it is filled. A sheaf with
//! objects only grows, when the CPU takes it. (All windows have one size, so a sheaf stays in its
//! window.)
//!
//! | event | target capacity |
//! |---|---|
//! | a miss: the barn has no full sheaf, or no room for one; target below 28 objects | next step |
//! | two misses within 10 ms; target of 28 objects or more | next step |
//! | no barn access for 40 ms | one step less |
//! | no allocation or free during two checks, 10 ms apart | minimum; the sheaves are flushed |
//!
//! A miss in the barn is the signal: a barn access is cheap, a refill from slabs is not. 63 barn
//! accesses count as one miss, and a swap of spare and main counts as a barn access.
//!
//! The state is one racy word per CPU and cache. Callers: `sheaf`, and `cache` for checks.

use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::percpu::Region;
use crate::percpu::sheaf::{MAX_CAPACITY, Sheaf};
use crate::percpu::sheaf_list::SheafList;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::{
    CAPACITY_ACCESSES, CAPACITY_MISSES, CAPACITY_QUICK_OBJECTS, CAPACITY_QUIET_MS, CAPACITY_STEPS,
    CAPACITY_WINDOW_MS,
};
use crate::sheaf::cache::SheafCache;
use crate::slab::base::Base;
use crate::sync::atomic::AtomicU64;
use crate::sync::time::age_of_low;

const _: () = assert!(CAPACITY_STEPS[CAPACITY_STEPS.len() - 1] == MAX_CAPACITY);

/// The capacity state of a CPU and cache, in a word of the CPU's region. Racy: a lost update costs
/// one step.
#[derive(Clone, Copy)]
struct CapacityState {
    /// Index into [`CAPACITY_STEPS`].
    step: u8,
    /// Checks without any activity, up to 15.
    idle: u8,
    misses: u8,
    /// Barn accesses since one last counted as a miss, below 63.
    accesses: u8,
    /// Low 8 bits of the count of allocations and frees at the last check.
    activity: u8,
    /// Time of the last miss or window start, in milliseconds, the low 32 bits; 0 at first.
    visited: u32,
}

impl CapacityState {
    fn load(word: &AtomicU64) -> Self {
        // Relaxed: a hint.
        let [both, misses, accesses, activity, a, b, c, d] = word.load(Relaxed).to_le_bytes();
        Self {
            step: both & 7,
            idle: both >> 4,
            misses,
            accesses,
            activity,
            visited: u32::from_le_bytes([a, b, c, d]),
        }
    }

    fn store(self, word: &AtomicU64) {
        let [a, b, c, d] = self.visited.to_le_bytes();
        let both = self.step | self.idle << 4;
        let bytes = [both, self.misses, self.accesses, self.activity, a, b, c, d];
        // Relaxed: a hint.
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}

/// The capacity of a step for a cache, in objects.
fn capacity_of<P: Platform>(cache: &SheafCache<P>, step: u8) -> usize {
    CAPACITY_STEPS[usize::from(step).min(CAPACITY_STEPS.len() - 1)]
        .clamp(cache.capacity, cache.capacity_max.max(cache.capacity))
}

impl<P: Platform> Base<P> {
    /// Capacity of a new sheaf of this CPU, in objects.
    pub(crate) fn wanted_capacity(&self, cache: &SheafCache<P>) -> usize {
        if !cache.is_adaptive() {
            return cache.capacity;
        }
        let region = self.table.here(self.platform.cpu());
        let step = CapacityState::load(region.capacity_state(cache.id)).step;
        capacity_of(cache, step.saturating_sub(self.steps_less()))
    }

    /// Steps by which all sheaves are smaller than their targets: one once three eighths of the
    /// budget are used, and one more for each further eighth. All sheaves shrink together. If only
    /// sheaves made above the budget were small, half of a CPU's sheaves would have the minimum
    /// capacity and half the maximum.
    fn steps_less(&self) -> u8 {
        let eighth = (self.tunables().sheaf_budget_mb as usize) << 17;
        let used = self.sheaf_bytes();
        // The common case, without a division.
        if used < 3 * eighth {
            return 0;
        }
        (used / eighth.max(1))
            .saturating_sub(2)
            .min(CAPACITY_STEPS.len() - 1) as u8
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        // Relaxed: a soft bound.
        self.sheaf_bytes.load(Relaxed) > (self.tunables().sheaf_budget_mb as usize) << 20
    }

    /// Accounts for a new sheaf of an adaptive cache.
    pub(crate) fn account_made(&self, cache: &SheafCache<P>, capacity: usize) {
        if cache.is_adaptive() {
            // Relaxed: a statistic.
            self.sheaf_bytes
                .fetch_add(capacity * cache.size as usize, Relaxed);
        }
    }

    /// Accounts for a freed sheaf of an adaptive cache.
    pub(crate) fn account_freed(&self, cache: &SheafCache<P>, capacity: usize) {
        if cache.is_adaptive() {
            // Relaxed: a statistic.
            self.sheaf_bytes
                .fetch_sub(capacity * cache.size as usize, Relaxed);
        }
    }

    /// Bytes of objects that the sheaves of adaptive caches can hold.
    pub fn sheaf_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.sheaf_bytes.load(Relaxed)
    }

    /// Adjusts a sheaf to this CPU's target capacity; a sheaf with objects only grows.
    pub(crate) fn adjust_capacity(&self, cache: &SheafCache<P>, sheaf: Sheaf) -> Sheaf {
        self.adjust_capacity_for(cache, sheaf, 0)
    }

    /// As [`adjust_capacity`](Self::adjust_capacity), but with room for at least `least` objects,
    /// up to the cache's largest capacity.
    #[inline(never)]
    pub(crate) fn adjust_capacity_for(
        &self,
        cache: &SheafCache<P>,
        mut sheaf: Sheaf,
        least: usize,
    ) -> Sheaf {
        // A sheaf with objects only grows.
        let is_grown = || !sheaf.is_empty() && sheaf.capacity() >= cache.capacity_max;
        if !cache.is_adaptive() || is_grown() {
            return sheaf;
        }
        let least = least.min(cache.capacity_max);
        let (old, new) = (sheaf.capacity(), self.wanted_capacity(cache).max(least));
        if old == new || (!sheaf.is_empty() && new < old) {
            return sheaf;
        }
        self.account_freed(cache, old);
        self.account_made(cache, new);
        if !sheaf.is_empty() {
            sheaf.widen(new);
            return sheaf;
        }
        // SAFETY: an empty sheaf of ours.
        unsafe { Sheaf::new(sheaf.into_window(), new, cache.id.index()) }
    }

    /// Records a barn access of this CPU; `failed` says that it was a miss, or that there was no
    /// room.
    #[inline]
    pub(crate) fn on_barn_access(&self, cache: &SheafCache<P>, failed: bool) {
        if cache.is_adaptive() {
            self.on_access(cache, failed);
        }
    }

    fn on_access(&self, cache: &SheafCache<P>, failed: bool) {
        let region = self.table.here(self.platform.cpu());
        let word = region.capacity_state(cache.id);
        let mut capacity_state = CapacityState::load(word);
        let now = self.platform.now_ms();
        let since = age_of_low(now, capacity_state.visited);
        let before = capacity_of(cache, capacity_state.step);
        let first = capacity_state.visited == 0;
        capacity_state.accesses += 1;
        let failed = failed || capacity_state.accesses >= CAPACITY_ACCESSES;
        if failed {
            capacity_state.accesses = 0;
        }
        if since > CAPACITY_QUIET_MS && capacity_state.step > 0 && !first {
            capacity_state.step -= 1;
            capacity_state.misses = 0;
        } else if failed && !first {
            if since > CAPACITY_WINDOW_MS {
                capacity_state.misses = 0;
            }
            capacity_state.misses = capacity_state.misses.saturating_add(1);
            let enough =
                before < CAPACITY_QUICK_OBJECTS || capacity_state.misses >= CAPACITY_MISSES;
            if enough
                && usize::from(capacity_state.step) < CAPACITY_STEPS.len() - 1
                && !self.is_over_budget()
            {
                capacity_state.misses = 0;
                // Skip steps that do not change this cache's capacity.
                while usize::from(capacity_state.step) < CAPACITY_STEPS.len() - 1
                    && capacity_of(cache, capacity_state.step) == before
                {
                    capacity_state.step += 1;
                }
            }
        }
        if failed || since > CAPACITY_WINDOW_MS {
            capacity_state.visited = (now as u32).max(1);
        }
        let after = capacity_of(cache, capacity_state.step);
        if after > before {
            self.count(cache, StatItem::SheafGrow, 1);
        } else if after < before {
            self.count(cache, StatItem::SheafShrink, 1);
        }
        capacity_state.store(word);
    }

    /// Records that this CPU's spare became its main sheaf.
    pub(crate) fn on_swap(&self, cache: &SheafCache<P>) {
        if !cache.is_adaptive() {
            return;
        }
        let region = self.table.here(self.platform.cpu());
        let word = region.capacity_state(cache.id);
        let mut capacity_state = CapacityState::load(word);
        if capacity_state.accesses + 1 >= CAPACITY_ACCESSES {
            return self.on_barn_access(cache, false);
        }
        capacity_state.accesses += 1;
        capacity_state.store(word);
    }

    /// Checks which CPUs have not used an adaptive cache for two checks; returns whether one of
    /// them has just become idle.
    #[inline(never)]
    pub(crate) fn mark_idle_cpus(&self, cache: &SheafCache<P>) -> bool {
        let mut any = false;
        for (_, region) in self.table.regions() {
            let word = region.capacity_state(cache.id);
            let mut capacity_state = CapacityState::load(word);
            let (allocs, frees) = region.counts(cache.id);
            let activity = allocs.wrapping_add(frees) as u8;
            if capacity_state.activity == activity {
                capacity_state.idle = (capacity_state.idle + 1).min(15);
            } else {
                (capacity_state.idle, capacity_state.activity) = (0, activity);
            }
            if capacity_state.idle >= 2 && capacity_state.step > 0 {
                (capacity_state.step, capacity_state.misses) = (0, 0);
                self.count(cache, StatItem::SheafShrink, 1);
            }
            any |= capacity_state.idle == 2;
            capacity_state.store(word);
        }
        any
    }

    /// Whether a CPU has just become idle.
    pub(crate) fn is_idle_on(cache: &SheafCache<P>, region: &Region) -> bool {
        CapacityState::load(region.capacity_state(cache.id)).idle == 2
    }

    /// Flushes the surplus of an adaptive cache's barns: sheaves not needed since the last check.
    #[inline(never)]
    pub(crate) fn trim_barns(&self, cache: &SheafCache<P>) {
        for barn in cache.barns() {
            let mut surplus: SheafList = barn.take_surplus();
            while let Some(mut sheaf) = surplus.pop() {
                self.flush_sheaf(cache, &mut sheaf, Gfp::KERNEL);
                self.free_sheaf(cache, sheaf, Gfp::KERNEL);
            }
        }
    }
}
