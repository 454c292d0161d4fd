//! Seed 4: a producer that may not request memory from the system, and a consumer on another CPU.
//!
//! | competitor | refill of an empty sheaf |
//! |---|---|
//! | old gate, `GFP_NOWAIT` | never: each allocation goes to a slab |
//! | new gate, `GFP_NOWAIT` | by every caller that may wait for a lock |
//! | `GFP_KERNEL` | always |

mod flow;
mod nodes;

use std::cell::RefCell;

use uslub_core::Gfp;
use uslub_core::mempool::{Mempool, SlabSource};

use crate::bench::Bench;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::{self, Slub};
use crate::output::{Chart, Words};
use crate::ring::Ring;
use crate::strategy::Strategy;

use super::{Row, Section, Way, Witness, capacity};

use flow::{Direct, Elements, Flow, Pooled, rate};

/// Bytes of an object.
const SIZE: usize = 256;
/// Elements in the pool's reserve, as in a bio's pool.
const RESERVE: usize = 2;
/// Objects in flight, and the way to allocate them.
const IN_FLIGHT: [(usize, Through); 3] = [
    (flow::DEPTH, Through::Directly),
    (flow::DEEP, Through::Directly),
    (flow::DEEP, Through::Pool),
];
const OLD_GATE: &str = "refill_needs_blocking=1";
const NEW_GATE: &str = "refill_needs_blocking=0";

/// Measures the seed.
pub fn run(bench: &Bench) -> Result<Section, Failure> {
    let mut own = Words::new(&["kernel", "ublk null target, 16 jobs"]);
    for (kernel, result) in [
        ("6.19, before sheaves", "≈ 36 M IOPS"),
        (
            "7.0-rc, sheaves refilled for blocking callers only",
            "≈ 13 M IOPS (−64 %)",
        ),
    ] {
        own.push(&[kernel.to_owned(), result.to_owned()]);
    }
    let mut rows = Vec::new();
    let real = one_node(bench, &mut rows)?;
    let mut charts = vec![real];
    charts.extend(nodes::run(bench, &mut rows)?);
    charts.extend(capacity::run(bench, &mut rows)?);
    Ok(Section {
        name: "Seed 4",
        title: "Allocation that may not block, across CPUs",
        source: Some(
            "[Regression] mm:slab/sheaves: severe performance regression in cross-CPU slab allocation (February 2026)",
        ),
        about: "One CPU allocates, another frees: the way of every I/O request. A mempool asks first without permission to block. The kernel \
                refilled an empty sheaf only for those who may block, so such a caller went to the slabs, under a lock, for every \
                single object. What counts is whether the caller may wait for a lock's short hold; then it gets a full sheaf.",
        workload: format!(
            "A producer allocates {SIZE}-byte objects and puts them into a ring (depth {} or {}, batches of {}); a consumer on another \
             CPU frees them. Half of the deep ring stays filled until the end, as requests stay \
             with a device. With few objects in flight the barn serves nearly all allocations. \
             Directly and through a mempool of {RESERVE}; then eight such pairs on a simulated \
             machine of eight memory nodes. Last, sheaves of fixed capacities against one that \
             grows and shrinks, on simulated machines: the time is the allocator's own work, without waiting. In a full run there are \
             seven sets of machines, on which everybody has each place once; the change is the median of the rounds' own.",
            flow::DEPTH,
            flow::DEEP,
            flow::BATCH
        ),
        own: Some(own),
        rows,
        charts,
    })
}

