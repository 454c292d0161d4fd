//! The seeds, one file each. Each file measures the change that one mailing-list thread proposed.

mod capacity;
mod deferred;
mod detached;
mod lockfree;
mod nowait;
mod row;
mod spill;
mod way;
mod worst_case;

use std::sync::{Mutex, PoisonError};

use crate::bench::Bench;
use crate::error::Failure;
use crate::output::{self, Report};

pub use row::{OldNew, Row};
pub use way::{Way, Witness};

/// The result of one seed.
type Section = output::Section<OldNew>;
/// A seed's number, and the function that measures the seed.
type Seed = (u8, fn(&Bench) -> Result<Section, Failure>);

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
pub fn run(bench: &Bench, numbers: &[u8]) -> Result<Report<OldNew>, Failure> {
    // Parallel runs would disturb the times and change the counters that a run compares.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seeds = SEEDS.iter().filter(|(n, _)| numbers.contains(n));
    let seeds = seeds.map(|&(number, run)| (format!("seed {number}"), move || run(bench)));
    let title = "uslub: five threads, old against new";
    let mut report = Report::measure(bench, title, seeds.collect())?;
    report.notes = vec![
        "goals are about ratios inside one run, or about nanoseconds; other absolute times are \
         for the reader"
            .to_owned(),
    ];
    Ok(report)
}
