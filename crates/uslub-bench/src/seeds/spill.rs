//! Seed 1: surplus objects of a refill stay in the CPU's sheaves, and empty slabs are kept by
//! demand.
//!
//! The thread proposed a spill and reported its drawbacks. The rows first show the spill against no
//! spill, then each cure and each other idea of the thread, on and off. The file `ideas` has all
//! competitors.

mod ideas;
pub(super) mod maple;
mod real;
mod simulated;
mod threshold;

use super::{Row, Section};
use crate::bench::Bench;
use crate::error::Failure;
use crate::goal::Goal;
use crate::measure::Sample;
use crate::output::{Chart, Words};

use ideas::{CURED, IDEAS, Idea, SPILL};
use maple::Counts;

/// Required change of list locks through spilling, in per cent.
const LOCK_CUT: f64 = -25.0;
/// Least ratio of slabs taken and returned that shows the drawback of a spill.
const DRAWBACK: f64 = 3.0;
/// Largest ratio of slabs taken and returned, with the reserve to without.
const CHURN: f64 = 1.2;
/// Largest ratio of peak slab memory, with the reserve to without. The reserve holds at most half
/// as many slabs as were in use.
const PEAK: f64 = 1.5;
/// The name of the real machine.
const REAL: &str = "2 CPUs";
/// Unit of the counts.
const UNIT: &str = "in 1 M steps";
/// What the thread reported of the list lock, and of an operation's time.
const LOCK_TIME: &str = "7.85 → 3.5 % of the CPU time";
const STEP_TIME: &str = "−2 … −5 %";

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
    charts.extend(machine(bench, REAL, real::run, &mut rows)?);
    let name = format!("{} virtual CPUs", simulated::CPUS);
    charts.extend(machine(bench, &name, simulated::run, &mut rows)?);
    waits(bench, &mut rows)?;
    threshold::run(bench, &mut rows)?;
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
                   steps. The 48 virtual CPUs (a quarter of the thread's machine) are played in turn by one thread in virtual time, so that every run counts the \
                   same; their callbacks come evenly. Waiting for the list lock, its share of the time and a step's time come from two threads that \
                   play half of them each. The share is how often a step finds that the other thread holds the lock."
            .to_owned(),
        own: Some(own),
        rows,
        charts,
    })
}

/// The results of one competitor's rounds.
type Rounds = Vec<Counts>;
/// A function that measures all competitors in turn.
type Measure = fn(&Bench) -> Result<Vec<Rounds>, Failure>;

/// The rounds of all competitors. If the allocator lacks a feature, adds a row with the reason.
fn rounds_of(
    bench: &Bench,
    name: &str,
    measure: Measure,
    rows: &mut Vec<Row>,
) -> Result<Option<Vec<Rounds>>, Failure> {
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
    let Some(all) = rounds_of(bench, name, measure, rows)? else {
        return Ok(None);
    };
    for way in 1..all.len() {
        push_rows(rows, name, way, [&all[IDEAS[way].against], &all[way]]);
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
    for (idea, rounds) in IDEAS.iter().zip(&all).take(SHOWN) {
        chart = chart.with(idea.name, heights(rounds));
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

/// Competitors in a chart: without spill, with it, and both with a reserve.
const SHOWN: usize = 4;

/// The rows of one competitor, compared with another one.
fn push_rows(rows: &mut Vec<Row>, machine: &str, way: usize, [old, new]: [&Rounds; 2]) {
    let Idea {
        name: what,
        against,
        reported,
        ..
    } = &IDEAS[way];
    let ways = [ideas::way(*against), ideas::way(way)];
    let sample = |rounds: &Rounds, part: fn(&Counts) -> f64| Sample::of_each(rounds, part);
    let mut push = |part: fn(&Counts) -> f64,
                    name: &str,
                    unit,
                    said: &str,
                    goal: &dyn Fn(Sample, Sample) -> Goal| {
        let (old, new) = (sample(old, part), sample(new, part));
        let name = format!("{machine}, {what}: {name}");
        let row = Row::new(1, name, unit, Some(old), new, &goal(old, new));
        rows.push(row.reported(said).ways(&ways[0], &ways[1]));
    };
    let none = |_: Sample, _: Sample| Goal::none();
    let is_main = way < ideas::MAIN;
    let said = |of_spill: &'static str| if is_main { of_spill } else { *reported };
    if old.iter().chain(new).all(|c| c.list_lock.is_some()) {
        let locks = |c: &Counts| c.list_lock.unwrap_or(0.0);
        let cut = |old, new| match is_main {
            true => Goal::none().cut(old, new, LOCK_CUT),
            false => Goal::none(),
        };
        push(locks, "list lock taken", UNIT, said(LOCK_TIME), &cut);
    }
    let slow = |c: &Counts| c.slow_frees;
    push(slow, "objects freed slowly", UNIT, said("× 2"), &none);
    let name = "slab updates by frees";
    push(|c| c.updates, name, UNIT, said("× 2"), &none);
    let churn = |old: Sample, new: Sample| match way {
        // The drawback must show before a cure means anything.
        SPILL if machine != REAL => Goal::none().and(
            format!("≥ × {DRAWBACK}: the drawback"),
            new.median >= DRAWBACK * old.median,
        ),
        CURED => Goal::none().and(format!("≤ × {CHURN}"), new.median <= CHURN * old.median),
        _ => Goal::none(),
    };
    let name = "slabs taken and returned";
    push(Counts::churn, name, UNIT, said("× 4"), &churn);
    let name = "main sheaves that the barn could not replace";
    push(|c| c.refills, name, UNIT, "", &none);
    if !is_main {
        return;
    }
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

/// Waits for the list lock and its share of the time, if two threads play the virtual CPUs.
fn waits(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let machine = format!("{} virtual CPUs on two threads", simulated::CPUS);
    let Some(all) = rounds_of(bench, &machine, simulated::run_on_two, rows)? else {
        return Ok(());
    };
    let old = &all[0];
    for (&way, new) in ideas::ON_TWO.iter().zip(&all).skip(1) {
        let what = IDEAS[way].name;
        let ways = [ideas::way(0), ideas::way(way)];
        let mut push = |name: &str, unit, said: &str, part: fn(&Counts) -> f64, judged: bool| {
            let (old, new) = (Sample::of_each(old, part), Sample::of_each(new, part));
            let goal = match judged {
                true => Goal::none().no_dearer(old, new),
                false => Goal::none(),
            };
            let name = format!("{machine}, {what}: {name}");
            let row = Row::new(1, name, unit, Some(old), new, &goal);
            rows.push(row.reported(said).ways(&ways[0], &ways[1]));
        };
        let waited = |c: &Counts| c.list_lock_wait.unwrap_or(0.0);
        push("list lock waited for", UNIT, LOCK_TIME, waited, false);
        let held = |c: &Counts| c.lock_held.unwrap_or(0.0);
        push("list lock held", "% of the time", LOCK_TIME, held, false);
        let time = |c: &Counts| c.step_ns.unwrap_or(0.0);
        push("a step", "ns", STEP_TIME, time, way < ideas::MAIN);
    }
    Ok(())
}
