//! The nodes of maple trees under `mmap` and `munmap`, as will-it-scale's mmap2 makes them.
//!
//! Of five steps of a CPU, four allocate a node, and one prefills a sheaf for the worst case and
//! uses a part of it. Old nodes are freed after a grace period.

use uslub_core_timed::Gfp;
use uslub_core_timed::cache::KmemCache;

use super::{Load, Program};
use crate::dice::Dice;
use crate::engine;
use crate::error::Failure;
use crate::grace::Periods;
use crate::lines::Kind;
use crate::platform::Timed;
use crate::world::World;

/// Nodes in a CPU's tree.
const LIVE: usize = 24;
/// One step in this many prefills a sheaf.
const PREFILL_EVERY: usize = 5;
/// Nodes of the worst case, and nodes that are needed: smallest number, and how many numbers.
const WORST: (usize, usize) = (8, 23);
const NEEDED: (usize, usize) = (1, 4);
/// Callbacks that a step runs.
const CALLBACKS: usize = 1;

struct Maple {
    slub: &'static uslub_core_timed::Allocator<Timed>,
    cache: &'static KmemCache<Timed>,
    grace: &'static Periods,
    work: u64,
    nodes: Vec<*mut u8>,
    dice: Dice,
}

impl Maple {
    fn plant(&mut self, node: *mut u8) {
        if !node.is_null() {
            engine::touch(node as usize, 64, Kind::Write);
            self.nodes.push(node);
        }
    }

    fn prefilled(&mut self) {
        let worst = WORST.0 + self.dice.below(WORST.1);
        let needed = NEEDED.0 + self.dice.below(NEEDED.1);
        let Some(mut sheaf) = self.slub.prefill(self.cache, Gfp::KERNEL, worst) else {
            return;
        };
        for _ in 0..needed {
            let node = self.slub.alloc_from(self.cache, Gfp::KERNEL, &mut sheaf);
            self.plant(node);
        }
        self.slub.return_prefilled(self.cache, Gfp::KERNEL, sheaf);
    }
}

impl Program for Maple {
    fn step(&mut self, _until: u64) -> u64 {
        if self.dice.below(PREFILL_EVERY) == 0 {
            self.prefilled();
        } else {
            let node = self.slub.alloc(self.cache, Gfp::KERNEL);
            self.plant(node);
        }
        while self.nodes.len() > LIVE {
            let old = self.nodes.swap_remove(self.dice.below(LIVE));
            // SAFETY: the node is of this cache and is freed once.
            unsafe { self.slub.free_rcu(self.cache, old) };
        }
        self.grace.run(CALLBACKS);
        // Half to one and a half of the work, so that CPUs do not march in step.
        engine::work(self.work / 2 + self.dice.below(self.work as usize + 1) as u64);
        1
    }

    fn end(&mut self) {
        for node in self.nodes.drain(..) {
            // SAFETY: the node is of this cache and is freed once.
            unsafe { self.slub.free(self.cache, node) };
        }
    }
}

pub fn programs(load: &Load, world: &World) -> Result<Vec<Box<dyn Program>>, Failure> {
    let cache = world.cache(load.size)?;
    let one = |cpu| -> Box<dyn Program> {
        Box::new(Maple {
            slub: world.slub(),
            cache,
            grace: world.grace(),
            work: load.work,
            nodes: Vec::with_capacity(LIVE + 4),
            dice: Dice::new(load.seed, cpu),
        })
    };
    Ok((0..world.machine().cpus).map(one).collect())
}
