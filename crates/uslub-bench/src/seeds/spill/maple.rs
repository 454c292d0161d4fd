//! The load of one CPU: allocations of a maple tree's nodes under `mmap` and `munmap`.

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
/// Nodes in a CPU's tree.
const LIVE: usize = 24;
/// Sheaves after their grace period that one step frees.
const CALLBACKS: usize = 1;

/// Counters, per million steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// List locks taken.
    pub list_lock: Option<f64>,
    /// List locks that another CPU held.
    pub list_lock_wait: Option<f64>,
    /// Objects freed to slabs, from sheaves or directly.
    pub slow_frees: f64,
    /// Updates of slabs by these frees.
    pub updates: f64,
    /// Empty main sheaves that the barn could not replace.
    pub refills: f64,
    /// Share of the time that the other CPU holds the list lock, in per cent, if time is real.
    pub lock_held: Option<f64>,
    /// Slabs taken from the page layer.
    pub taken: f64,
    /// Slabs returned to the page layer.
    pub returned: f64,
    /// Peak slab memory in MiB (not per million steps).
    pub peak_mib: f64,
    /// Empty slabs a second after the load.
    pub idle_empty: f64,
    /// Slabs in use a second after the load.
    pub idle_in_use: f64,
    /// Nanoseconds per step, if time is real.
    pub step_ns: Option<f64>,
}

impl Counts {
    /// Slabs taken and returned.
    pub fn churn(&self) -> f64 {
        self.taken + self.returned
    }

    /// Adds the state of the cache now, long after the load.
    pub fn at_idle<P: Platform>(mut self, strategy: &Strategy<'_, P>) -> Self {
        let info = strategy.slub.info(strategy.cache);
        self.idle_empty = (info.num_slabs - info.active_slabs) as f64;
        self.idle_in_use = info.active_slabs as f64;
        self
    }
}

/// A snapshot of the counters.
pub struct Counters {
    list_lock: Option<u64>,
    list_lock_wait: Option<u64>,
    slow_frees: u64,
    updates: u64,
    refills: u64,
    taken: u64,
    returned: u64,
}

impl Counters {
    /// Reads the counters.
    pub fn look<P: Platform>(strategy: &Strategy<'_, P>) -> Result<Self, Failure> {
        Ok(Self {
            list_lock: strategy.count("list_lock").ok(),
            list_lock_wait: strategy.count("list_lock_wait").ok(),
            slow_frees: strategy.count("sheaf_flush")? + strategy.count("free_slowpath")?,
            updates: strategy.count("free_detached")?,
            refills: strategy.count("barn_get_fail")?,
            taken: strategy.count("alloc_slab")?,
            returned: strategy.count("free_slab")?,
        })
    }

    /// The counts since the snapshot, over `steps` steps, per million steps.
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
            updates: each(now.updates, self.updates),
            refills: each(now.refills, self.refills),
            taken: each(now.taken, self.taken),
            returned: each(now.returned, self.returned),
            ..Counts::default()
        })
    }
}

/// The tree of one CPU.
pub struct Tree {
    dice: Dice,
    nodes: Vec<*mut u8>,
    /// Number of allocated nodes that were passed to the grace period.
    pub allocated: usize,
    /// Whether an allocation failed.
    pub starved: bool,
}

// SAFETY: the tree owns its nodes, on every thread.
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

    /// One step, on the present CPU of the thread.
    #[inline]
    pub fn step<P: Platform>(&mut self, strategy: &Strategy<'_, P>, grace: &Batches) {
        self.step_paced(strategy, grace, CALLBACKS);
    }

    /// As [`step`](Self::step), with another number of callbacks.
    #[inline]
    pub fn step_paced<P: Platform>(
        &mut self,
        strategy: &Strategy<'_, P>,
        grace: &Batches,
        callbacks: usize,
    ) {
        if self.dice.below(5) == 0 {
            self.prefilled(strategy);
        } else {
            let Strategy { slub, cache } = strategy;
            let node = slub.alloc(cache, Gfp::KERNEL);
            self.plant(node);
        }
        while self.nodes.len() > LIVE {
            let old = self.nodes.swap_remove(self.dice.below(LIVE));
            // SAFETY: the node is of this cache and is freed once.
            unsafe { strategy.slub.free_rcu(strategy.cache, old) };
        }
        grace.run(callbacks);
    }

    /// Allocates nodes from a sheaf that was prefilled for the worst case.
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

    /// Frees all nodes.
    pub fn fell<P: Platform>(&mut self, strategy: &Strategy<'_, P>) {
        for node in self.nodes.drain(..) {
            // SAFETY: the node is of this cache and is freed once.
            unsafe { strategy.slub.free(strategy.cache, node) };
        }
    }
}

/// Frees the nodes of all trees and all pending nodes. Fails if an object was lost.
pub fn end<P: Platform>(strategy: &Strategy<'_, P>, trees: &mut [Tree]) -> Result<(), Failure> {
    if trees.iter().any(|tree| tree.starved) {
        return Err(Failure::NoMemory("for a node"));
    }
    trees.iter_mut().for_each(|tree| tree.fell(strategy));
    strategy.slub.rcu_barrier();
    strategy.check_at_rest()
}
