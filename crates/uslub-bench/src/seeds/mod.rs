//! The seeds, one file each. Each file measures the change that one mailing-list thread proposed.

mod capacity;
mod deferred;
mod detached;
mod lockfree;
mod nowait;
mod spill;
mod worst_case;

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::bench::Bench;
use crate::error::Failure;
use crate::machine::Machine;
use crate::report::{Report, SeedReport};

/// A seed's number, and the function that measures the seed.
type Seed = (u8, fn(&Bench) -> Result<SeedReport, Failure>);

/// All seeds.
const SEEDS: [Seed; 5] = [
    (0, deferred::run),
    (1, spill::run),
    (2, detached::run),
    (3, lockfree::run),
    (4, nowait::run),
];

/// Numbers of all seeds.
pub fn numbers() -> [u8; SEEDS.len()] {
    SEEDS.map(|(number, _)| number)
}

/// Runs the seeds with these numbers. Only one run at a time is possible in a process.
///
/// # Errors
///
/// If a measurement fails completely, or an object was lost.
pub fn run(bench: &Bench, numbers: &[u8]) -> Result<Report, Failure> {
    // Parallel runs would disturb the times and change the counters that a run compares.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let machine = Machine::look()?;
    let mut seeds = Vec::new();
    let chosen: Vec<_> = SEEDS.iter().filter(|(n, _)| numbers.contains(n)).collect();
    bench.progress.set_length(chosen.len() as u64);
    for (number, run) in chosen {
        bench.progress.set_prefix(format!("seed {number}"));
        seeds.push(run(bench)?);
        bench.progress.inc(1);
    }
    bench.progress.finish_and_clear();
    Ok(Report {
        machine,
        size: bench.size.name(),
        rounds: bench.rounds(),
        seconds: start.elapsed().as_secs_f64(),
        seeds,
    })
}
