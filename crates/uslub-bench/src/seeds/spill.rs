//! Seed 1: surplus objects of a refill stay in the CPU's sheaves, and empty slabs are kept by
//! demand.
//!
//! | competitor | surplus of a refill | empty slabs |
//! |---|---|---|
//! | no spill | back to the slab | above `min_partial`: back to the page layer |
//! | spill | into the CPU's sheaves | as without spill |
//! | spill and reserve | into the CPU's sheaves | kept while misses show a demand |

pub(super) mod maple;
mod real;
mod simulated;

use super::{Row, Section};
use crate::bench::Bench;
use crate::error::Failure;
use crate::goal::Goal;
use crate::measure::Sample;
use crate::output::{Chart, Words};

use maple::Counts;

/// Sheaf capacity and slab size of the kernel's maple nodes.
const KERNEL: [&str; 4] = [
    "sheaf_capacity=32",
    "max_full_sheaves=10",
    "slab_min_objects=32",
    "slab_min_order=1",
];
/// Competitors: name and settings.
const WAYS: [(&str, &[&str]); 3] = [
    ("no spill", &["sheaf_spill=0"]),
    ("spill", &["sheaf_spill=1"]),
    ("spill and reserve", &["sheaf_spill=1", "empty_reserve=1"]),
];
/// Required change of list locks through spilling, in per cent.
const LOCK_CUT: f64 = -25.0;
/// Largest ratio of slabs taken and returned, with the reserve to without.
const CHURN: f64 = 1.2;
/// Largest ratio of peak slab memory, with the reserve to without. The reserve holds at most half
/// as many slabs as were in use.
const PEAK: f64 = 1.5;
/// Unit of the counts.
const UNIT: &str = "in 1 M steps";
/// What the thread reported of the list lock, and of an operation's time.
const LOCK_TIME: &str = "7.85 → 3.5 % of the CPU time";
const STEP_TIME: &str = "−2 … −5 %";

/// The settings of a competitor.
fn settings(way: usize) -> Vec<&'static str> {
    [&KERNEL[..], WAYS[way].1].concat()
}

/// Measures the seed.
pub fn run(bench: &Bench) -> Result<Section, Failure> {
    let mut own = Words::new(&["will-it-scale mmap2, 192 CPUs", "no spill", "spill"]);
    for line in [
        ["operations", "", "+2 … +5 %"],
        ["CPU time on the list lock", "7.85 %", "≈ 3.5 %"],
        ["slow frees", "1", "≈ 2"],
        ["slabs taken and returned", "1", "≈ 4"],
    ] {
        own.push(&line.map(str::to_owned));
    }
    let mut rows = Vec::new();
    let mut charts = Vec::new();
    charts.extend(machine(bench, "2 CPUs", real::run, &mut rows)?);
    charts.extend(machine(
        bench,
        "64 virtual CPUs",
        simulated::run,
        &mut rows,
    )?);
    waits(bench, &mut rows)?;
    Ok(Section {
        name: "Seed 1",
        title: "Spilling what a refill leaves over",
        source: Some("[RFC PATCH] slub: spill refill leftover objects into percpu sheaves (April 2026)"),
        about: "To fill a CPU's sheaf, slabs are emptied; the last one usually has more than is needed. Giving the rest back takes the \
                node's lock once more. Keeping it in the CPU's other sheaf saves that, but then slabs empty sooner and go back to the page layer, only \
                to be asked for again a moment later: four times as often in the kernel. A reserve of empty slabs that \
                grows when it is missed and shrinks when it is idle ends that.",
        workload: "The kernel's maple tree under mmap and munmap: of five steps of a CPU, four allocate a node, and one prefills a \
                   sheaf with 8 to 30, takes 1 to 4 and returns it. Old nodes are freed after a grace period of 4 ms. Counts are for a million \
                   steps. The 64 virtual CPUs are played in turn by one thread in virtual time, so that every run counts the \
                   same; waiting for the list lock and time come from two threads that play half of them each."
            .to_owned(),
        own: Some(own),
        rows,
        charts,
    })
}

/// The results of one competitor's rounds.
type Rounds = Vec<Counts>;
/// A function that measures all competitors in turn.
type Measure = fn(&Bench) -> Result<[Rounds; WAYS.len()], Failure>;

