//! Seed 0: the freelist of a fresh slab is built only for the objects that remain after a refill.
//!
//! The rows time only the allocation of [bulks from fresh slabs](crate::fresh).

use std::cell::RefCell;

use super::{Row, Section, Way};
use crate::bench::Bench;
use crate::error::Failure;
use crate::fresh::{self, Room};
use crate::goal::Goal;
use crate::kernel::{FRESH, NEWEST};
use crate::linux::{self, Pinned};
use crate::measure::Sample;
use crate::output::{Chart, Words};
use crate::pace;
use crate::strategy::Strategy;

/// The thread's figures for one size, in nanoseconds per object.
struct Reported {
    size: usize,
    /// Before, after, and change in per cent, for ascending and for random order.
    thread: [(f64, f64, f64); 2],
}

const REPORTED: [Reported; 6] = [
    reported(16, (4.85, 3.30, -31.9), (8.77, 3.63, -58.6)),
    reported(32, (6.89, 3.74, -45.7), (11.59, 4.24, -63.4)),
    reported(64, (10.70, 4.60, -57.0), (15.58, 5.32, -65.9)),
    reported(128, (18.69, 6.54, -65.0), (22.13, 7.39, -66.6)),
    reported(256, (22.36, 6.61, -70.5), (27.12, 7.92, -70.8)),
    reported(512, (20.59, 6.90, -66.5), (26.92, 8.28, -69.2)),
];

const fn reported(size: usize, ascending: (f64, f64, f64), random: (f64, f64, f64)) -> Reported {
    Reported {
        size,
        thread: [ascending, random],
    }
}

/// Largest time per object, in nanoseconds.
const LIMIT_NS: f64 = 1.5;

/// Measures the seed.
pub fn run(bench: &Bench) -> Result<Section, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let live = bench.size.pick(1, 32, 256) << 20;
    let mut own = Words::new(&["size / batch", "order", "before", "after", "change"]);
    let mut rows = Vec::new();
    let mut charts = Vec::new();
    for (random, order) in ["ascending", "random"].into_iter().enumerate() {
        let mut lines = [const { Vec::new() }; 3];
        for (known, inside) in REPORTED.iter().zip(FRESH) {
            bench.says(&format!("{} bytes, {order} order", known.size));
            let (before, after, cut) = known.thread[random];
            let [kernel, _] = inside.alloc[random];
            let ([old, new, floor, load], batch) = measure(bench, known.size, random == 1, live)?;
            let goal = Goal::none()
                .cut(old, new, cut)
                .at_most(new, LIMIT_NS, "ns")
                .below_kernel(new, kernel);
            let name = format!("{} bytes, {batch} a bulk, {order} order", known.size);
            let said = format!("{before} → {after} ns, {} %", crate::goal::signed(cut));
            let row = Row::new(0, name, "ns/object", Some(old), new, &goal);
            let note = format!(
                "floor {:.2} ns; {}",
                floor.median,
                pace::where_goals_were_set(new.median, load.median)
            );
            let row = row.reported(&said).kernel(Some(kernel)).note(note);
            let way = |name, deferred| {
                let settings = [fresh::OBJECTS, fresh::order(random == 1), deferred];
                Way::new(name, "bulk allocations from fresh slabs", &settings)
            };
            rows.push(row.ways(
                &way("freelist first", "freelist_deferred=0"),
                &way("deferred", "freelist_deferred=1"),
            ));
            own.push(&[
                format!("{} / {batch}", known.size),
                order.to_owned(),
                format!("{before} ns"),
                format!("{after} ns"),
                format!("{} %", crate::goal::signed(cut)),
            ]);
            for (line, value) in lines.iter_mut().zip([old.median, new.median, kernel]) {
                line.push(value);
            }
        }
        charts.push(chart(order, lines));
    }
    Ok(Section {
        name: "Seed 0",
        title: "Freelist construction deferred",
        source: Some(
            "mm/slub: defer freelist construction until after bulk allocation from a new slab (April 2026)",
        ),
        about: "A slab is a run of pages cut into objects. The old way links all objects of a fresh slab into a list, which \
                writes to every one of them, and then takes them off that list again. When a whole slab is wanted at once, both were for \
                nothing. The new way hands out addresses and writes to no object at all.",
        workload: format!(
            "A private cache; {} MiB of objects live at once, allocated in bulks of one slab each on one CPU. Timed are the \
             bulk allocations only. The counters show that every bulk used up a fresh slab; the pages were there before, and everybody's \
             rounds begin with the processor's caches full of other things. The floor, in the same rounds, writes addresses into the \
             same array, with one compare-and-swap a bulk, and does nothing else. Of everybody's bulks those count during which the core was least shared.",
            live >> 20
        ),
        own: Some(own),
        rows,
        charts,
    })
}

fn chart(order: &str, [old, new, kernel]: [Vec<f64>; 3]) -> Chart {
    let sizes = REPORTED.iter().map(|known| format!("{} B", known.size));
    Chart::bars(
        format!("Bulk allocation from fresh slabs, {order} order"),
        "ns an object",
        sizes.collect(),
    )
    .with("freelist first", old)
    .with("deferred", new)
    .with(NEWEST, kernel)
}

/// Measures one size: the old way, the new way, the floor, a load, and the objects per bulk.
fn measure(
    bench: &Bench,
    size: usize,
    random: bool,
    live: usize,
) -> Result<([Sample; 4], usize), Failure> {
    let slub = linux::steady()?;
    let order = fresh::order(random);
    let old = Strategy::new(slub, size, &[fresh::OBJECTS, order, "freelist_deferred=0"])?;
    let new = Strategy::new(slub, size, &[fresh::OBJECTS, order, "freelist_deferred=1"])?;
    let batch = new.slab_objects();
    let room = RefCell::new(Room::new(live, size, batch));
    let samples = bench.samples_of(
        bench.size.pick(1, 3, 3),
        [
            &mut || Ok(fresh::round(&old, &mut room.borrow_mut(), batch)?.alloc),
            &mut || Ok(fresh::round(&new, &mut room.borrow_mut(), batch)?.alloc),
            &mut || Ok(fresh::least(size, &mut room.borrow_mut(), batch).alloc),
            &mut || Ok(pace::load()),
        ],
    )?;
    old.check_at_rest()?;
    new.check_at_rest()?;
    Ok((samples, batch))
}
