//! The simulated machine of a competitor, and the two loads whose time is measured.

use std::time::Duration;

use uslub_core::tunables::Tunables;
use uslub_core::{Allocator, Gfp};
use uslub_sim::{Batches, Clock, Machine, Sim, cpu};

use crate::error::Failure;
use crate::measure::nanoseconds;
use crate::seeds::spill::maple::{GRACE_MS, Tree};
use crate::strategy::Strategy;

/// Bytes of an object.
const SIZE: usize = 256;
/// Objects that a producer passes on at once.
const BATCH: usize = 32;
/// Batches in transit from a producer to its consumer.
const UNDER_WAY: usize = 4;
/// Virtual nanoseconds for a step of all CPUs.
const STEP_NS: u64 = 3000;

/// The kind of load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Half of the CPUs allocate, the other half frees.
    Pairs,
    /// Each CPU has a maple tree.
    Maple,
}

/// A simulated machine with an allocator.
pub struct World {
    pub slub: Box<Allocator<Sim>>,
    pub clock: Clock,
    grace: &'static Batches,
    cpus: usize,
}

impl World {
    /// A machine with `cpus` CPUs and one node.
    pub fn new(cpus: usize) -> Self {
        let clock = Clock::manual();
        let sim = Sim::new(Machine::new(cpus, 1), clock.clone());
        let slub = uslub_sim::allocator(sim, Tunables::DEFAULT);
        // An allocator keeps its grace period until the process ends.
        let grace: &Batches = Box::leak(Box::new(Batches::new(
            cpus,
            clock.clone(),
            Duration::from_millis(GRACE_MS),
        )));
        slub.set_grace_period(grace);
        Self {
            slub,
            clock,
            grace,
            cpus,
        }
    }

    /// A load on a cache with these settings, ready to be played.
    pub fn play(&self, settings: &[&str], load: Load) -> Result<Play<'_>, Failure> {
        Ok(Play {
            world: self,
            strategy: Strategy::new(&self.slub, SIZE, settings)?,
            load,
            trees: (0..self.cpus).map(Tree::new).collect(),
            handed: vec![Vec::new(); self.cpus / 2],
        })
    }
}

/// A running load.
pub struct Play<'a> {
    world: &'a World,
    strategy: Strategy<'a, Sim>,
    load: Load,
    trees: Vec<Tree>,
    /// The batches in transit from each producer, oldest batch first.
    handed: Vec<Vec<[*mut u8; BATCH]>>,
}

impl Play<'_> {
    /// Runs `steps` steps on each CPU, all CPUs in turn. Returns nanoseconds per step of a tree, or
    /// per object.
    pub fn round(&mut self, steps: usize) -> Result<f64, Failure> {
        let (time, whole) = nanoseconds(|| {
            (0..steps).all(|_| {
                self.world.clock.advance(STEP_NS);
                match self.load {
                    Load::Pairs => self.pairs(),
                    Load::Maple => self.maple(),
                }
            })
        });
        if !whole {
            return Err(Failure::NoMemory("for a simulated CPU"));
        }
        let units = match self.load {
            Load::Pairs => self.world.cpus / 2 * BATCH,
            Load::Maple => self.world.cpus,
        };
        Ok(time / (steps * units) as f64)
    }

    fn pairs(&mut self) -> bool {
        let Strategy { slub, cache } = &self.strategy;
        let producers = self.handed.len();
        for (producer, handed) in self.handed.iter_mut().enumerate() {
            cpu::on(producer);
            let batch = std::array::from_fn(|_| slub.alloc(cache, Gfp::KERNEL));
            if batch.contains(&std::ptr::null_mut()) {
                return false;
            }
            handed.push(batch);
            if handed.len() > UNDER_WAY {
                cpu::on(producers + producer);
                for object in handed.remove(0) {
                    // SAFETY: the object is of this cache and is freed once.
                    unsafe { slub.free(cache, object) };
                }
            }
        }
        true
    }

    fn maple(&mut self) -> bool {
        for (cpu, tree) in self.trees.iter_mut().enumerate() {
            cpu::on(cpu);
            tree.step(&self.strategy, self.world.grace);
        }
        !self.trees.iter().any(|tree| tree.starved)
    }
}

impl Drop for Play<'_> {
    fn drop(&mut self) {
        let Strategy { slub, cache } = &self.strategy;
        for object in self.handed.iter().flatten().flatten() {
            // SAFETY: the object is of this cache and is freed once.
            unsafe { slub.free(cache, *object) };
        }
        (self.trees.iter_mut()).for_each(|tree| tree.fell(&self.strategy));
        slub.rcu_barrier();
    }
}
