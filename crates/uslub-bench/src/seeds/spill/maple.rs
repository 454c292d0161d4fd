//! What one CPU does: the maple tree's nodes under `mmap` and `munmap`.

use uslub_core::Gfp;
use uslub_core::platform::Platform;
use uslub_sim::Batches;

use crate::dice::Dice;
use crate::error::Failure;
use crate::strategy::Strategy;

/// Bytes of a node.
pub const SIZE: usize = 256;
/// Milliseconds of a grace period.
pub const GRACE_MS: u64 = 4;
/// Nodes that a CPU's tree has.
const LIVE: usize = 24;
/// Sheaves whose grace period is over that one step takes care of.
const CALLBACKS: usize = 1;

/// What was counted, for a million steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// List locks taken.
    pub list_lock: Option<f64>,
    /// List locks that were held by another.
    pub list_lock_wait: Option<f64>,
    /// Objects that went from sheaves, or straight, to slabs.
    pub slow_frees: f64,
    /// Slabs taken from the page layer.
    pub taken: f64,
    /// Slabs given back to it.
    pub returned: f64,
    /// Most slabs that there were at once, not a million steps' but in MiB.
    pub peak_mib: f64,
    /// Empty slabs a second after the load.
    pub idle_empty: f64,
    /// Slabs in use then.
    pub idle_in_use: f64,
    /// Nanoseconds of a step, where time is real.
    pub step_ns: Option<f64>,
}

impl Counts {
    /// Slabs taken and returned.
    pub fn churn(&self) -> f64 {
        self.taken + self.returned
    }

    /// With what the cache looks like now, long after the load.
    pub fn at_idle<P: Platform>(mut self, strategy: &Strategy<'_, P>) -> Self {
        let info = strategy.slub.info(strategy.cache);
        self.idle_empty = (info.num_slabs - info.active_slabs) as f64;
        self.idle_in_use = info.active_slabs as f64;
        self
    }
}

/// The counters at one moment.
pub struct Counters {
    list_lock: Option<u64>,
    list_lock_wait: Option<u64>,
    slow_frees: u64,
    taken: u64,
    returned: u64,
}

impl Counters {
    /// Reads them.
    pub fn look<P: Platform>(strategy: &Strategy<'_, P>) -> Result<Self, Failure> {
        Ok(Self {
            list_lock: strategy.count("list_lock").ok(),
            list_lock_wait: strategy.count("list_lock_wait").ok(),
            slow_frees: strategy.count("sheaf_flush")? + strategy.count("free_slowpath")?,
            taken: strategy.count("alloc_slab")?,
            returned: strategy.count("free_slab")?,
        })
    }

    /// What was counted since, in so many steps, for a million.
    pub fn since<P: Platform>(
        &self,
        strategy: &Strategy<'_, P>,
        steps: usize,
    ) -> Result<Counts, Failure> {
        let now = Self::look(strategy)?;
        let each = |now: u64, then: u64| (now - then) as f64 * 1e6 / steps as f64;
        let optional = |now: Option<u64>, then| Some(each(now?, then?));
        Ok(Counts {
            list_lock: optional(now.list_lock, self.list_lock),
            list_lock_wait: optional(now.list_lock_wait, self.list_lock_wait),
            slow_frees: each(now.slow_frees, self.slow_frees),
            taken: each(now.taken, self.taken),
            returned: each(now.returned, self.returned),
            ..Counts::default()
        })
    }
}

/// One CPU's tree.
pub struct Tree {
    dice: Dice,
    nodes: Vec<*mut u8>,
    /// Nodes that were allocated, and given to the grace period.
    pub allocated: usize,
    /// Whether an allocation failed.
    pub starved: bool,
}

// SAFETY: the nodes are the tree's own, whichever thread plays its CPU.
unsafe impl Send for Tree {}

impl Tree {
    /// An empty tree.
    pub fn new(number: usize) -> Self {
        Self {
            dice: Dice::new(number as u64),
            nodes: Vec::with_capacity(LIVE + 4),
            allocated: 0,
            starved: false,
        }
    }

    /// One step, on the CPU that the thread is on.
    #[inline]
    pub fn step<P: Platform>(&mut self, strategy: &Strategy<'_, P>, grace: &Batches) {
        if self.dice.below(5) == 0 {
            self.prefilled(strategy);
        } else {
            let Strategy { slub, cache } = strategy;
            let node = slub.alloc(cache, Gfp::KERNEL);
            self.plant(node);
        }
        while self.nodes.len() > LIVE {
            let old = self.nodes.swap_remove(self.dice.below(LIVE));
            // SAFETY: this cache's, freed once.
            unsafe { strategy.slub.free_rcu(strategy.cache, old) };
        }
        grace.run(CALLBACKS);
    }

    /// Nodes out of a sheaf that was filled beforehand for the worst case.
    fn prefilled<P: Platform>(&mut self, strategy: &Strategy<'_, P>) {
        let Strategy { slub, cache } = strategy;
        let (worst, needed) = (8 + self.dice.below(23), 1 + self.dice.below(4));
        let Some(mut sheaf) = slub.prefill(cache, Gfp::KERNEL, worst) else {
            self.starved = true;
            return;
        };
        for _ in 0..needed {
            let node = slub.alloc_from(cache, Gfp::KERNEL, &mut sheaf);
            self.plant(node);
        }
        slub.return_prefilled(cache, Gfp::KERNEL, sheaf);
    }

    fn plant(&mut self, node: *mut u8) {
        if node.is_null() {
            self.starved = true;
            return;
        }
        self.allocated += 1;
        self.nodes.push(node);
    }

    /// Frees all nodes at once.
    pub fn fell<P: Platform>(&mut self, strategy: &Strategy<'_, P>) {
        for node in self.nodes.drain(..) {
            // SAFETY: this cache's, freed once.
            unsafe { strategy.slub.free(strategy.cache, node) };
        }
    }
}

/// Frees what all trees hold and what waits; fails unless nothing was lost.
pub fn end<P: Platform>(strategy: &Strategy<'_, P>, trees: &mut [Tree]) -> Result<(), Failure> {
    if trees.iter().any(|tree| tree.starved) {
        return Err(Failure::NoMemory("for a node"));
    }
    trees.iter_mut().for_each(|tree| tree.fell(strategy));
    strategy.slub.rcu_barrier();
    strategy.check_at_rest()
}
