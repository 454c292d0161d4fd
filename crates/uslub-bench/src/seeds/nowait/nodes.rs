//! Seed 4 on a simulated machine with eight memory nodes. Eight producers each have a consumer on
//! the next node.
//!
//! One thread plays all producers in turn, another thread plays all consumers. The objects that a
//! consumer frees belong to another node, so they cannot stay in the consumer's sheaves.

use uslub_core::Gfp;
use uslub_core::mempool::{Mempool, SlabSource};
use uslub_sim::{Clock, Machine, Sim, cpu};

use crate::bench::Bench;
use crate::error::Failure;
use crate::goal::Goal;
use crate::output::Chart;
use crate::ring::Ring;
use crate::seeds::{Row, Way};
use crate::strategy::Strategy;

use super::flow::{self, DEPTH, Direct, Elements, Flow, Pooled, rate};
use super::{NEW_GATE, OLD_GATE, RESERVE, SIZE, gates};

/// Number of nodes, of producers and of consumers.
const NODES: usize = 8;
/// The nodes with memory, on the machine where the other nodes have none.
const FEW: [usize; 2] = [0, 4];
/// The setting of nodes without memory that have no barn.
const BARE: &str = "memoryless_barns=0";
/// Largest ratio of cost with few memory nodes to cost with all.
const FEW_FACTOR: f64 = 1.3;

/// Measures the machine.
pub fn run(bench: &Bench, rows: &mut Vec<Row>) -> Result<Option<Chart>, Failure> {
    bench.says("eight nodes");
    let rounds = rounds(bench)?;
    let [a, b, c, few_old, few_new, few_kernel, few_bare, d, e, f] =
        rounds.each_ref().map(Vec::as_slice);
    let (all, few, pooled) = ([a, b, c], [few_old, few_new, few_kernel], [d, e, f]);
    for (memory, flows) in [
        ("all own memory", all),
        ("2 own memory", few),
        ("2 own memory, mempool", pooled),
    ] {
        let what = format!("8 nodes, {memory}");
        let reported = "36 M → 13 M IOPS with the gate, 2 of 8 nodes with memory";
        let ways = gates("eight rings between nodes");
        if let Some([old, new]) = flow::push_rows(rows, &what, reported, &ways, flows) {
            let (name, unit) = (format!("{what}, list lock"), "in 1000 objects");
            let row = Row::new(4, name, unit, Some(old), new, &Goal::none());
            rows.push(row.ways(&ways[0], &ways[1]));
        }
    }
    let [on_all, on_few, bare] = [all[1], few_new, few_bare].map(rate);
    let goal = Goal::none().and(
        format!("at most {FEW_FACTOR} × slower"),
        on_few.median * FEW_FACTOR >= on_all.median,
    );
    let name = "8 nodes, new gate: 2 own memory (new) against all (old)";
    let unit = "M objects/s";
    let row = Row::new(4, name, unit, Some(on_all), on_few, &goal);
    rows.push(row.ways(
        &Way::new("memory on 8 nodes", "memory on 8 nodes", &[NEW_GATE]),
        &Way::new("memory on 2 nodes", "memory on 2 nodes", &[NEW_GATE]),
    ));
    let name = "8 nodes, 2 own memory: barns on the others (new) or not (old)";
    let row = Row::new(4, name, unit, Some(bare), on_few, &Goal::none());
    let way = |name, barns| Way::new(name, "memory on 2 nodes", &[NEW_GATE, barns]);
    let row = row.ways(
        &way("no barn without memory", BARE),
        &way("a barn on each node", "memoryless_barns=1"),
    );
    rows.push(row.reported("24 M of 34 M IOPS recovered in 7.1"));
    let names = ["all own memory", "2 own memory"].map(str::to_owned);
    let mut chart = Chart::bars("Eight pairs on eight simulated nodes", unit, names.to_vec());
    let ways = ["GFP_NOWAIT, old gate", "GFP_NOWAIT, new gate", "GFP_KERNEL"];
    for (way, (all, few)) in ways.into_iter().zip(all.into_iter().zip(few)) {
        chart = chart.with(way, vec![rate(all).median, rate(few).median]);
    }
    Ok(Some(chart))
}