/// The rounds of all competitors. If the allocator lacks a feature, adds a row with the reason.
fn rounds_of(
    bench: &Bench,
    name: &str,
    measure: Measure,
    rows: &mut Vec<Row>,
) -> Result<Option<[Rounds; WAYS.len()]>, Failure> {
    bench.says(name);
    match measure(bench) {
        Ok(rounds) => Ok(Some(rounds)),
        Err(why @ Failure::Unavailable(_)) => {
            rows.push(Row::without(1, name, "", &why));
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

fn machine(
    bench: &Bench,
    name: &str,
    measure: Measure,
    rows: &mut Vec<Row>,
) -> Result<Option<Chart>, Failure> {
    let Some(rounds) = rounds_of(bench, name, measure, rows)? else {
        return Ok(None);
    };
    for way in 1..WAYS.len() {
        push_rows(rows, name, way, &rounds[0], &rounds[way]);
    }
    let names = [
        "list lock taken",
        "objects freed slowly",
        "slabs taken and returned",
    ];
    let mut chart = Chart::bars(
        format!("Counts, {name}"),
        "in a million steps",
        names.map(str::to_owned).to_vec(),
    )
    .logarithmic();
    for ((way, _), rounds) in WAYS.iter().zip(&rounds) {
        chart = chart.with(way, heights(rounds));
    }
    Ok(Some(chart))
}

fn heights(rounds: &Rounds) -> Vec<f64> {
    let median = |part: fn(&Counts) -> f64| Sample::of_each(rounds, part).median;
    vec![
        median(|c| c.list_lock.unwrap_or(0.0)),
        median(|c| c.slow_frees),
        median(Counts::churn),
    ]
}

/// The rows of one competitor, compared with no spill.
fn push_rows(rows: &mut Vec<Row>, machine: &str, way: usize, old: &Rounds, new: &Rounds) {
    let what = WAYS[way].0;
    let with_reserve = way == 2;
    let sample = |rounds: &Rounds, part: fn(&Counts) -> f64| Sample::of_each(rounds, part);
    let mut push = |part: fn(&Counts) -> f64,
                    name: &str,
                    unit,
                    said: &str,
                    goal: &dyn Fn(Sample, Sample) -> Goal| {
        let (old, new) = (sample(old, part), sample(new, part));
        let name = format!("{machine}, {what}: {name}");
        let row = Row::new(1, name, unit, Some(old), new, &goal(old, new));
        rows.push(row.reported(said));
    };
    let none = |_: Sample, _: Sample| Goal::none();
    if old.iter().chain(new).all(|c| c.list_lock.is_some()) {
        let locks = |c: &Counts| c.list_lock.unwrap_or(0.0);
        let cut = |old, new| Goal::none().cut(old, new, LOCK_CUT);
        push(locks, "list lock taken", UNIT, LOCK_TIME, &cut);
    }
    push(|c| c.slow_frees, "objects freed slowly", UNIT, "× 2", &none);
    let churn = |old: Sample, new: Sample| {
        let goal = Goal::none();
        if with_reserve {
            goal.and(format!("≤ × {CHURN}"), new.median <= CHURN * old.median)
        } else {
            goal
        }
    };
    let name = "slabs taken and returned";
    push(Counts::churn, name, UNIT, "× 4", &churn);
    let peak = |old: Sample, new: Sample| {
        Goal::none().and(format!("≤ × {PEAK}"), new.median <= PEAK * old.median)
    };
    push(|c| c.peak_mib, "slabs at the peak", "MiB", "", &peak);
    let few = |c: &Counts| c.idle_empty <= (c.idle_in_use / 2.0).max(5.0);
    let kept = |_, _| Goal::none().and("≤ half of those in use, or 5", new.iter().all(few));
    let name = "empty slabs 1 s after the load";
    push(|c| c.idle_empty, name, "slabs", "", &kept);
    if old.iter().chain(new).all(|c| c.step_ns.is_some()) {
        let time = |c: &Counts| c.step_ns.unwrap_or(0.0);
        let goal = |old, new| Goal::none().no_dearer(old, new);
        push(time, "a step", "ns", STEP_TIME, &goal);
    }
}

/// Waits for the list lock, if two threads play the 64 CPUs.
fn waits(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let name = "64 virtual CPUs on two threads";
    let Some(rounds) = rounds_of(bench, name, simulated::run_on_two, rows)? else {
        return Ok(());
    };
    let waits = |rounds: &Rounds| {
        let known: Option<Vec<_>> = rounds.iter().map(|c| c.list_lock_wait).collect();
        known.map(Sample::of)
    };
    let time = |rounds: &Rounds| Sample::of_each(rounds, |c| c.step_ns.unwrap_or(0.0));
    let old = &rounds[0];
    for ((what, _), new) in WAYS.iter().zip(&rounds).skip(1) {
        if let (Some(old), Some(new)) = (waits(old), waits(new)) {
            let name = format!("{name}, {what}: list lock waited for");
            let row = Row::new(1, name, UNIT, Some(old), new, &Goal::none());
            rows.push(row.reported(LOCK_TIME));
        }
        let goal = Goal::none().no_dearer(time(old), time(new));
        let name = format!("{name}, {what}: a step");
        let row = Row::new(1, name, "ns", Some(time(old)), time(new), &goal);
        rows.push(row.reported(STEP_TIME));
    }
    Ok(())
}
