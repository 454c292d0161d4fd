//! Seed 4's other question: how many objects should a sheaf hold? Fixed capacities against one
//! between a minimum and a maximum.
//!
//! Each competitor has a simulated machine of its own, on which one thread plays all CPUs in turn,
//! in virtual time. So the time of a step is what the allocator's own code takes; nobody waits for
//! a lock.
//!
//! | load | what is compared |
//! |---|---|
//! | producers and consumers, maple tree | time of an object or a step |
//! | mixed | bytes that wait in sheaves on average |
//!
//! The best fixed capacity is the one with the least product of times over the first two loads,
//! which are played in turns.

mod mixed;
mod world;

use crate::bench::Bench;
use crate::chart::Chart;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::Pinned;
use crate::measure::Sample;
use crate::row::Row;

use mixed::Mixed;
use world::{Load, Play, World};

/// Competitors: what they are called, and their settings. The last one adapts.
const WAYS: [(&str, &[&str]); 7] = [
    ("4", &["sheaf_capacity=4", "max_full_sheaves=10"]),
    ("12", &["sheaf_capacity=12", "max_full_sheaves=10"]),
    ("28", &["sheaf_capacity=28", "max_full_sheaves=10"]),
    ("60", &["sheaf_capacity=60", "max_full_sheaves=10"]),
    ("124", &["sheaf_capacity=124", "max_full_sheaves=10"]),
    ("250", &["sheaf_capacity=250", "max_full_sheaves=20"]),
    ("4 to 250", &["sheaf_capacity=4", "sheaf_capacity_max=250"]),
];
const ADAPTIVE: usize = WAYS.len() - 1;
/// How much slower than the best fixed capacity the adaptive one may be.
const SLOWER: f64 = 1.05;

/// Bytes that may wait, as a part of the best fixed capacity's, by the number of CPUs.
fn share(cpus: usize) -> f64 {
    if cpus >= 8 { 0.5 } else { 0.6 }
}

/// Measures it on machines of several sizes.
pub fn run(bench: &Bench, rows: &mut Vec<Row>) -> Result<Vec<Chart>, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let machines: &[usize] = bench.size.pick(&[2], &[2, 8, 16], &[2, 8, 16, 64]);
    let mut charts = Vec::new();
    for &cpus in machines {
        charts.extend(machine(bench, cpus, rows)?);
    }
    Ok(charts)
}

