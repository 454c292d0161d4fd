//! Flows: objects go from the CPU that allocates them to the CPU that frees them.
//!
//! | load | who sends | through |
//! |---|---|---|
//! | `flow` | producers, to one consumer each | the cache |
//! | `ublk` | the same: submitters and servers | a mempool that all share |
//! | `hackbench` | each CPU, to a random CPU of its group | the cache |

use std::rc::Rc;

use uslub_core_timed::Gfp;
use uslub_core_timed::cache::KmemCache;
use uslub_core_timed::mempool::{Mempool, SlabSource};

use super::{Kind, Link, Load, Program};
use crate::dice::Dice;
use crate::engine;
use crate::error::Failure;
use crate::lines;
use crate::platform::Timed;
use crate::queue::Queue;
use crate::world::World;

/// Objects that are passed on at once.
const BATCH: usize = 32;
/// Objects in a queue, at most.
const DEPTH: usize = 128;
/// CPUs of a group of hackbench: twenty senders, twenty receivers.
const GROUP: usize = 40;
/// Messages that a CPU sends before it looks for messages.
const SENT: usize = 8;
/// Elements in the pool's reserve, as in a bio's pool.
const RESERVE: usize = 2;

type Slub = &'static uslub_core_timed::Allocator<Timed>;
type Pool = Mempool<'static, Timed, SlabSource<'static, Timed>>;

/// A pool in the machine's memory: its lock and its counters are lines that CPUs share.
struct PlacedPool(&'static Pool);

impl Drop for PlacedPool {
    fn drop(&mut self) {
        // SAFETY: the pool was written to its place once, and its last user drops it.
        unsafe { std::ptr::read(self.0) }.destroy();
    }
}

/// Where objects come from.
#[derive(Clone)]
enum Source {
    Cache(Slub, &'static KmemCache<Timed>),
    Pool(Rc<PlacedPool>),
    /// After the end.
    Nowhere,
}

impl Source {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        match self {
            Source::Cache(slub, cache) => slub.alloc(cache, gfp),
            Source::Pool(pool) => pool.0.alloc(gfp),
            Source::Nowhere => std::ptr::null_mut(),
        }
    }

    fn free(&self, object: usize) {
        let object = object as *mut u8;
        match self {
            // SAFETY: the object is of this cache, and its last owner frees it once.
            Source::Cache(slub, cache) => unsafe { slub.free(cache, object) },
            // SAFETY: the object is of this pool, and its last owner frees it once.
            Source::Pool(pool) => unsafe { pool.0.free(object) },
            Source::Nowhere => (),
        }
    }
}

/// One CPU of a flow.
struct Flow {
    source: Source,
    gfp: Gfp,
    work: u64,
    /// Whom it sends to; several: a random one each time.
    to: Vec<Rc<Queue>>,
    from: Option<Rc<Queue>>,
    batch: usize,
    got: Vec<usize>,
    /// Objects that found no room before the load ended.
    left: Vec<usize>,
    dice: Dice,
}

impl Flow {
    fn send(&mut self, until: u64) {
        if self.left.is_empty() {
            for _ in 0..self.batch {
                engine::work(self.work);
                let object = self.source.alloc(self.gfp);
                if !object.is_null() {
                    engine::touch(object as usize, 8, lines::Kind::Write);
                    self.left.push(object as usize);
                }
            }
        }
        let to = self.dice.below(self.to.len());
        if self.from.is_some() {
            // Who also receives must not wait for a receiver that waits for it.
            while !self.to[to].put(&self.left, 0) {
                self.receive_present();
                if engine::now() >= until {
                    return;
                }
                engine::work(100);
            }
            self.left.clear();
        } else if self.to[to].put(&self.left, until) {
            self.left.clear();
        }
    }

    fn receive_present(&mut self) -> u64 {
        if let Some(from) = &self.from {
            from.take_present(BATCH, &mut self.got);
        }
        self.free_got()
    }

    fn free_got(&mut self) -> u64 {
        let n = self.got.len();
        for object in self.got.drain(..) {
            engine::touch(object, 8, lines::Kind::Read);
            engine::work(self.work);
            self.source.free(object);
        }
        n as u64
    }
}

impl Program for Flow {
    /// Operations are objects freed.
    fn step(&mut self, until: u64) -> u64 {
        if self.to.is_empty() {
            if let Some(from) = &self.from {
                from.take(BATCH, until, &mut self.got);
            } else {
                engine::sleep(0, Some(until));
            }
            return self.free_got();
        }
        self.send(until);
        self.receive_present()
    }

    fn end(&mut self) {
        self.left
            .drain(..)
            .for_each(|object| self.source.free(object));
        if let Some(from) = &self.from {
            from.take_present(usize::MAX, &mut self.got);
        }
        self.got
            .drain(..)
            .for_each(|object| self.source.free(object));
        self.source = Source::Nowhere;
    }
}

fn source(load: &Load, world: &World) -> Result<Source, Failure> {
    let cache = world.cache(load.size)?;
    if load.kind != Kind::Ublk {
        return Ok(Source::Cache(world.slub(), cache));
    }
    let broken = || Failure::Broken("no memory for a mempool".to_owned());
    let source = SlabSource::new(world.slub(), cache).ok_or_else(broken)?;
    let pool = Mempool::new(world.slub(), RESERVE, source).map_err(|_| broken())?;
    let place = world.lines(size_of::<Pool>().div_ceil(64)) as *mut Pool;
    // SAFETY: the place is large enough and aligned to a line. The machine's memory lives longer
    // than the programs; what the pool holds goes with it.
    let pool: &'static Pool = unsafe {
        place.write(pool);
        &*place
    };
    Ok(Source::Pool(Rc::new(PlacedPool(pool))))
}

pub fn programs(load: &Load, world: &World) -> Result<Vec<Box<dyn Program>>, Failure> {
    let source = source(load, world)?;
    let cpus = world.machine().cpus;
    let queues: Vec<_> = (0..cpus)
        .map(|_| Rc::new(Queue::new(world, DEPTH)))
        .collect();
    let half = cpus / 2;
    let one = |cpu: usize| -> Box<dyn Program> {
        let queue = |n: usize| queues[n % cpus].clone();
        let (to, from) = if load.kind == Kind::Hackbench {
            let first = cpu / GROUP * GROUP;
            let group = first..(first + GROUP).min(cpus);
            (group.map(queue).collect(), Some(queue(cpu)))
        } else if cpus == 1 || load.link == Link::Ring {
            (vec![queue(cpu + 1)], Some(queue(cpu)))
        } else if load.link == Link::Near {
            match (cpu % 2, cpu + 1 < cpus) {
                (0, true) => (vec![queue(cpu + 1)], None),
                (0, false) => (vec![], None),
                _ => (vec![], Some(queue(cpu))),
            }
        } else if cpu < half {
            (vec![queue(cpu + half)], None)
        } else {
            (vec![], (cpu < 2 * half).then(|| queue(cpu)))
        };
        Box::new(Flow {
            source: source.clone(),
            gfp: load.gfp(),
            work: load.work,
            to,
            from,
            batch: if load.kind == Kind::Hackbench {
                SENT
            } else {
                BATCH
            },
            got: Vec::new(),
            left: Vec::new(),
            dice: Dice::new(load.seed, cpu),
        })
    };
    Ok((0..cpus).map(one).collect())
}
