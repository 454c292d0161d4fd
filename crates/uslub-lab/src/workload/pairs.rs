//! Pairs: each CPU allocates an object, writes to it and frees it.

use uslub_core_timed::Gfp;
use uslub_core_timed::cache::KmemCache;

use super::{Load, Program};
use crate::engine;
use crate::error::Failure;
use crate::lines::Kind;
use crate::platform::Timed;
use crate::world::World;

/// Pairs of a step.
const PAIRS: usize = 32;

type Slub = &'static uslub_core_timed::Allocator<Timed>;

struct Pairs {
    slub: Slub,
    cache: &'static KmemCache<Timed>,
    gfp: Gfp,
    work: u64,
}

impl Program for Pairs {
    fn step(&mut self, _until: u64) -> u64 {
        for _ in 0..PAIRS {
            let object = self.slub.alloc(self.cache, self.gfp);
            engine::work(self.work);
            if !object.is_null() {
                engine::touch(object as usize, 8, Kind::Write);
                // SAFETY: the object is of this cache and is freed once.
                unsafe { self.slub.free(self.cache, object) };
            }
        }
        PAIRS as u64
    }

    fn end(&mut self) {}
}

pub fn programs(load: &Load, world: &World) -> Result<Vec<Box<dyn Program>>, Failure> {
    let cache = world.cache(load.size)?;
    let one = |_| -> Box<dyn Program> {
        Box::new(Pairs {
            slub: world.slub(),
            cache,
            gfp: load.gfp(),
            work: load.work,
        })
    };
    Ok((0..world.machine().cpus).map(one).collect())
}
