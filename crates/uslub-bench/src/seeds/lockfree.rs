//! Seed 3: an atomic step changes a slab's state, without a lock.
//!
//! The settings force the slow path: a sheaf holds one object, so nearly every allocation and free
//! goes to a slab.

mod hackbench;
mod meeting;

use std::cell::RefCell;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::Gfp;
use uslub_linux::Linux;

use super::{Row, Section, Way};
use crate::bench::Bench;
use crate::dice::Dice;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::{self, Pinned, Slub};
use crate::measure::{Sample, nanoseconds};
use crate::output::{Chart, Words};
use crate::ring::{Ring, wait_until};
use crate::strategy::Strategy;
use crate::threads::joined;

use meeting::BackOff;

/// Bytes of an object.
const SIZE: usize = 256;
/// The minimum of sheaves.
const NO_SHEAVES: [&str; 3] = [
    "sheaf_capacity=1",
    "max_full_sheaves=1",
    "max_empty_sheaves=0",
];
/// The minimum of sheaves, with slabs of 32 objects and one update of a slab for each free.
const SLABS_ONLY: [&str; 5] = [
    "sheaf_capacity=1",
    "max_full_sheaves=1",
    "max_empty_sheaves=0",
    "slab_min_objects=32",
    "detached_freelist=0",
];
/// Objects that one thread holds.
const LIVE: usize = 4096;
/// Objects in one replacement, and capacity of the ring to the other thread.
const BATCH: usize = 32;
const DEPTH: usize = 128;
const LOCKED: &str = "slab_state_lockfree=0";
const LOCK_FREE: &str = "slab_state_lockfree=1";
/// Parts of a round, for rows whose ways take nearly equal time.
const PARTS: usize = 50;
/// Threads that change one slab's state, and the name of the row.
const MEETINGS: [(usize, &str); 2] = [
    (2, "two threads change the state of one slab"),
    (8, "eight threads on two CPUs do"),
];
/// The thread's figures: seconds of `hackbench 200 process 200`, before and after.
const REPORTED: [(f64, f64); 3] = [(35.9, 31.9), (30.8, 27.9), (29.9, 28.8)];

/// Measures the seed.
pub fn run(bench: &Bench) -> Result<Section, Failure> {
    let slub = linux::steady()?;
    let mut own = Words::new(&[
        "run of hackbench 200 process 200",
        "before",
        "after",
        "change",
    ]);
    for (i, (before, after)) in REPORTED.into_iter().enumerate() {
        let change = crate::goal::signed((after / before - 1.0) * 100.0);
        own.push(&[
            format!("{}.", i + 1),
            format!("{before} s"),
            format!("{after} s"),
            format!("{change} %"),
        ]);
    }
    let mut rows = Vec::new();
    let one = one_thread(bench, slub)?;
    let goal = Goal::none().no_dearer_by_rounds(one.ratios);
    let name = "one thread, objects of random slabs";
    let row = one.row(name, "ns/object", &goal);
    let [old, new] = state_ways("bulks to random slabs, one thread", &SLABS_ONLY);
    rows.push(row.ways(&old, &new));
    let meetings = meetings(bench, &mut rows)?;
    let (two, retries) = two_threads(bench, slub)?;
    let goal = Goal::none().ahead_by_rounds(two.ratios);
    let name = "two threads, each frees what the other held";
    let [old, new] = state_ways("bulks to random slabs, two threads", &SLABS_ONLY);
    let row = two.row(name, "ns/object", &goal).ways(&old, &new);
    rows.push(row.note(format!(
        "{retries:.1} retries of the atomic step in 1000 objects"
    )));
    let names = ["one thread", "two threads"];
    let (title, unit) = ("No sheaves: allocate and free", "ns an object");
    let slabs = chart(title, unit, names, &[one, two]);
    let mut charts = vec![meetings, slabs];
    charts.extend(groups(bench, slub, &mut rows)?);
    Ok(Section {
        name: "Seed 3",
        title: "Slab state without a lock",
        source: Some("SLUB: Lockless freelists for objects V6 (May 2011)"),
        about: "A slab's freelist, its count of objects in use and a flag must change together. Under a lock, every free that \
                meets another on the same slab waits. Packed into one word they change in one atomic step: whoever comes \
                second tries again, and nobody ever holds anything.",
        workload: format!(
            "No sheaves, so that slabs do all the work. Threads hold {LIVE} objects of {SIZE} bytes each and replace {BATCH} at random \
             at a time; every free is an update of a slab. They seldom meet at one, so in two more rows they do nothing but change \
             the state of the same one. Then groups of senders and receivers over bounded queues: two \
             allocations a message, freed by the receiver, which checks what came. Both ways are close to each other, and where the \
             host puts the two CPUs decides more than they do: most rounds are cut into {PARTS}, and the change is the median of the \
             rounds' own."
        ),
        own: Some(own),
        rows,
        charts,
    })
}

