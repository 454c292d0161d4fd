//! How caches behave: the values of one cache, and the process's values for all other caches.
//!
//! The process's values are read once, at set-up; a cache's values are fixed when it is created.

use uslub_core::stats::StatItem;
use uslub_core::tunables::Tuning;

use crate::builder::{Builder, RawBuilder};
use crate::cache::Cache;
use crate::instance::{ALLOCATOR, allocator};
use crate::raw::RawCache;

/// The values for caches without their own: the defaults, changed by the environment variable
/// `USLUB_OPTIONS` (`key=value` pairs, separated by commas).
///
/// ```
/// assert_eq!(uslub::tuning().slab_max_order, 3);
/// ```
pub fn tuning() -> Tuning {
    allocator().map_or(Tuning::DEFAULT, |allocator| allocator.tunables().tuning)
}

impl RawBuilder<'_> {
    /// Sets how the cache behaves. The builder's sheaf capacity overrides the tuning's.
    ///
    /// Values out of bounds give [`CreateError::BadTuning`](crate::CreateError::BadTuning).
    ///
    /// ```
    /// use uslub::{CreateError, RawCache, Tuning, tuning};
    /// let nodes = RawCache::builder("maple_node", 256)
    ///     .tuning(Tuning { sheaf_spill: 1, empty_reserve: 1, ..tuning() })
    ///     .build()?;
    /// assert_eq!(nodes.tuning().sheaf_spill, 1);
    ///
    /// let odd = RawCache::builder("odd", 64).tuning(Tuning { look_ahead: 9, ..tuning() });
    /// assert_eq!(odd.build().err(), Some(CreateError::BadTuning("look_ahead")));
    /// # Ok::<(), CreateError>(())
    /// ```
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.args.tuning = Some(tuning);
        self
    }
}

impl<T> Builder<'_, T> {
    /// Sets how the cache behaves; see [`RawBuilder::tuning`].
    ///
    /// ```
    /// use uslub::{Cache, Tuning, tuning};
    /// let mut old_ways = tuning();
    /// old_ways.set("freelist_deferred=0").unwrap();
    /// let cache = Cache::<[u8; 40]>::builder("old").tuning(old_ways).build()?;
    /// assert_eq!(cache.tuning().get("freelist_deferred"), Some(0));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn tuning(self, tuning: Tuning) -> Self {
        self.with(|raw| raw.tuning(tuning))
    }
}

impl RawCache {
    /// How the cache behaves.
    ///
    /// ```
    /// let cache = uslub::RawCache::new("as_ever", 64)?;
    /// assert_eq!(cache.tuning(), uslub::tuning());
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn tuning(&self) -> Tuning {
        self.kmem_cache().tuning
    }

    /// The count of an item on each CPU, with the CPU's number. CPUs that never used a cache are
    /// skipped.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache, StatItem};
    /// let cache = RawCache::new("by_cpu", 64)?;
    /// let object = cache.alloc(Gfp::KERNEL).unwrap();
    /// let sum: u64 = cache.counts_by_cpu(StatItem::AllocFastpath).map(|(_, n)| n).sum();
    /// assert_eq!(sum, cache.stats().item(StatItem::AllocFastpath));
    /// // SAFETY: ours, and freed once.
    /// unsafe { cache.free(object.as_ptr()) };
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn counts_by_cpu(&self, item: StatItem) -> impl Iterator<Item = (usize, u64)> + '_ {
        let cpus = ALLOCATOR.table.regions().map(|(cpu, _)| cpu);
        cpus.map(move |cpu| (cpu, ALLOCATOR.stat_on(self.kmem_cache(), item, cpu)))
    }
}

impl<T> Cache<T> {
    /// How the cache behaves.
    ///
    /// ```
    /// let cache = uslub::Cache::<u64>::builder("few").sheaf_capacity(4..=4).build()?;
    /// assert_eq!(cache.tuning().sheaf_spill, uslub::tuning().sheaf_spill);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn tuning(&self) -> Tuning {
        self.as_raw().tuning()
    }

    /// The count of an item on each CPU; see [`RawCache::counts_by_cpu`].
    ///
    /// ```
    /// use uslub::{Cache, StatItem};
    /// let cache = Cache::new("by_cpu")?;
    /// let object = cache.alloc(1u8)?;
    /// assert_eq!(cache.counts_by_cpu(StatItem::AllocSlab).map(|(_, n)| n).sum::<u64>(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counts_by_cpu(&self, item: StatItem) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.as_raw().counts_by_cpu(item)
    }
}
