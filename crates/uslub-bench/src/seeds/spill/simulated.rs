//! The load of seed 1 on 48 virtual CPUs of one node: a quarter of the thread's machine.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use uslub_core::Allocator;
use uslub_core::tunables::Tunables;
use uslub_sim::{Batches, Clock, Machine, Sim, cpu};

use crate::bench::Bench;
use crate::error::Failure;
use crate::linux::{self, Pinned};
use crate::measure::nanoseconds;
use crate::ring::wait_until;
use crate::strategy::Strategy;
use crate::threads::joined;

use super::Rounds;
use super::ideas::{IDEAS, ON_TWO, settings};
use super::maple::{Counters, Counts, GRACE_MS, SIZE, Tree, end};

/// Number of CPUs.
pub const CPUS: usize = 48;
/// Steps of a CPU from one callback of the grace period to the next: slightly faster than rcu
/// sheaves fill, as a kernel that works off its callbacks evenly. In bursts, all slabs empty at
/// once, and spilling changes little.
const PACE: usize = 20;
/// Virtual nanoseconds of a CPU's step, like a pair of `mmap` and `munmap`.
const STEP_NS: u64 = 3000;
/// Steps of each CPU between two samples of the number of slabs: a millisecond.
const LOOK: usize = 333;

struct World {
    slub: Box<Allocator<Sim>>,
    grace: &'static Batches,
    clock: Clock,
}

impl World {
    fn new() -> Self {
        let clock = Clock::manual();
        let machine = Machine::new(CPUS, 1);
        let sim = Sim::new(machine, clock.clone());
        let slub = uslub_sim::allocator(sim, Tunables::DEFAULT);
        // An allocator keeps its grace period until the process ends.
        let grace: &Batches = Box::leak(Box::new(Batches::new(
            CPUS,
            clock.clone(),
            Duration::from_millis(GRACE_MS),
        )));
        slub.set_grace_period(grace);
        Self { slub, grace, clock }
    }

    fn strategy(&self, way: usize) -> Result<Strategy<'_, Sim>, Failure> {
        Strategy::new(&self.slub, SIZE, &settings(way))
    }

    /// An idle second. Only the helper runs periodically, and grace periods end.
    fn idle(&self) {
        for _ in 0..100 {
            self.clock.advance(10_000_000);
            for cpu in 0..CPUS {
                cpu::on(cpu);
                self.grace.run(usize::MAX);
            }
            cpu::on(0);
            self.slub.tick(self.clock.now_ns() / 1_000_000);
        }
    }
}

/// The rounds of all competitors, played by one thread. Each round has other random numbers, and
/// counts the same in every run.
pub fn run(bench: &Bench) -> Result<Vec<Rounds>, Failure> {
    let world = World::new();
    let _pinned = Pinned::to_the_last()?;
    let (warm_up, steps) = bench
        .size
        .pick((100, 200), (20_000, 10_000), (20_000, 80_000));
    // A round counts the same in every run, so one is enough for a quick look.
    let rounds = bench.size.pick(1, 1, 7);
    let mut turn = 0;
    bench.each_in_turn((0, rounds), IDEAS.len(), |way| {
        turn += 1;
        one(&world, way, 1 + turn / IDEAS.len(), warm_up, steps)
    })
}

/// One round: `steps` steps on each CPU, all CPUs in turn. Each round has other random numbers.
fn one(
    world: &World,
    way: usize,
    number: usize,
    warm_up: usize,
    steps: usize,
) -> Result<Counts, Failure> {
    let strategy = world.strategy(way)?;
    let mut trees: Vec<_> = (0..CPUS)
        .map(|cpu| Tree::new(cpu + 1000 * number))
        .collect();
    let mut peak = 0;
    let mut play = |trees: &mut [Tree], steps: usize| {
        for step in 0..steps {
            for (cpu, tree) in trees.iter_mut().enumerate() {
                cpu::on(cpu);
                let due = usize::from((step + cpu) % PACE == 0);
                tree.step_paced(&strategy, world.grace, due);
            }
            world.clock.advance(STEP_NS);
            if step % LOOK == 0 {
                peak = peak.max(strategy.cache.nr_slabs());
            }
        }
    };
    play(&mut trees, warm_up);
    let counters = Counters::look(&strategy)?;
    play(&mut trees, steps);
    let mut counts = counters.since(&strategy, steps * CPUS)?;
    counts.peak_mib = (peak * strategy.cache.geometry.bytes()) as f64 / f64::from(1 << 20);
    world.idle();
    counts = counts.at_idle(&strategy);
    end(&strategy, &mut trees)?;
    Ok(counts)
}

/// The rounds of some competitors, played by two threads in parallel.
pub fn run_on_two(bench: &Bench) -> Result<Vec<Rounds>, Failure> {
    let steps = bench.size.pick(200, 4_000, 40_000);
    let mut number = 0;
    bench.each_in_turn((1, bench.size.pick(2, 3, 15)), ON_TWO.len(), |at| {
        number += 1;
        // A new machine for each competitor, so that its metadata has the same position.
        both(&World::new(), ON_TWO[at], number, steps)
    })
}

/// One round: warm-up steps, then measured steps.
fn both(world: &World, way: usize, number: usize, steps: usize) -> Result<Counts, Failure> {
    let strategy = world.strategy(way)?;
    let mut trees: Vec<_> = (0..CPUS)
        .map(|cpu| Tree::new(cpu + 1000 * number))
        .collect();
    play_both(world, &strategy, &mut trees, steps / 2)?;
    let counters = Counters::look(&strategy)?;
    let (time, held) = play_both(world, &strategy, &mut trees, steps)?;
    let mut counts = counters.since(&strategy, steps * CPUS)?;
    counts.step_ns = Some(time / (steps * CPUS) as f64);
    counts.lock_held = Some(held as f64 * 100.0 / (steps * CPUS) as f64);
    end(&strategy, &mut trees)?;
    Ok(counts)
}

/// Two threads play half of the CPUs each. The first thread moves the clock. Returns nanoseconds,
/// and the steps at whose begin the other thread held the list lock.
fn play_both(
    world: &World,
    strategy: &Strategy<'_, Sim>,
    trees: &mut [Tree],
    steps: usize,
) -> Result<(f64, usize), Failure> {
    let lists = &strategy.cache.node(0).lists;
    let made = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let cpus = linux::two_cpus();
    let half = |me: usize, trees: &mut [Tree]| {
        let pinned = Pinned::to(cpus[me]);
        let mut held = 0;
        for step in 1..=steps {
            for (i, tree) in trees.iter_mut().enumerate() {
                cpu::on(me * (CPUS / 2) + i);
                held += usize::from(lists.is_held());
                let due = usize::from((step + i) % PACE == 0);
                tree.step_paced(strategy, world.grace, due);
            }
            if me == 0 {
                world.clock.advance(STEP_NS);
            }
            // Keeps the threads close together. Release and Acquire: publishes no other data.
            made[me].store(step, Release);
            wait_until(|| made[1 - me].load(Acquire) + LOOK > step);
        }
        pinned.map(|_| held)
    };
    let (first, second) = trees.split_at_mut(CPUS / 2);
    let (time, done) = nanoseconds(|| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| half(1, second));
            let mine = half(0, first);
            Ok::<_, Failure>(mine? + joined(other)?)
        })
    });
    Ok((time, done?))
}