/// What both ways run: the same calls, on caches whose slabs change state differently.
fn state_ways(calls: &'static str, settings: &[&str]) -> [Way; 2] {
    let way = |name, state| Way::new(name, calls, &[settings, &[state]].concat());
    [way("lock", LOCKED), way("one atomic step", LOCK_FREE)]
}

/// Threads that meet at one slab.
fn meetings(bench: &Bench, rows: &mut Vec<Row>) -> Result<Chart, Failure> {
    let mut all = Vec::new();
    for (threads, name) in MEETINGS {
        for back_off in BackOff::ALL {
            let name = format!("{name}, {}", back_off.name());
            bench.says(&name);
            let both = meeting::run(bench, threads, back_off)?;
            let goal = Goal::none().ahead_by_rounds(both.ratios);
            let [old, new] = meeting::ways(back_off);
            rows.push(both.row(&name, "ns/change", &goal).ways(&old, &new));
            all.push(both);
        }
    }
    let names = ["2, back-off", "2, none", "8, back-off", "8, none"];
    let title = "Threads that meet: one slab's state";
    Ok(chart(title, "ns a change", names, &all))
}

/// The hackbench shape, without and with sheaves, and next to it what the thread reported.
fn groups(bench: &Bench, slub: &Slub, rows: &mut Vec<Row>) -> Result<[Chart; 2], Failure> {
    let reported = "35.9 → 31.9 s, 30.8 → 27.9 s, 29.9 → 28.8 s (−4 … −11 %)";
    let names = ["no sheaves", "default sheaves"];
    let mut all = Vec::new();
    for (name, settings) in names.into_iter().zip([&NO_SHEAVES[..], &[]]) {
        let title = format!("hackbench shape, {name}");
        bench.says(&title);
        let outcome = hackbench::run(bench, slub, settings)?;
        let goal = if settings.is_empty() {
            Goal::none()
        } else {
            Goal::none().no_dearer_by_rounds(outcome.both.ratios)
        };
        let goal = goal.and("every message accounted for", outcome.all_accounted);
        let [old, new] = state_ways("messages between groups", settings);
        let row = outcome.both.row(&title, "s", &goal).ways(&old, &new);
        rows.push(row.reported(reported).note(outcome.note));
        all.push(outcome.both);
    }
    let saved = |both: &Both| (1.0 - both.ratios.median) * 100.0;
    let mut bars: Vec<_> = all.iter().map(saved).collect();
    bars.extend(REPORTED.map(|(before, after)| (1.0 - after / before) * 100.0));
    let labels = [names[0], names[1], "2011, 1.", "2011, 2.", "2011, 3."];
    let labels = labels.map(str::to_owned).to_vec();
    let share = Chart::bars("Time saved on hackbench", "per cent", labels).with(
        "here; of 2011: as reported",
        bars.iter().map(|bar| bar.max(0.0)).collect::<Vec<_>>(),
    );
    Ok([chart("The hackbench shape", "s", names, &all), share])
}

