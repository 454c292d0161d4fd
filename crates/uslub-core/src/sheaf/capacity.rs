//! Sheaves between a minimum and a maximum capacity: they grow where a CPU keeps missing and shrink
//! where it is idle.
//!
//! | tunable | meaning |
//! |---|---|
//! | `sheaf_capacity` | the minimum, or the fixed capacity |
//! | `sheaf_capacity_max` | the maximum; 0 for a fixed capacity |
//! | `sheaf_budget_mb` | MiB that sheaves of all such caches may hold; the nearer they come, the smaller sheaves are, and above it neither they nor [barns](crate::sheaf::barn) grow |
//!
//! Each CPU has a capacity that it wants, a cache, one of [`STEPS`]. Sheaves of any capacity go
//! round: an empty one is cut to what the CPU wants before it is filled, one with objects is
//! widened when the CPU takes it. (All windows are of one size, so it stays where it is.)
//!
//! | what happened | what the CPU wants then |
//! |---|---|
//! | the barn had no full sheaf for an allocation, or no room for a free, below 28 objects | the next step at once |
//! | the same twice within 10 ms, from 28 objects on | the next step |
//! | no visit to the barn for 40 ms | one step less |
//! | no allocation and no free for two looks, 10 ms apart | the minimum; its sheaves are flushed |
//!
//! Failing at the barn is the signal: a barn visit is cheap, a refill from slabs is not. Of visits,
//! 63 weigh as much as a miss; that the spare became the main sheaf counts as a visit.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::Region;
use crate::percpu::sheaf::{MAX_CAPACITY, Sheaf, SheafList};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::slab::order::FIRST_MAX;
use crate::sync::atomic::AtomicU64;
use crate::sync::time::age_of_low;

/// Capacities that are used: the kernel's, and three more.
pub const STEPS: [usize; 7] = [4, 12, 28, 60, 124, FIRST_MAX, MAX_CAPACITY];
/// Below this capacity a single miss is enough to grow.
const QUICK: usize = 28;
/// Misses within a window that make a larger sheaf grow.
const MISSES: u8 = 2;
/// Visits to the barn, and to the spare, that weigh as much as a miss.
const VISITS: u8 = 63;
/// Milliseconds of a window.
const WINDOW_MS: u32 = 10;
/// Milliseconds without a visit to the barn after which a CPU wants less.
const QUIET_MS: u32 = 40;

/// What a CPU wants of one cache's sheaves, in a word of its region. Racy: a lost update costs a
/// step.
#[derive(Clone, Copy)]
struct Wish {
    /// Index into [`STEPS`].
    step: u8,
    /// Looks without any activity, up to 15.
    idle: u8,
    misses: u8,
    /// Visits to the barn and the spare since the last that counted as a miss, up to 63.
    visits: u8,
    /// Low bits of the count of allocations and frees at the last look.
    activity: u8,
    /// Of the last visit to the barn, in milliseconds, truncated.
    visited: u32,
}

impl Wish {
    fn load(word: &AtomicU64) -> Self {
        // Relaxed: a hint.
        let [both, misses, visits, activity, a, b, c, d] = word.load(Relaxed).to_le_bytes();
        Self {
            step: both & 7,
            idle: both >> 4,
            misses,
            visits,
            activity,
            visited: u32::from_le_bytes([a, b, c, d]),
        }
    }

    fn store(self, word: &AtomicU64) {
        let [a, b, c, d] = self.visited.to_le_bytes();
        let both = self.step | self.idle << 4;
        let bytes = [both, self.misses, self.visits, self.activity, a, b, c, d];
        // Relaxed: a hint.
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}

/// The capacity of a step for a cache.
fn capacity_of<P: Platform>(cache: &KmemCache<P>, step: u8) -> usize {
    STEPS[usize::from(step).min(STEPS.len() - 1)]
        .clamp(cache.capacity, cache.capacity_max.max(cache.capacity))
}

impl<P: Platform> Allocator<P> {
    /// Objects that a sheaf of this CPU is to hold.
    pub(crate) fn wanted_capacity(&self, cache: &KmemCache<P>) -> usize {
        if !cache.is_adaptive() {
            return cache.capacity;
        }
        let region = self.table.here(self.platform.cpu());
        let step = Wish::load(region.wish(cache.id)).step;
        capacity_of(cache, step.saturating_sub(self.steps_less()))
    }

    /// Steps that sheaves are smaller than their CPUs want: one once three eighths of the budget
    /// are used, and one more for each further eighth. So all of them give way together; were only
    /// those small that are made above the budget, half of a CPU's sheaves would be as small as can
    /// be, and the other half as large.
    fn steps_less(&self) -> u8 {
        let eighth = (self.tunables().sheaf_budget_mb as usize) << 17;
        let used = self.sheaf_bytes();
        // As it is most of the time; a division for the rest.
        if used < 3 * eighth {
            return 0;
        }
        (used / eighth.max(1))
            .saturating_sub(2)
            .min(STEPS.len() - 1) as u8
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        // Relaxed: a soft bound.
        self.sheaf_bytes.load(Relaxed) > (self.tunables().sheaf_budget_mb as usize) << 20
    }

    /// A new sheaf was made for an adaptive cache.
    pub(crate) fn note_made(&self, cache: &KmemCache<P>, capacity: usize) {
        if cache.is_adaptive() {
            // Relaxed: a figure.
            self.sheaf_bytes
                .fetch_add(capacity * cache.size as usize, Relaxed);
        }
    }

