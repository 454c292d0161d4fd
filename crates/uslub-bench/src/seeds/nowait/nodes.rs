//! Seed 4 on a simulated machine with eight memory nodes. Eight producers each have a consumer on
//! the next node.
//!
//! One thread plays all producers in turn, another thread plays all consumers. The objects that a
//! consumer frees belong to another node, so they cannot stay in the consumer's sheaves.

use uslub_core::Gfp;
use uslub_sim::{Clock, Machine, Sim, cpu};

use crate::bench::Bench;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::{self, Pinned};
use crate::measure::Sample;
use crate::output::Chart;
use crate::ring::Ring;
use crate::seeds::Row;
use crate::strategy::Strategy;
use crate::threads::joined;

use super::flow::{self, DEPTH, Direct, Elements, Flow};
use super::{NEW_GATE, OLD_GATE, SIZE};

/// Number of nodes, of producers and of consumers.
const NODES: usize = 8;
/// The nodes with memory, on the machine where the other nodes have none.
const FEW: [usize; 2] = [0, 4];
/// Largest ratio of cost with few memory nodes to cost with all.
const FEW_FACTOR: f64 = 1.3;

/// Measures the machine.
pub fn run(bench: &Bench, rows: &mut Vec<Row>) -> Result<Option<Chart>, Failure> {
    bench.says("eight nodes");
    let all = || Machine::new(2 * NODES, NODES);
    let few = || all().with_memory_on(&FEW);
    let slubs = [all(), few()]
        .map(|machine| uslub_sim::allocator(Sim::new(machine, Clock::real()), Default::default()));
    let [all, few] = [&slubs[0], &slubs[1]];
    let gates = |slub| {
        Ok::<_, Failure>([
            Strategy::new(slub, SIZE, &[OLD_GATE])?,
            Strategy::new(slub, SIZE, &[NEW_GATE])?,
            Strategy::new(slub, SIZE, &[NEW_GATE])?,
        ])
    };
    let [all_old, all_new, all_kernel] = gates(all)?;
    let [few_old, few_new, few_kernel] = gates(few)?;
    let objects =
        bench.size.pick(16_384, 200_000, 1_000_000) / (flow::BATCH * NODES) * flow::BATCH * NODES;
    let few_bare = Strategy::new(few, SIZE, &[NEW_GATE, "memoryless_barns=0"])?;
    let round = |strategy: &Strategy<'_, Sim>, gfp| eight(strategy, gfp, objects);
    let rounds = bench.rounds_of(
        1,
        [
            &mut || round(&all_old, Gfp::NOWAIT),
            &mut || round(&all_new, Gfp::NOWAIT),
            &mut || round(&all_kernel, Gfp::KERNEL),
            &mut || round(&few_old, Gfp::NOWAIT),
            &mut || round(&few_new, Gfp::NOWAIT),
            &mut || round(&few_kernel, Gfp::KERNEL),
            &mut || round(&few_bare, Gfp::NOWAIT),
        ],
    )?;
    for strategy in [
        &all_old,
        &all_new,
        &all_kernel,
        &few_old,
        &few_new,
        &few_kernel,
        &few_bare,
    ] {
        strategy.check_at_rest()?;
    }
    let [
        all_old,
        all_new,
        all_kernel,
        few_old,
        few_new,
        few_kernel,
        few_bare,
    ] = &rounds;
    for (memory, old, new, kernel) in [
        ("all own memory", all_old, all_new, all_kernel),
        ("2 own memory", few_old, few_new, few_kernel),
    ] {
        push_rows(rows, memory, old, new, kernel);
    }
    let (few, all) = (rate(few_new), rate(all_new));
    let goal = Goal::none().and(
        format!("at most {FEW_FACTOR} × slower"),
        few.median * FEW_FACTOR >= all.median,
    );
    let name = "8 nodes, new gate: 2 own memory (new) against all (old)";
    rows.push(Row::new(4, name, "M objects/s", Some(all), few, &goal));
    let name = "8 nodes, 2 own memory: barns on the others (new) or not (old)";
    let bare = rate(few_bare);
    let row = Row::new(4, name, "M objects/s", Some(bare), few, &Goal::none());
    rows.push(row.reported("13 M → 24 M IOPS with the series for nodes without memory"));
    let names = ["all own memory", "2 own memory"]
        .map(str::to_owned)
        .to_vec();
    let bars = |all: &[Flow], few: &[Flow]| vec![rate(all).median, rate(few).median];
    Ok(Some(
        Chart::bars("Eight pairs on eight simulated nodes", "M objects/s", names)
            .with("GFP_NOWAIT, old gate", bars(all_old, few_old))
            .with("GFP_NOWAIT, new gate", bars(all_new, few_new))
            .with("GFP_KERNEL", bars(all_kernel, few_kernel)),
    ))
}

fn rate(rounds: &[Flow]) -> Sample {
    Sample::of_each(rounds, |flow| flow.rate)
}

fn push_rows(rows: &mut Vec<Row>, memory: &str, old: &[Flow], new: &[Flow], kernel: &[Flow]) {
    let of_kernel = rate(kernel).median;
    let goal = Goal::none().and(
        format!("≥ 95 % of GFP_KERNEL's {of_kernel:.1}"),
        rate(new).median >= 0.95 * of_kernel,
    );
    let name = format!("8 nodes, {memory}, rate");
    let row = Row::new(4, name, "M objects/s", Some(rate(old)), rate(new), &goal);
    rows.push(row.reported("36 M → 13 M IOPS with the gate, 2 of 8 nodes with memory"));
    let share = |rounds: &[Flow]| Sample::of_each(rounds, |flow| flow.from_sheaves);
    let goal = Goal::none().at_least(share(new), 99.0, "%");
    let name = format!("8 nodes, {memory}, from sheaves");
    rows.push(Row::new(4, name, "%", Some(share(old)), share(new), &goal));
    let locks = |rounds: &[Flow]| {
        let known: Option<Vec<_>> = rounds.iter().map(|flow| flow.list_locks).collect();
        known.map(Sample::of)
    };
    if let (Some(old), Some(new)) = (locks(old), locks(new)) {
        let name = format!("8 nodes, {memory}, list lock");
        rows.push(Row::new(
            4,
            name,
            "in 1000 objects",
            Some(old),
            new,
            &Goal::none(),
        ));
    }
}

/// A round of eight flows.
fn eight(strategy: &Strategy<'_, Sim>, gfp: Gfp, objects: usize) -> Result<Flow, Failure> {
    for node in 0..NODES {
        cpu::on(node);
        flow::warm(strategy)?;
    }
    let direct = Direct { strategy, gfp };
    let elements: &dyn Elements = &direct;
    let rings: Vec<_> = (0..NODES).map(|_| Ring::new(DEPTH)).collect();
    let rings: Vec<_> = rings.iter().map(|ring| (ring, elements)).collect();
    let cpus = linux::two_cpus();
    flow::measured(strategy, objects, || {
        std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                let pinned = Pinned::to(cpus[1]);
                // Producer p is on node p, its consumer on the next node.
                let came = flow::consume(&rings, objects, |p| cpu::on(NODES + (p + 1) % NODES));
                pinned.map(|_| came)
            });
            let pinned = Pinned::to(cpus[0]);
            let enough = flow::produce(&rings, objects, cpu::on);
            let came = joined(consumer);
            drop(pinned?);
            if enough {
                came
            } else {
                Err(Failure::NoMemory("for a batch"))
            }
        })
    })
}
