//! Bulks: each CPU allocates objects in bulks, and frees bulks that come from many slabs.

use std::ptr::null_mut;

use uslub_core_timed::Gfp;
use uslub_core_timed::cache::KmemCache;

use super::{Load, Program};
use crate::dice::Dice;
use crate::engine;
use crate::error::Failure;
use crate::platform::Timed;
use crate::world::World;

/// Bulks that a CPU holds.
const HELD: usize = 8;

struct Bulk {
    slub: &'static uslub_core_timed::Allocator<Timed>,
    cache: &'static KmemCache<Timed>,
    gfp: Gfp,
    size: usize,
    work: u64,
    held: Vec<*mut u8>,
    dice: Dice,
}

impl Program for Bulk {
    fn step(&mut self, _until: u64) -> u64 {
        let mut objects = vec![null_mut(); self.size];
        if self.slub.alloc_bulk(self.cache, self.gfp, &mut objects) {
            self.held.append(&mut objects);
        }
        engine::work(self.work * self.size as u64);
        if self.held.len() > HELD * self.size {
            let mut old: Vec<_> = (0..self.size)
                .map(|_| self.held.swap_remove(self.dice.below(self.held.len())))
                .collect();
            // SAFETY: the objects are of this cache and are freed once.
            unsafe { self.slub.free_bulk(self.cache, &mut old) };
        }
        self.size as u64
    }

    fn end(&mut self) {
        // SAFETY: the objects are of this cache and are freed once.
        unsafe { self.slub.free_bulk(self.cache, &mut self.held) };
        self.held.clear();
    }
}

pub fn programs(load: &Load, world: &World) -> Result<Vec<Box<dyn Program>>, Failure> {
    let cache = world.cache(load.size)?;
    let one = |cpu| -> Box<dyn Program> {
        Box::new(Bulk {
            slub: world.slub(),
            cache,
            gfp: load.gfp(),
            size: load.bulk,
            work: load.work,
            held: Vec::new(),
            dice: Dice::new(load.seed, cpu),
        })
    };
    Ok((0..world.machine().cpus).map(one).collect())
}
