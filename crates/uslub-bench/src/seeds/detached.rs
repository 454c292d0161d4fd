//! Seed 2: bulk calls. One update of a slab's state frees all objects of the slab.
//!
//! | part | old | new |
//! |---|---|---|
//! | bulks of 1 to 250 objects | the bulk call frees objects one by one | one update a slab |
//! | worst case: neighbours of different slabs | the same | one update a run by look-ahead |
//!
//! A loop over single calls is for the reader.
//!
//! Each part runs without sheaves and with sheaves. With sheaves most bulks never reach a slab, so
//! old and new are then equal: the counter of slab updates says so in each row.

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

use super::{Row, Section, Way, Witness, worst_case};

/// Bytes of an object.
const SIZE: usize = 256;
/// Largest time per object in a large bulk, in nanoseconds.
const LIMIT_NS: f64 = 0.45;

/// The label of sheaves that can hold every bulk.
const LARGE: &str = "sheaves of 250";
/// The label of caches without sheaves, as the thread's kernel had none. The minimum is three
/// sheaves of one object: the first three objects of a bulk reach no slab.
const NONE: &str = "no sheaves";
/// Labels and settings.
const GROUPS: [(&str, &[&str]); 3] = [
    (NONE, &worst_case::NO_SHEAVES),
    ("default sheaves", &[]),
    (LARGE, &["sheaf_capacity=250"]),
];
/// The settings of the old and the new way.
const ONE_BY_ONE: &str = "detached_freelist=0";
const DETACHED: &str = "detached_freelist=1";
/// The counter of slab updates by frees.
const UPDATES: &str = "slab updates in 1000 objects";

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
    for (name, settings) in GROUPS {
        charts.push(bulks(bench, slub, settings, name, &mut rows)?);
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
            "One thread on one CPU; objects of {SIZE} bytes; allocate and free N with bulk calls. The old way frees the objects one by one \
             inside the bulk call, the new way by slab; a loop over single calls is for the reader. Without sheaves, as in 2015, and \
             with them: where a sheaf takes the whole bulk no slab is updated, and both ways are equal. In the worst case each object of the array lies in another slab than its neighbours. The floor, in the same rounds, \
             is the two restartable sequences of bulk calls on a stack that is large enough, and nothing else. Of everybody's bulks, but not of \
             the worst case's, those count during which the core was least shared."
        ),
        own: Some(own),
        rows,
        charts,
    })
}

/// What the ways of this seed run, with the settings of a group.
pub(super) fn ways(calls: &'static str, settings: &[&str]) -> [Way; 2] {
    let way = |name, last| Way::new(name, calls, &[settings, &[last]].concat());
    [
        way("bulk, freed one by one", ONE_BY_ONE),
        way("bulk, detached freelists", DETACHED),
    ]
}

/// The competitors of a group of rows: bulk calls of the old and the new way, single calls, and
/// bulk calls without a check of each object.
struct Competitors<'a> {
    old: Strategy<'a, Linux>,
    new: Strategy<'a, Linux>,
    single: Strategy<'a, Linux>,
    unchecked: Strategy<'a, Linux>,
}

/// All bulk sizes.
fn bulks(
    bench: &Bench,
    slub: &Slub,
    settings: &[&str],
    name: &str,
    rows: &mut Vec<Row>,
) -> Result<Chart, Failure> {
    let with = |last| Strategy::new(slub, SIZE, &[settings, &[last]].concat());
    let all = Competitors {
        old: with(ONE_BY_ONE)?,
        new: with(DETACHED)?,
        single: with(DETACHED)?,
        unchecked: with(DETACHED)?,
    };
    let ways = ways("bulk calls", settings);
    let floor = Floor::here()?;
    let mut lines = [const { Vec::new() }; 4];
    for (n, before, after, gain) in REPORTED {
        let (kernel, exact) = kernel::bulk(n);
        bench.says(&format!("bulk of {n}, {name}"));
        let measured = measure(bench, &all, floor, n)?;
        let Measured {
            old, new, single, ..
        } = measured;
        let mut goal = goal(n, gain, old, new, measured.is_equal());
        if name != NONE {
            goal = goal.below_kernel(new, kernel);
        }
        let row = Row::new(
            2,
            format!("bulk of {n}, {name}"),
            "ns/object",
            Some(old),
            new,
            &goal,
        );
        let said = format!("{before} → {after} ns, improved {} %", signed(gain));
        let row = row.reported(&said).kernel(exact.then_some(kernel));
        let [before, after] = measured.updates;
        let row = row.witness(UPDATES, before, after).single(single);
        rows.push(row.ways(&ways[0], &ways[1]).note(measured.note(floor)));
        if name == LARGE && n >= 32 {
            rows.push(unchecked(n, &measured, settings));
        }
        let values = [old.median, new.median, single.median, kernel];
        for (line, value) in lines.iter_mut().zip(values) {
            line.push((n as f64, value));
        }
    }
    for strategy in [all.old, all.new, all.single, all.unchecked] {
        strategy.check_at_rest()?;
    }
    let [old, new, single, kernels] = lines;
    let chart = Chart::curves(
        format!("Allocate and free N objects, {name}"),
        "objects a bulk",
        "ns an object",
    );
    Ok(chart
        .with("bulk, freed one by one", old)
        .with("bulk, detached freelists", new)
        .with("single calls", single)
        .with(kernel::NEWEST, kernels))
}

