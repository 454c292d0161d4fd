//! The load of seed 1 on two real CPUs, in real time.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use uslub_core::platform::Platform;
use uslub_linux::Linux;
use uslub_sim::{Batches, Clock, cpu};

use crate::bench::Bench;
use crate::dice::Dice;
use crate::error::Failure;
use crate::linux::{self, Pinned};
use crate::strategy::Strategy;
use crate::threads::joined;

use super::Rounds;
use super::ideas::{MAIN, settings};
use super::maple::{Counters, Counts, GRACE_MS, SIZE, Tree, end};

/// Random numbers drawn in a step, instead of its other work: half a microsecond.
const WORK: usize = 250;
/// Idle time after the load: a second, or none.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_NOT: Duration = Duration::ZERO;
/// Milliseconds between two runs of the helper.
const HELPER_MS: u64 = 10;
/// Steps between two reads of the clock.
const LOOK: usize = 64;

/// The grace period of this process's allocator.
fn grace() -> Result<&'static Batches, Failure> {
    static GRACE: OnceLock<Batches> = OnceLock::new();
    let slub = linux::steady()?;
    let grace =
        GRACE.get_or_init(|| Batches::new(2, Clock::real(), Duration::from_millis(GRACE_MS)));
    // Ignores a failure: after the first call the grace period is set.
    slub.set_grace_period(grace);
    Ok(grace)
}

/// The rounds of the first competitors.
pub fn run(bench: &Bench) -> Result<Vec<Rounds>, Failure> {
    let grace = grace()?;
    let phase = Duration::from_millis(bench.size.pick(20, 100, 500));
    let mut number = 0;
    let mut round = |way, idle| {
        number += 1;
        one(grace, way, number, phase, idle)
    };
    let mut rounds = bench.each_in_turn((1, bench.rounds()), MAIN, |way| round(way, IDLE_NOT))?;
    // Only one round of each competitor idles, because the idle phase takes a second.
    for (way, rounds) in rounds.iter_mut().enumerate() {
        let last = round(way, bench.size.pick(IDLE_NOT, IDLE, IDLE))?;
        for counts in rounds {
            counts.idle_empty = last.idle_empty;
            counts.idle_in_use = last.idle_in_use;
        }
    }
    Ok(rounds)
}

/// One round: a warm-up and a measured phase of equal length on both CPUs, then an idle phase.
fn one(
    grace: &Batches,
    way: usize,
    number: usize,
    phase: Duration,
    idle_for: Duration,
) -> Result<Counts, Failure> {
    let slub = linux::steady()?;
    Strategy::change_places(slub, number / 3)?;
    let strategy = Strategy::new(slub, SIZE, &settings(way))?;
    let mut trees = [0, 1].map(|cpu| Tree::new(cpu + 1000 * number));
    both(&strategy, grace, &mut trees, phase)?;
    let counters = Counters::look(&strategy)?;
    let (steps, spent, peak) = both(&strategy, grace, &mut trees, phase)?;
    let mut counts = counters.since(&strategy, steps)?;
    counts.step_ns = Some(2.0 * spent.as_nanos() as f64 / steps as f64);
    counts.peak_mib = (peak * strategy.cache.geometry.bytes()) as f64 / f64::from(1 << 20);
    idle(grace, &strategy, idle_for);
    counts = counts.at_idle(&strategy);
    end(&strategy, &mut trees)?;
    Ok(counts)
}

/// An idle phase. Grace periods end, and the helper runs periodically.
fn idle(grace: &Batches, strategy: &Strategy<'_, Linux>, long: Duration) {
    let start = Instant::now();
    while start.elapsed() < long {
        std::thread::sleep(Duration::from_millis(HELPER_MS));
        for cpu in 0..2 {
            cpu::on(cpu);
            grace.run(usize::MAX);
        }
        strategy.slub.tick(strategy.slub.platform.now_ms());
    }
}

/// Both CPUs run steps for a while. Returns the number of steps, the time, and the peak of slabs.
fn both(
    strategy: &Strategy<'_, Linux>,
    grace: &Batches,
    trees: &mut [Tree; 2],
    phase: Duration,
) -> Result<(usize, Duration, usize), Failure> {
    let cpus = linux::two_cpus();
    let start = Instant::now();
    let side = |me: usize, tree: &mut Tree| {
        let pinned = Pinned::to(cpus[me]);
        cpu::on(me);
        let (mut steps, mut peak) = (0, 0);
        let mut work = Dice::new(me as u64);
        while start.elapsed() < phase {
            for _ in 0..LOOK {
                tree.step(strategy, grace);
                (0..WORK).for_each(|_| {
                    std::hint::black_box(work.roll());
                });
            }
            steps += LOOK;
            peak = peak.max(strategy.cache.nr_slabs());
        }
        pinned.map(|_| (steps, peak))
    };
    let [first, second] = trees;
    let [mine, other] = std::thread::scope(|scope| {
        let other = scope.spawn(|| side(1, second));
        let mine = side(0, first);
        [mine, joined(other)]
    });
    let ((a, peak_a), (b, peak_b)) = (mine?, other?);
    Ok((a + b, start.elapsed(), peak_a.max(peak_b)))
}
