//! The capacity question of seed 4: how many objects should a sheaf hold? Compares fixed capacities
//! with an adaptive capacity between a minimum and a maximum.
//!
//! Each competitor has its own simulated machine. One thread plays all CPUs in turn, in virtual
//! time. Hence the time of a step is the time of the allocator's own code; no CPU waits for a lock.
//!
//! | load | measurement |
//! |---|---|
//! | producers and consumers, maple tree | time per object or per step |
//! | mixed | average bytes that wait in sheaves |
//!
//! The best fixed capacity is the one with the smallest product of times over the first two loads.
//! All competitors play these two loads in turn.

mod mixed;
mod world;

use super::{Row, Way};
use crate::bench::Bench;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::Pinned;
use crate::measure::Sample;
use crate::output::Chart;

use mixed::Mixed;
use world::{Load, Play, World};

/// Competitors: name and settings. The last competitor adapts.
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
/// Largest ratio of the adaptive competitor's time to the best fixed capacity's time.
const SLOWER: f64 = 1.05;

/// Largest ratio of the adaptive competitor's waiting bytes to the best fixed capacity's, by the
/// number of CPUs.
fn share(cpus: usize) -> f64 {
    if cpus >= 8 { 0.5 } else { 0.6 }
}

/// What a competitor runs.
fn way(number: usize) -> Way {
    let (name, settings) = WAYS[number];
    Way::new(format!("sheaves of {name}"), "the load", settings)
}

/// Measures machines of several sizes.
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
        let row = Row::new(4, name, "ns", Some(old), new, &goal).by_rounds(ratios);
        rows.push(row.ways(&way(best), &way(ADAPTIVE)));
    }
    let one = |value: f64| Sample::of(vec![value]);
    let (old, new) = (mixed[best], mixed[ADAPTIVE]);
    let name = format!("{cpus} virtual CPUs, capacity 4 to 250, mixed load");
    let (before, after) = (one(old.nanoseconds), one(new.nanoseconds));
    let row = Row::new(4, &name, "ns", Some(before), after, &Goal::none());
    rows.push(row.ways(&way(best), &way(ADAPTIVE)));
    let limit = share(cpus);
    let goal = Goal::none().and(
        format!("≤ {:.0} % of {}'s", 100.0 * limit, WAYS[best].0),
        new.kib <= limit * old.kib,
    );
    let name = format!("{name}: in sheaves");
    let (before, after) = (one(old.kib), one(new.kib));
    let row = Row::new(4, name, "KiB", Some(before), after, &goal);
    rows.push(row.ways(&way(best), &way(ADAPTIVE)));
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

/// Nanoseconds per step of a load, for each competitor, in each round.
///
/// The memory position of a simulated machine changes its speed by up to a fifth. So a full run has
/// as many sets of machines as competitors. The creation order differs between the sets, so that
/// every competitor has had every position.
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

/// The rounds on one set of machines.
fn rounds_of(
    bench: &Bench,
    cpus: usize,
    rounds: usize,
    plays: &mut [Play<'_>],
) -> Result<[Vec<f64>; WAYS.len()], Failure> {
    let mut plays = plays.iter_mut();
    let mut next = || plays.next().ok_or(Failure::NoMemory("for a competitor"));
    let steps = bench.size.pick(200, 40_000, 200_000) / cpus;
    // After the warm-up, sheaves have grown and barns have reached their steady fill.
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