/// A chart of both ways, by group.
fn chart<const N: usize>(title: &str, unit: &str, groups: [&str; N], by_group: &[Both]) -> Chart {
    let bars = |of: fn(&Both) -> f64| by_group.iter().map(of).collect::<Vec<_>>();
    Chart::bars(title, unit, groups.map(str::to_owned).to_vec())
        .with("state under a lock", bars(|both| both.old.median))
        .with("one atomic step", bars(|both| both.new.median))
}

/// The figures of both ways, and the ratio of new to old in each round.
struct Both {
    old: Sample,
    new: Sample,
    ratios: Sample,
}

impl Both {
    fn of([old, new]: &[Vec<f64>; 2]) -> Self {
        Self {
            old: Sample::of(old.clone()),
            new: Sample::of(new.clone()),
            ratios: Sample::of_ratios(new, old),
        }
    }

    fn row(&self, name: &str, unit: &'static str, goal: &Goal) -> Row {
        Row::new(3, name, unit, Some(self.old), self.new, goal).by_rounds(self.ratios)
    }
}

fn strategies<'a>(
    slub: &'a Slub,
    size: usize,
    settings: &[&str],
) -> Result<[Strategy<'a, Linux>; 2], Failure> {
    let with = |state| Strategy::new(slub, size, &[settings, &[state]].concat());
    Ok([with(LOCKED)?, with(LOCK_FREE)?])
}

/// The objects of one thread, at random positions of partially used slabs.
struct Holder<'a, 'b> {
    strategy: &'a Strategy<'b, Linux>,
    dice: Dice,
    objects: Vec<*mut u8>,
}

// SAFETY: the holder owns the objects, on every thread.
unsafe impl Send for Holder<'_, '_> {}

impl<'a, 'b> Holder<'a, 'b> {
    /// Allocates twice as many objects as it will hold and frees a random half.
    fn new(strategy: &'a Strategy<'b, Linux>, number: u64) -> Result<Self, Failure> {
        let mut holder = Self {
            strategy,
            dice: Dice::new(number),
            objects: vec![null_mut(); 2 * LIVE],
        };
        let Strategy { slub, cache } = strategy;
        if !slub.alloc_bulk(cache, Gfp::KERNEL, &mut holder.objects) {
            return Err(Failure::NoMemory("for 8192 objects"));
        }
        holder.dice.shuffle(&mut holder.objects);
        let mut rest = holder.objects.split_off(LIVE);
        // SAFETY: the objects are of this cache and are freed once.
        unsafe { slub.free_bulk(cache, &mut rest) };
        Ok(holder)
    }

    /// Replaces objects by new objects; the batch then contains the old objects.
    fn replace(&mut self, batch: &mut [*mut u8; BATCH]) -> bool {
        let Strategy { slub, cache } = self.strategy;
        if !slub.alloc_bulk(cache, Gfp::KERNEL, batch) {
            return false;
        }
        for object in batch {
            let at = self.dice.below(LIVE);
            std::mem::swap(object, &mut self.objects[at]);
        }
        true
    }

    /// Frees all objects.
    fn end(mut self) {
        // SAFETY: the objects are of this cache and are freed once.
        unsafe { (self.strategy.slub).free_bulk(self.strategy.cache, &mut self.objects) };
    }
}

fn one_thread(bench: &Bench, slub: &Slub) -> Result<Both, Failure> {
    bench.says("one thread");
    let _pinned = Pinned::to_the_last()?;
    let batches = bench.size.pick(50, 4_000, 20_000) / PARTS;
    let [old, new] = strategies(slub, SIZE, &SLABS_ONLY)?;
    let round = |strategy: &Strategy<'_, Linux>| {
        let Strategy { slub, cache } = strategy;
        let mut holder = Holder::new(strategy, 3)?;
        let mut batch = [null_mut(); BATCH];
        let (time, done) = nanoseconds(|| {
            (0..batches).all(|_| {
                let done = holder.replace(&mut batch);
                // SAFETY: the objects are of this cache and are freed once.
                unsafe { slub.free_bulk(cache, &mut batch) };
                done
            })
        });
        holder.end();
        if !done {
            return Err(Failure::NoMemory("for a batch"));
        }
        Ok(time / (batches * BATCH) as f64)
    };
    let rounds = bench.so_many_rounds_of(
        PARTS * bench.rounds(),
        2 * PARTS,
        [&mut || round(&old), &mut || round(&new)],
    )?;
    old.check_at_rest()?;
    new.check_at_rest()?;
    Ok(Both::of(&rounds))
}