/// Producer and consumer on the real machine.
fn one_node(bench: &Bench, rows: &mut Vec<Row>) -> Result<Chart, Failure> {
    let slub = linux::steady()?;
    let objects = bench.size.pick(4_000, 400_000, 2_000_000) / flow::BATCH * flow::BATCH;
    let mut bars = [const { Vec::new() }; 3];
    for (depth, through) in IN_FLIGHT {
        let what = format!("{}, {depth} in flight", through.name());
        let objects = if depth == flow::DEEP {
            objects / 2
        } else {
            objects
        };
        bench.says(&what);
        let mut number = 0;
        let mut round = |gate, gfp| {
            Strategy::change_places(slub, number / 3)?;
            number += 1;
            one(slub, (through, depth), gate, gfp, objects)
        };
        let round = RefCell::new(&mut round);
        let rounds = bench.rounds_of(
            2,
            [
                &mut || round.borrow_mut()(OLD_GATE, Gfp::NOWAIT),
                &mut || round.borrow_mut()(NEW_GATE, Gfp::NOWAIT),
                &mut || round.borrow_mut()(NEW_GATE, Gfp::KERNEL),
            ],
        )?;
        push_rows(rows, &what, depth, &rounds);
        for (bar, rounds) in bars.iter_mut().zip(&rounds) {
            bar.push(rate(rounds).median);
        }
    }
    let [of_old, of_new, of_kernel] = bars;
    let names = IN_FLIGHT.map(|(depth, through)| match through {
        Through::Directly => format!("{depth} in flight"),
        Through::Pool => format!("{depth}, mempool"),
    });
    Ok(Chart::bars(
        "Producer and consumer on two CPUs of one node",
        "M objects/s",
        names.to_vec(),
    )
    .with("GFP_NOWAIT, old gate", of_old)
    .with("GFP_NOWAIT, new gate", of_new)
    .with("GFP_KERNEL", of_kernel))
}

/// What both gates run.
fn gates(calls: &'static str) -> [Way; 2] {
    [
        Way::new("refill for callers that may block", calls, &[OLD_GATE]),
        Way::new("for those that may wait for a lock", calls, &[NEW_GATE]),
    ]
}

/// The way in which a producer allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    Directly,
    Pool,
}

impl Through {
    fn name(self) -> &'static str {
        match self {
            Through::Directly => "directly",
            Through::Pool => "through a mempool",
        }
    }
}

/// One round on a new cache.
fn one(
    slub: &Slub,
    (through, depth): (Through, usize),
    gate: &str,
    gfp: Gfp,
    objects: usize,
) -> Result<Flow, Failure> {
    let strategy = Strategy::new(slub, SIZE, &[gate])?;
    flow::warm(&strategy, 2 * depth)?;
    let ring = Ring::new(depth);
    let amount = (objects, flow::in_flight(depth));
    let run = |elements: &dyn Elements| {
        flow::run_pinned(&strategy, &[(&ring, elements)], amount, |_| (), |_| ())
    };
    let flow = if through == Through::Directly {
        let strategy = &strategy;
        run(&Direct { strategy, gfp })?
    } else {
        let source = SlabSource::new(slub, strategy.cache)
            .ok_or_else(|| Failure::Wrong("a cache with a constructor has no pool".to_owned()))?;
        let pool =
            Mempool::new(slub, RESERVE, source).map_err(|_| Failure::NoMemory("for a mempool"))?;
        run(&Pooled { pool: &pool, gfp })?
    };
    strategy.check_at_rest()?;
    Ok(flow)
}

/// The rows of one way of allocation: rate, share of sheaves, list locks.
fn push_rows(rows: &mut Vec<Row>, through: &str, depth: usize, rounds: &[Vec<Flow>; 3]) {
    let what = format!("GFP_NOWAIT {through}");
    let reported = "36 M → 13 M IOPS with the gate";
    let ways = gates("a ring between two CPUs");
    let rounds = rounds.each_ref().map(Vec::as_slice);
    let locks = flow::push_rows(rows, &what, reported, &ways, rounds);
    if let Some(row) = rows.iter_mut().rfind(|row| row.figures.witness.is_some())
        && (depth == flow::DEPTH
            || !row
                .figures
                .witness
                .as_ref()
                .is_some_and(Witness::tells_apart))
    {
        row.note = "few objects in flight: the barn hides the gate".to_owned();
    }
    let (name, unit) = (format!("{what}, list lock"), "in 1000 objects");
    rows.push(match locks {
        Some([old, new]) => {
            // A refill takes many objects, but what a deep ring holds must come from slabs.
            let most = if depth == flow::DEPTH { 1.0 } else { 60.0 };
            let goal = Goal::none().at_most(new, most, unit);
            Row::new(4, name, unit, Some(old), new, &goal)
                .ways(&ways[0], &ways[1])
                .reported("47 % of the CPU time on it with the gate")
        }
        None => {
            let why = Failure::Unavailable("counter 'list_lock'".into());
            Row::without(4, name, unit, &why)
        }
    });
}
