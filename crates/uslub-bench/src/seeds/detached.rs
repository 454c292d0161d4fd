//! Seed 2: bulk calls. One update of a slab's state frees all objects of the slab.
//!
//! | part | old | new |
//! |---|---|---|
//! | bulks of 1 to 250 objects | a loop over single calls | bulk calls |
//! | worst case: neighbours of different slabs | a loop over single calls | bulk calls |
//! | worst case without sheaves | one update an object | one update a run found by look-ahead |

use std::cell::RefCell;

use uslub_linux::Linux;

use crate::bench::Bench;
use crate::bulks::{Places, at_once, at_once_unchecked, one_by_one, sequences};
use crate::error::Failure;
use crate::floor::{FLOOR, Floor};
use crate::goal::{Goal, signed};
use crate::kernel;
use crate::linux::{self, Pinned, Slub};
use crate::measure::Sample;
use crate::output::{Chart, Words};
use crate::pace;
use crate::strategy::Strategy;

use super::{Row, Section, worst_case};

/// Bytes of an object.
const SIZE: usize = 256;
/// Largest time per object in a large bulk, in nanoseconds.
const LIMIT_NS: f64 = 0.45;

/// The label of sheaves that can hold every bulk.
const LARGE: &str = "sheaves of 250";

/// Objects per bulk, and the thread's figures: ns before, ns after, gain in per cent.
const REPORTED: [(usize, f64, f64, f64); 14] = [
    (1, 10.520, 11.931, -11.9),
    (2, 6.697, 7.368, -11.5),
    (3, 5.589, 6.003, -9.1),
    (4, 4.921, 5.543, -15.8),
    (8, 4.499, 5.047, -17.6),
    (16, 17.424, 5.015, 71.0),
    (30, 22.075, 5.062, 77.3),
    (32, 20.965, 5.089, 75.9),
    (34, 20.039, 7.006, 65.0),
    (48, 19.252, 7.755, 59.2),
    (64, 21.523, 17.203, 20.9),
    (128, 24.444, 18.195, 25.8),
    (158, 24.036, 18.372, 24.0),
    (250, 25.007, 18.430, 27.0),
];

/// Measures the seed.
pub fn run(bench: &Bench) -> Result<Section, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let slub = linux::steady()?;
    let mut own = Words::new(&["bulk", "before", "after", "improved"]);
    for (n, before, after, gain) in REPORTED {
        own.push(&[
            n.to_string(),
            format!("{before} ns"),
            format!("{after} ns"),
            format!("{} %", signed(gain)),
        ]);
    }
    let mut rows = Vec::new();
    let mut charts = Vec::new();
    for (setting, name) in [
        ("sheaf_capacity=250", LARGE),
        ("sheaf_capacity=0", "default sheaves"),
    ] {
        charts.push(bulks(bench, slub, setting, name, &mut rows)?);
    }
    charts.push(worst_case::run(bench, slub, &mut rows)?);
    Ok(Section {
        name: "Seed 2",
        title: "Bulk calls and the detached freelist",
        source: Some("slub: optimize bulk slowpath free by detached freelist (2015)"),
        about: "Network and storage code frees objects by the dozen. Freed one by one, each pays for its own update of the \
                slab it came from. Here a whole array goes to the CPU's sheaf in one step; what does not fit is sorted \
                by slab first, and each slab is updated once for all of its objects.",
        workload: format!(
            "One thread on one CPU; objects of {SIZE} bytes; allocate and free N at once, against a loop over single \
             calls. In the worst case each object of the array lies in another slab than its neighbours. The floor, in the same rounds, \
             is the two restartable sequences of bulk calls on a stack that is large enough, and nothing else. Of everybody's bulks, but not of \
             the worst case's, those count during which the core was least shared."
        ),
        own: Some(own),
        rows,
        charts,
    })
}

/// All bulk sizes, compared with single calls.
fn bulks(
    bench: &Bench,
    slub: &Slub,
    setting: &str,
    name: &str,
    rows: &mut Vec<Row>,
) -> Result<Chart, Failure> {
    let way = || Strategy::new(slub, SIZE, &[setting]);
    let ways = [way()?, way()?, way()?];
    let floor = Floor::here()?;
    let mut lines = [const { Vec::new() }; 4];
    for (n, before, after, gain) in REPORTED {
        let (kernel, exact) = kernel::bulk(n);
        bench.says(&format!("bulk of {n}, {name}"));
        let [old, checked, new, bare, load] = measure(bench, &ways, floor, n)?;
        let said = format!("{before} → {after} ns, improved {} %", signed(gain));
        for (new, how) in [(checked, "bulk"), (new, "bulk, unchecked")] {
            let mut goal = goal(n, gain, kernel, old, new);
            if n >= 32 && name == LARGE {
                goal = goal.at_most(new, LIMIT_NS, "ns");
            }
            let row = Row::new(
                2,
                format!("{how} of {n}, {name}"),
                "ns/object",
                Some(old),
                new,
                &goal,
            );
            let kernel = exact.then_some(kernel);
            let row = row.reported(&said).kernel(kernel);
            let there = pace::where_goals_were_set(new.median, load.median);
            rows.push(row.note(match floor {
                Some(_) => format!("floor {:.2} ns; {there}", bare.median),
                None => there,
            }));
        }
        let values = [old.median, checked.median, new.median, kernel];
        for (line, value) in lines.iter_mut().zip(values) {
            line.push((n as f64, value));
        }
    }
    for strategy in ways {
        strategy.check_at_rest()?;
    }
    let [old, checked, new, kernels] = lines;
    let chart = Chart::curves(
        format!("Allocate and free N objects, {name}"),
        "objects a bulk",
        "ns an object",
    );
    Ok(chart
        .with("one by one", old)
        .with("bulk", checked)
        .with("bulk, unchecked", new)
        .with(kernel::NEWEST, kernels))
}

/// Measures one bulk size: single calls, bulk calls, unchecked bulk calls, the floor, and a load.
fn measure(
    bench: &Bench,
    [single, bulk, unchecked]: &[Strategy<'_, Linux>; 3],
    floor: Option<&Floor>,
    n: usize,
) -> Result<[Sample; 5], Failure> {
    // A full run is long enough for some slices on a quiet core.
    let loops = (bench.size.pick(1_000, 250_000, 10_000_000) / n).max(1);
    let places = RefCell::new(Places::new());
    let time =
        |who, work: &dyn Fn(&mut [*mut u8]) -> bool| places.borrow_mut().time(who, loops, n, work);
    bench.samples_of(
        2,
        [
            &mut || time("old", &|o| one_by_one(single, o)),
            &mut || time("checked", &|o| at_once(bulk, o)),
            &mut || time("new", &|o| at_once_unchecked(unchecked, o)),
            &mut || time(FLOOR, &|o| sequences(floor, o)),
            &mut || Ok(pace::load()),
        ],
    )
}

fn goal(n: usize, gain: f64, kernel: f64, old: Sample, new: Sample) -> Goal {
    let goal = if n >= 16 {
        Goal::none().cut(old, new, -gain)
    } else {
        Goal::none().no_dearer(old, new)
    };
    goal.below_kernel(new, kernel)
}