/// Two threads free the objects of each other. Also returns the retries of the new way per 1000
/// objects.
fn two_threads(bench: &Bench, slub: &Slub) -> Result<(Both, f64), Failure> {
    bench.says("two threads");
    let batches = bench.size.pick(50, 4_000, 20_000) / PARTS;
    let mut number = 0;
    let mut round = |state| -> Result<(f64, f64), Failure> {
        Strategy::change_places(slub, number / 2)?;
        number += 1;
        let strategy = Strategy::new(slub, SIZE, &[&SLABS_ONLY[..], &[state]].concat())?;
        let time = exchange(&strategy, batches)?;
        strategy.check_at_rest()?;
        let retries = strategy.count("cmpxchg_double_fail")? as f64;
        Ok((time, retries * 1000.0 / (2 * batches * BATCH) as f64))
    };
    let round = RefCell::new(&mut round);
    let rounds = bench.so_many_rounds_of(
        PARTS * bench.rounds(),
        2 * PARTS,
        [&mut || round.borrow_mut()(LOCKED), &mut || {
            round.borrow_mut()(LOCK_FREE)
        }],
    )?;
    let retries = Sample::of_each(&rounds[1], |round| round.1).median;
    let times = rounds.map(|rounds| rounds.into_iter().map(|(time, _)| time).collect());
    Ok((Both::of(&times), retries))
}

/// Two threads replace their objects, pass the old objects to each other and free the received
/// objects. Returns nanoseconds per object on one thread, for allocation and free.
fn exchange(strategy: &Strategy<'_, Linux>, batches: usize) -> Result<f64, Failure> {
    let Strategy { slub, cache } = strategy;
    let rings = [Ring::new(DEPTH), Ring::new(DEPTH)];
    let ready = AtomicUsize::new(0);
    let cpus = linux::two_cpus();
    let objects = batches * BATCH;
    let side = |me: usize, mut holder: Holder<'_, '_>| -> Result<f64, Failure> {
        let pinned = Pinned::to(cpus[me]);
        // Release and Acquire: both threads start together, even if pinning failed.
        ready.fetch_add(1, Release);
        wait_until(|| ready.load(Acquire) == 2);
        let (mut sent, mut freed, mut enough) = (0, 0, true);
        let mut batch = [null_mut(); BATCH];
        let (time, ()) = nanoseconds(|| {
            while sent < objects || freed < objects {
                let mut idle = true;
                // At most the ring's depth of objects is ahead of the frees, so there is room.
                if sent < objects && sent - freed < DEPTH {
                    enough &= holder.replace(&mut batch);
                    wait_until(|| rings[me].try_put(&batch));
                    sent += BATCH;
                    idle = false;
                }
                let n = rings[1 - me].try_take(&mut batch);
                // SAFETY: the objects are of this cache; only the thread that took them frees them.
                unsafe { slub.free_bulk(cache, &mut batch[..n]) };
                freed += n;
                if idle && n == 0 {
                    std::thread::yield_now();
                }
            }
        });
        drop(pinned?);
        holder.end();
        if !enough {
            return Err(Failure::NoMemory("for a batch"));
        }
        Ok(time / objects as f64)
    };
    let [mine, others] = [Holder::new(strategy, 3)?, Holder::new(strategy, 4)?];
    let times = std::thread::scope(|scope| {
        let other = scope.spawn(|| side(1, others));
        let mine = side(0, mine);
        let other = joined(other);
        Ok::<_, Failure>([mine?, other?])
    })?;
    Ok(f64::midpoint(times[0], times[1]))
}