/// The row of large bulks whose free does not check each object.
fn unchecked(n: usize, measured: &Measured, settings: &[&str]) -> Row {
    let (old, new) = (measured.new, measured.unchecked);
    let goal = Goal::none().at_most(new, LIMIT_NS, "ns");
    let name = format!("bulk of {n}, unchecked, {LARGE}");
    let way = |name, calls| Way::new(name, calls, &[settings, &[DETACHED]].concat());
    Row::new(2, name, "ns/object", Some(old), new, &goal).ways(
        &way("each object checked", "bulk calls"),
        &way("not checked", "unchecked bulk calls"),
    )
}

/// The figures of one bulk size.
struct Measured {
    old: Sample,
    new: Sample,
    single: Sample,
    unchecked: Sample,
    floor: Sample,
    load: Sample,
    /// Slab updates in 1000 objects, of the old and the new way.
    updates: [f64; 2],
}

impl Measured {
    /// Whether both ways update slabs as often: sheaves take every bulk, or all of it but one
    /// object.
    fn is_equal(&self) -> bool {
        let [old, new] = self.updates;
        let counter = UPDATES;
        !Witness { counter, old, new }.tells_apart()
    }

    fn note(&self, floor: Option<&Floor>) -> String {
        let there = pace::where_goals_were_set(self.new.median, self.load.median);
        let [before, after] = self.updates;
        let ran = match self.is_equal() {
            true if after < 1.0 => "equal: sheaves take every bulk, no slab is updated".to_owned(),
            true => "equal: sheaves take all of a bulk but one object".to_owned(),
            false => format!("slab updates in 1000 objects: {before:.0} → {after:.0}"),
        };
        match floor {
            Some(_) => format!("{ran}; floor {:.2} ns; {there}", self.floor.median),
            None => format!("{ran}; {there}"),
        }
    }
}

/// Slab updates by frees, and objects freed, so far.
fn updates_and_frees(strategy: &Strategy<'_, Linux>) -> Result<[u64; 2], Failure> {
    let frees = strategy.slub.info(strategy.cache).frees;
    Ok([strategy.count("free_detached")?, frees])
}

/// Measures one bulk size.
fn measure(
    bench: &Bench,
    all: &Competitors<'_>,
    floor: Option<&Floor>,
    n: usize,
) -> Result<Measured, Failure> {
    // A full run is long enough for some slices on a quiet core.
    let loops = (bench.size.pick(1_000, 250_000, 10_000_000) / n).max(1);
    let places = RefCell::new(Places::new());
    let time =
        |who, work: &dyn Fn(&mut [*mut u8]) -> bool| places.borrow_mut().time(who, loops, n, work);
    let before = [updates_and_frees(&all.old)?, updates_and_frees(&all.new)?];
    let [old, new, single, unchecked, floor, load] = bench.samples_of(
        2,
        [
            &mut || time("old", &|o| at_once(&all.old, o)),
            &mut || time("new", &|o| at_once(&all.new, o)),
            &mut || time("single", &|o| one_by_one(&all.single, o)),
            &mut || time("unchecked", &|o| at_once_unchecked(&all.unchecked, o)),
            &mut || time(FLOOR, &|o| sequences(floor, o)),
            &mut || Ok(pace::load()),
        ],
    )?;
    let after = [updates_and_frees(&all.old)?, updates_and_frees(&all.new)?];
    let updates = [0, 1].map(|way| {
        let [updates, frees] = [0, 1].map(|i| (after[way][i] - before[way][i]) as f64);
        updates * 1000.0 / frees.max(1.0)
    });
    Ok(Measured {
        old,
        new,
        single,
        unchecked,
        floor,
        load,
        updates,
    })
}

fn goal(n: usize, gain: f64, old: Sample, new: Sample, is_equal: bool) -> Goal {
    if n >= 16 && !is_equal {
        Goal::none().cut(old, new, -gain)
    } else {
        Goal::none().no_dearer(old, new)
    }
}