/// The rounds of all competitors: old gate, new gate and `GFP_KERNEL`, first with memory on all
/// nodes, then on few. Last, the new gate with memory on few nodes, whose others have no barn.
fn rounds(bench: &Bench) -> Result<[Vec<Flow>; 10], Failure> {
    let all = || Machine::new(2 * NODES, NODES);
    let few = || all().with_memory_on(&FEW);
    let slubs = [all(), few()]
        .map(|machine| uslub_sim::allocator(Sim::new(machine, Clock::real()), Default::default()));
    let [all, few] = [&slubs[0], &slubs[1]];
    let caches = |slub| {
        Ok::<_, Failure>([
            Strategy::new(slub, SIZE, &[OLD_GATE])?,
            Strategy::new(slub, SIZE, &[NEW_GATE])?,
            Strategy::new(slub, SIZE, &[NEW_GATE])?,
        ])
    };
    let (all, few) = (caches(all)?, caches(few)?);
    let bare = Strategy::new(&slubs[1], SIZE, &[NEW_GATE, BARE])?;
    let objects =
        bench.size.pick(16_384, 200_000, 1_000_000) / (flow::BATCH * NODES) * flow::BATCH * NODES;
    let round = |strategy: &Strategy<'_, Sim>, gfp| eight(strategy, gfp, objects, false);
    let pooled = |strategy: &Strategy<'_, Sim>, gfp| eight(strategy, gfp, objects, true);
    let rounds = bench.rounds_of(
        1,
        [
            &mut || round(&all[0], Gfp::NOWAIT),
            &mut || round(&all[1], Gfp::NOWAIT),
            &mut || round(&all[2], Gfp::KERNEL),
            &mut || round(&few[0], Gfp::NOWAIT),
            &mut || round(&few[1], Gfp::NOWAIT),
            &mut || round(&few[2], Gfp::KERNEL),
            &mut || round(&bare, Gfp::NOWAIT),
            &mut || pooled(&few[0], Gfp::NOWAIT),
            &mut || pooled(&few[1], Gfp::NOWAIT),
            &mut || pooled(&few[2], Gfp::KERNEL),
        ],
    )?;
    for strategy in all.iter().chain(&few).chain([&bare]) {
        strategy.check_at_rest()?;
    }
    Ok(rounds)
}

/// A round of eight flows.
fn eight(
    strategy: &Strategy<'_, Sim>,
    gfp: Gfp,
    objects: usize,
    through_pool: bool,
) -> Result<Flow, Failure> {
    for node in 0..NODES {
        cpu::on(node);
        flow::warm(strategy, 0)?;
    }
    if !through_pool {
        return eight_flows(strategy, &Direct { strategy, gfp }, objects);
    }
    let source = SlabSource::new(strategy.slub, strategy.cache)
        .ok_or_else(|| Failure::Wrong("a cache with a constructor has no pool".to_owned()))?;
    let pool = Mempool::new(strategy.slub, RESERVE, source)
        .map_err(|_| Failure::NoMemory("for a mempool"))?;
    eight_flows(strategy, &Pooled { pool: &pool, gfp }, objects)
}

fn eight_flows(
    strategy: &Strategy<'_, Sim>,
    elements: &dyn Elements,
    objects: usize,
) -> Result<Flow, Failure> {
    let rings: Vec<_> = (0..NODES).map(|_| Ring::new(DEPTH)).collect();
    let rings: Vec<_> = rings.iter().map(|ring| (ring, elements)).collect();
    // Producer p is on node p, its consumer on the next node.
    let at_consumer = |p| cpu::on(NODES + (p + 1) % NODES);
    flow::run_pinned(strategy, &rings, (objects, 0), cpu::on, at_consumer)
}
