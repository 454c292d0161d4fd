//! The mixed load: many caches of all sizes, some of them hot. Bursts of objects are allocated and
//! freed, and some objects are freed on another CPU.

use uslub_core::Gfp;
use uslub_sim::{Sim, cpu};

use crate::bench::Bench;
use crate::dice::Dice;
use crate::error::Failure;
use crate::measure::nanoseconds;
use crate::strategy::Strategy;

use super::world::World;

/// Number of caches.
const CACHES: usize = 24;
/// The k-th most used cache is used k^-ZIPF times as often as the most used cache.
const ZIPF: f64 = 1.1;
/// Virtual nanoseconds for a step of all CPUs.
const STEP_NS: u64 = 10_000;
/// Virtual milliseconds between changes of the most used caches.
const ROTATION_MS: u64 = 50;
/// Steps between samples of the bytes in sheaves.
const LOOK: usize = 500;

/// One cache in the load.
struct Kind<'a> {
    strategy: Strategy<'a, Sim>,
    /// Average objects in a burst.
    burst: usize,
    /// Objects that each CPU holds, by CPU.
    held: Vec<Vec<*mut u8>>,
}

/// The results of the load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixed {
    /// Time per object, for allocation and free.
    pub nanoseconds: f64,
    /// Average KiB of objects in sheaves and barns over time.
    pub kib: f64,
}

/// Plays the load.
pub fn play(bench: &Bench, cpus: usize, settings: &[&str]) -> Result<Mixed, Failure> {
    let world = World::new(cpus);
    let steps = bench.size.pick(100, 8_000, 30_000);
    let warm_up = steps / 4;
    let mut kinds = Vec::new();
    for n in 0..CACHES {
        kinds.push(Kind {
            strategy: Strategy::new(&world.slub, size_of_kind(n), settings)?,
            burst: burst_of_kind(n),
            held: vec![Vec::new(); cpus],
        });
    }
    let chances = zipf();
    let mut dice = Dice::new(cpus as u64);
    let (mut sum, mut looks) = (0.0, 0);
    let (mut time, mut objects) = (0.0, 0);
    for step in 0..warm_up + steps {
        world.clock.advance(STEP_NS);
        let turn = (world.clock.now_ns() / 1_000_000 / ROTATION_MS) as usize * 7;
        let (spent, count) = nanoseconds(|| {
            let mut count = Some(0);
            for at in 0..cpus {
                let rank = pick(&chances, &mut dice);
                let kind = &mut kinds[(rank + turn) % CACHES];
                let burst = kind.burst(at, cpus, &mut dice);
                count = count.zip(burst).map(|(all, more)| all + more);
            }
            count
        });
        if step >= warm_up {
            time += spent;
            objects += count.ok_or(Failure::NoMemory("for the mixed load"))?;
        }
        if step % LOOK == 0 {
            cpu::on(0);
            world.slub.tick(world.clock.now_ns() / 1_000_000);
            if step >= warm_up {
                sum += kinds.iter().map(Kind::waiting).sum::<usize>() as f64;
                looks += 1;
            }
        }
    }
    for kind in &mut kinds {
        kind.end();
        kind.strategy.check_at_rest()?;
    }
    Ok(Mixed {
        nanoseconds: time / objects as f64,
        kib: sum / f64::from(looks) / 1024.0,
    })
}

/// From 64 to 4096 bytes; neighbouring numbers have very different sizes.
fn size_of_kind(n: usize) -> usize {
    let step = (n * 5) % CACHES;
    let size = 64.0 * 64f64.powf(step as f64 / (CACHES - 1) as f64);
    (size as usize).next_multiple_of(16).min(4096)
}

/// Average objects in a burst, from 3 to 400.
fn burst_of_kind(n: usize) -> usize {
    let step = (n * 7) % CACHES;
    (3.0 * (400.0 / 3.0f64).powf(step as f64 / (CACHES - 1) as f64)) as usize
}

/// For each rank, the share of uses with this rank or a lower rank.
fn zipf() -> Vec<f64> {
    let weights = (1..=CACHES).map(|rank| (rank as f64).powf(-ZIPF));
    let total: f64 = weights.clone().sum();
    weights
        .scan(0.0, |sum, weight| {
            *sum += weight / total;
            Some(*sum)
        })
        .collect()
}

fn pick(chances: &[f64], dice: &mut Dice) -> usize {
    let at = dice.below(1 << 20) as f64 / f64::from(1 << 20);
    chances.iter().position(|&sum| at < sum).unwrap_or(0)
}

impl Kind<'_> {
    /// CPU `at` allocates a burst, or frees a burst of the objects that it holds. A random CPU does
    /// one in four frees. Returns the number of allocated objects; `None` without memory.
    fn burst(&mut self, at: usize, cpus: usize, dice: &mut Dice) -> Option<usize> {
        let Strategy { slub, cache } = &self.strategy;
        let n = 1 + dice.below(2 * self.burst);
        if self.held[at].len() > self.burst {
            let remote = dice.below(4) == 0;
            cpu::on(if remote { dice.below(cpus) } else { at });
            let n = n.min(self.held[at].len());
            for object in self.held[at].drain(..n).rev() {
                // SAFETY: the object is of this cache and is freed once.
                unsafe { slub.free(cache, object) };
            }
            return Some(0);
        }
        cpu::on(at);
        self.held[at].extend((0..n).map(|_| slub.alloc(cache, Gfp::KERNEL)));
        self.held[at].last().filter(|o| !o.is_null()).map(|_| n)
    }

    /// Bytes of objects in sheaves.
    fn waiting(&self) -> usize {
        let Strategy { slub, cache } = &self.strategy;
        slub.info(cache).cached_objs * cache.size as usize
    }

    fn end(&mut self) {
        let Strategy { slub, cache } = &self.strategy;
        for object in self.held.iter_mut().flat_map(|held| held.drain(..)) {
            // SAFETY: the object is of this cache and is freed once.
            unsafe { slub.free(cache, object) };
        }
    }
}