fn machine(bench: &Bench, cpus: usize, rows: &mut Vec<Row>) -> Result<[Chart; 2], Failure> {
    bench.says(&format!("sheaf capacities, {cpus} virtual CPUs"));
    let pairs = times(bench, cpus, Load::Pairs)?;
    let maple = times(bench, cpus, Load::Maple)?;
    let mut mixed = [Mixed::default(); WAYS.len()];
    for (mixed, (_, settings)) in mixed.iter_mut().zip(WAYS) {
        *mixed = mixed::play(bench, cpus, settings)?;
    }
    let median = |rounds: &[f64]| Sample::of(rounds.to_vec()).median;
    let product = |way: usize| median(&pairs[way]) * median(&maple[way]);
    let best = (0..ADAPTIVE).min_by(|&a, &b| product(a).total_cmp(&product(b)));
    let best = best.unwrap_or(0);
    for (name, load) in [("producers and consumers", &pairs), ("maple tree", &maple)] {
        let ratios = Sample::of_ratios(&load[ADAPTIVE], &load[best]);
        let goal = Goal::none().and(
            format!("within 5 % of the best fixed capacity, {}", WAYS[best].0),
            ratios.median <= SLOWER,
        );
        let [old, new] = [best, ADAPTIVE].map(|way| Sample::of(load[way].clone()));
        let name = format!("{cpus} virtual CPUs, capacity 4 to 250, {name}");
        rows.push(Row::new(4, name, "ns", Some(old), new, &goal).by_rounds(ratios));
    }
    let one = |value: f64| Sample::of(vec![value]);
    let (old, new) = (mixed[best], mixed[ADAPTIVE]);
    let name = format!("{cpus} virtual CPUs, capacity 4 to 250, mixed load");
    let (before, after) = (one(old.nanoseconds), one(new.nanoseconds));
    rows.push(Row::new(4, &name, "ns", Some(before), after, &Goal::none()));
    let limit = share(cpus);
    let goal = Goal::none().and(
        format!("≤ {:.0} % of {}'s", 100.0 * limit, WAYS[best].0),
        new.kib <= limit * old.kib,
    );
    let name = format!("{name}: in sheaves");
    rows.push(Row::new(
        4,
        name,
        "KiB",
        Some(one(old.kib)),
        one(new.kib),
        &goal,
    ));
    let medians = |load: &[Vec<f64>]| load.iter().map(|rounds| median(rounds)).collect::<Vec<_>>();
    let names = WAYS.map(|(name, _)| name.to_owned()).to_vec();
    let times = Chart::bars(
        format!("Sheaf capacities, {cpus} virtual CPUs"),
        "ns",
        names.clone(),
    )
    .with("an object from a producer to a consumer", medians(&pairs))
    .with("a step of a maple tree", medians(&maple))
    .with(
        "an object of the mixed load",
        mixed.map(|m| m.nanoseconds).to_vec(),
    );
    let bytes = Chart::bars(
        format!("In sheaves on the mixed load, {cpus} virtual CPUs"),
        "KiB",
        names,
    )
    .with("objects that wait", mixed.map(|m| m.kib).to_vec());
    Ok([times, bytes])
}

/// Nanoseconds of a step of a load, for each competitor, in each round.
///
/// Where a machine lies in memory makes the same competitor up to a fifth slower on it than on
/// another. So in a full run there are as many sets of machines as competitors, made in an order of
/// their own each: everybody has had each place.
fn times(bench: &Bench, cpus: usize, load: Load) -> Result<[Vec<f64>; WAYS.len()], Failure> {
    let sets = bench.size.pick(1, 1, WAYS.len());
    let mut all = [const { Vec::new() }; WAYS.len()];
    for set in 0..sets {
        let mut worlds = [const { None }; WAYS.len()];
        for place in 0..WAYS.len() {
            worlds[(place + set) % WAYS.len()] = Some(World::new(cpus));
        }
        let mut plays = Vec::new();
        for (world, (_, settings)) in worlds.iter().flatten().zip(WAYS) {
            plays.push(world.play(settings, load)?);
        }
        let rounds = bench.rounds().div_ceil(sets);
        for (all, times) in all
            .iter_mut()
            .zip(rounds_of(bench, cpus, rounds, &mut plays)?)
        {
            all.extend(times);
        }
    }
    Ok(all)
}

/// The same on one set of machines.
fn rounds_of(
    bench: &Bench,
    cpus: usize,
    rounds: usize,
    plays: &mut [Play<'_>],
) -> Result<[Vec<f64>; WAYS.len()], Failure> {
    let mut plays = plays.iter_mut();
    let mut next = || plays.next().ok_or(Failure::NoMemory("for a competitor"));
    let steps = bench.size.pick(200, 40_000, 200_000) / cpus;
    // Sheaves must have grown, and barns be as full as they stay.
    let warm_up = bench.size.pick(1, 5, 4);
    let [a, b, c, d, e, f, g] = [
        next()?,
        next()?,
        next()?,
        next()?,
        next()?,
        next()?,
        next()?,
    ];
    bench.so_many_rounds_of(
        rounds,
        warm_up,
        [
            &mut || a.round(steps),
            &mut || b.round(steps),
            &mut || c.round(steps),
            &mut || d.round(steps),
            &mut || e.round(steps),
            &mut || f.round(steps),
            &mut || g.round(steps),
        ],
    )
}
