//! Seed 0: the freelist of a fresh slab is built for what is left over only.
//!
//! Objects as many as 256 MiB hold are allocated in bulks of a slab each and live all at once; only that is timed. What was
//! freed went back to the page layer before, so that each bulk uses up a fresh slab, and the memory is there already.

use std::cell::RefCell;
use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use uslub_core::Gfp;
use uslub_linux::Linux;

use crate::bench::{Bench, Failure};
use crate::chart::Chart;
use crate::goal::Goal;
use crate::linux::{self, Pinned};
use crate::measure::Sample;
use crate::pace;
use crate::quiet::nanoseconds_a_step;
use crate::report::{SeedReport, Table};
use crate::row::Row;
use crate::strategy::Strategy;

/// What the thread reported of one size, and what the kernel's own code takes: ns an object.
struct Reported {
    size: usize,
    /// By order of the objects (ascending, random): before, after, change in per cent.
    thread: [(f64, f64, f64); 2],
    /// By order of the objects.
    kernel: [f64; 2],
}

const REPORTED: [Reported; 6] = [
    reported(16, (4.85, 3.30, -31.9), (8.77, 3.63, -58.6), [1.8, 2.3]),
    reported(32, (6.89, 3.74, -45.7), (11.59, 4.24, -63.4), [2.0, 2.5]),
    reported(64, (10.70, 4.60, -57.0), (15.58, 5.32, -65.9), [2.4, 3.0]),
    reported(128, (18.69, 6.54, -65.0), (22.13, 7.39, -66.6), [3.2, 4.2]),
    reported(256, (22.36, 6.61, -70.5), (27.12, 7.92, -70.8), [3.7, 4.7]),
    reported(512, (20.59, 6.90, -66.5), (26.92, 8.28, -69.2), [3.9, 4.7]),
];

const fn reported(
    size: usize,
    ascending: (f64, f64, f64),
    random: (f64, f64, f64),
    kernel: [f64; 2],
) -> Reported {
    Reported {
        size,
        thread: [ascending, random],
        kernel,
    }
}

/// Objects in a slab as on the thread's machine, which had eight CPUs.
const OBJECTS: &str = "slab_min_objects=20";
/// Most that an object may take, in nanoseconds.
const LIMIT_NS: f64 = 1.5;

/// Runs it.
pub fn run(bench: &Bench) -> Result<SeedReport, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let live = bench.size.pick(1, 32, 256) << 20;
    let mut own = Table::new(&["size / batch", "order", "before", "after", "change"]);
    let mut rows = Vec::new();
    let mut charts = Vec::new();
    for (random, order) in ["ascending", "random"].into_iter().enumerate() {
        let mut lines = [const { Vec::new() }; 3];
        for known in &REPORTED {
            bench.says(&format!("{} bytes, {order} order", known.size));
            let (before, after, cut) = known.thread[random];
            let kernel = known.kernel[random];
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
            rows.push(row.reported(&said).kernel(Some(kernel)).note(note));
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
    Ok(SeedReport {
        seed: 0,
        title: "Freelist construction deferred",
        source: "mm/slub: defer freelist construction until after bulk allocation from a new slab (April 2026)",
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
        own,
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
    .with("Linux 7.2.12's own code", kernel)
}

/// Old, new, the floor and a load, and objects a bulk, for one size.
fn measure(
    bench: &Bench,
    size: usize,
    random: bool,
    live: usize,
) -> Result<([Sample; 4], usize), Failure> {
    let slub = linux::steady()?;
    let random = if random {
        "slab_freelist_random=1"
    } else {
        "slab_freelist_random=0"
    };
    let old = Strategy::new(slub, size, &[OBJECTS, random, "freelist_deferred=0"])?;
    let new = Strategy::new(slub, size, &[OBJECTS, random, "freelist_deferred=1"])?;
    let batch = new.slab_objects();
    let room = RefCell::new(Room {
        objects: vec![null_mut(); (live / (batch * size)).max(1) * batch],
        others: vec![0; live.min(64 << 20)],
    });
    let samples = bench.samples_of(
        bench.size.pick(1, 3, 3),
        [
            &mut || round(&old, &mut room.borrow_mut(), batch),
            &mut || round(&new, &mut room.borrow_mut(), batch),
            &mut || Ok(least(size, &mut room.borrow_mut(), batch)),
            &mut || Ok(pace::load()),
        ],
    )?;
    old.check_at_rest()?;
    new.check_at_rest()?;
    Ok((samples, batch))
}

/// Slabs whose pages a cache takes at once, at most.
const AHEAD: usize = 64;

/// Memory of all competitors.
struct Room {
    /// The array of a round.
    objects: Vec<*mut u8>,
    /// More bytes than the processor's caches have.
    others: Vec<u8>,
}

impl Room {
    /// Writes the processor's caches full of other things, for what a round has left there would be written back in the time of the next
    /// one; the array.
    fn begin(&mut self) -> &mut [*mut u8] {
        for byte in &mut self.others {
            *byte = byte.wrapping_add(1);
        }
        black_box(&mut self.others);
        &mut self.objects
    }
}

/// Allocates all objects, a slab a bulk, and frees them; nanoseconds of an object's allocation.
fn round(strategy: &Strategy<'_, Linux>, room: &mut Room, batch: usize) -> Result<f64, Failure> {
    let Strategy { slub, cache } = strategy;
    slub.shrink(cache);
    let slabs = strategy.count("alloc_slab")?;
    let objects = room.begin();
    let bulks = objects.len() / batch;
    let mut done = true;
    let time = nanoseconds_a_step(bulks, |range| {
        done &= objects[range.start * batch..range.end * batch]
            .chunks_exact_mut(batch)
            .all(|bulk| slub.alloc_bulk(cache, Gfp::KERNEL, black_box(bulk)));
    });
    let slabs = strategy.count("alloc_slab")? - slabs;
    for bulk in objects.chunks_exact_mut(batch) {
        // SAFETY: this cache's, freed once; nobody used them.
        unsafe { slub.free_bulk(cache, bulk) };
    }
    if !done {
        return Err(Failure::NoMemory("for the objects of a round"));
    }
    // The pages of some slabs may have been taken ahead.
    if !(bulks..bulks + AHEAD).contains(&(slabs as usize)) {
        return Err(Failure::Wrong(format!(
            "{bulks} bulks took {slabs} fresh slabs: not every one a whole one"
        )));
    }
    Ok(time / batch as f64)
}

/// Nanoseconds an object of what no allocator can leave out: addresses into the same array, and one compare-and-swap a bulk that takes
/// them from whoever else might.
fn least(size: usize, room: &mut Room, batch: usize) -> f64 {
    let next = AtomicUsize::new(size);
    let objects = room.begin();
    let time = nanoseconds_a_step(objects.len() / batch, |range| {
        for bulk in objects[range.start * batch..range.end * batch].chunks_exact_mut(batch) {
            let bulk = black_box(bulk);
            // Relaxed: nobody else has it.
            let mut at = next.load(Relaxed);
            let (now, then) = (at, at + batch * size);
            // Relaxed: as above.
            let taken = next.compare_exchange(now, then, Relaxed, Relaxed);
            debug_assert!(taken.is_ok());
            for object in bulk {
                *object = without_provenance_mut(at);
                at += size;
            }
        }
    });
    time / batch as f64
}