    /// A sheaf of an adaptive cache is no more.
    pub(crate) fn note_unmade(&self, cache: &KmemCache<P>, capacity: usize) {
        if cache.is_adaptive() {
            // Relaxed: a figure.
            self.sheaf_bytes
                .fetch_sub(capacity * cache.size as usize, Relaxed);
        }
    }

    /// Bytes of objects that the sheaves of adaptive caches can hold.
    pub fn sheaf_bytes(&self) -> usize {
        // Relaxed: a figure.
        self.sheaf_bytes.load(Relaxed)
    }

    /// Cuts a sheaf to what this CPU wants, if it is empty; one with objects only grows.
    pub(crate) fn fit(&self, cache: &KmemCache<P>, sheaf: Sheaf) -> Sheaf {
        self.fit_for(cache, sheaf, 0)
    }

    /// As [`fit`](Self::fit), but so that at least `least` objects find room, as far as the cache's
    /// sheaves may grow.
    #[inline(never)]
    pub(crate) fn fit_for(&self, cache: &KmemCache<P>, mut sheaf: Sheaf, least: usize) -> Sheaf {
        // One with objects only grows.
        let is_grown = || !sheaf.is_empty() && sheaf.capacity() >= cache.capacity_max;
        if !cache.is_adaptive() || is_grown() {
            return sheaf;
        }
        let least = least.min(cache.capacity_max);
        let (old, new) = (sheaf.capacity(), self.wanted_capacity(cache).max(least));
        if old == new || (!sheaf.is_empty() && new < old) {
            return sheaf;
        }
        self.note_unmade(cache, old);
        self.note_made(cache, new);
        if !sheaf.is_empty() {
            sheaf.widen(new);
            return sheaf;
        }
        // SAFETY: an empty sheaf of ours.
        unsafe { Sheaf::new(sheaf.into_window(), new, cache.id.index()) }
    }

    /// This CPU went to the barn; `failed` says that it found no full sheaf, or no room for one.
    #[inline]
    pub(crate) fn note_barn(&self, cache: &KmemCache<P>, failed: bool) {
        if cache.is_adaptive() {
            self.note_visit(cache, failed);
        }
    }

    fn note_visit(&self, cache: &KmemCache<P>, failed: bool) {
        let region = self.table.here(self.platform.cpu());
        let word = region.wish(cache.id);
        let mut wish = Wish::load(word);
        let now = self.platform.now_ms();
        let since = age_of_low(now, wish.visited);
        let before = capacity_of(cache, wish.step);
        let first = wish.visited == 0;
        wish.visits += 1;
        let failed = failed || wish.visits >= VISITS;
        if failed {
            wish.visits = 0;
        }
        if since > QUIET_MS && wish.step > 0 && !first {
            wish.step -= 1;
            wish.misses = 0;
        } else if failed && !first {
            if since > WINDOW_MS {
                wish.misses = 0;
            }
            wish.misses = wish.misses.saturating_add(1);
            let enough = before < QUICK || wish.misses >= MISSES;
            if enough && usize::from(wish.step) < STEPS.len() - 1 && !self.is_over_budget() {
                wish.misses = 0;
                // Steps that make no difference to this cache are passed over.
                while usize::from(wish.step) < STEPS.len() - 1
                    && capacity_of(cache, wish.step) == before
                {
                    wish.step += 1;
                }
            }
        }
        if failed || since > WINDOW_MS {
            wish.visited = (now as u32).max(1);
        }
        let after = capacity_of(cache, wish.step);
        if after > before {
            self.count(cache, StatItem::SheafGrow, 1);
        } else if after < before {
            self.count(cache, StatItem::SheafShrink, 1);
        }
        wish.store(word);
    }

    /// This CPU's spare became its main sheaf.
    pub(crate) fn note_swap(&self, cache: &KmemCache<P>) {
        if !cache.is_adaptive() {
            return;
        }
        let region = self.table.here(self.platform.cpu());
        let word = region.wish(cache.id);
        let mut wish = Wish::load(word);
        if wish.visits + 1 >= VISITS {
            return self.note_barn(cache, false);
        }
        wish.visits += 1;
        wish.store(word);
    }

    /// Looks which CPUs have not used an adaptive cache for two looks; returns whether there are
    /// any with sheaves.
    #[inline(never)]
    pub(crate) fn note_idle_cpus(&self, cache: &KmemCache<P>) -> bool {
        let mut any = false;
        for (_, region) in self.table.regions() {
            let word = region.wish(cache.id);
            let mut wish = Wish::load(word);
            let (allocs, frees) = region.counts(cache.id);
            let activity = allocs.wrapping_add(frees) as u8;
            if wish.activity == activity {
                wish.idle = (wish.idle + 1).min(15);
            } else {
                (wish.idle, wish.activity) = (0, activity);
            }
            if wish.idle >= 2 && wish.step > 0 {
                (wish.step, wish.misses) = (0, 0);
                self.count(cache, StatItem::SheafShrink, 1);
            }
            any |= wish.idle == 2;
            wish.store(word);
        }
        any
    }

    /// Whether a CPU has just been found idle.
    pub(crate) fn is_idle_on(cache: &KmemCache<P>, region: &Region) -> bool {
        Wish::load(region.wish(cache.id)).idle == 2
    }

    /// Flushes what the barns of an adaptive cache have not needed since the last look.
    #[inline(never)]
    pub(crate) fn trim_barns(&self, cache: &KmemCache<P>) {
        for barn in cache.barns() {
            let mut surplus: SheafList = barn.take_surplus();
            while let Some(mut sheaf) = surplus.pop() {
                self.flush_sheaf(cache, &mut sheaf, Gfp::KERNEL);
                self.give_up(cache, sheaf, Gfp::KERNEL);
            }
        }
    }
}
