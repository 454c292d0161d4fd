//! The worst case of seed 2: neighbours in the array are of different slabs, except every k-th
//! object.
//!
//! A round allocates 4096 objects in bulks of 64, arranges them, and frees them in bulks of 64.
//! This module computes the number of slab updates that the look-ahead allows, from the slabs
//! alone. The count must equal the allocator's counter.

use std::collections::VecDeque;
use std::hint::black_box;
use std::ptr::null_mut;

use uslub_core::Gfp;
use uslub_core::tunables::Tuning;
use uslub_linux::Linux;

use super::{Row, Way, detached};
use crate::bench::Bench;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::Slub;
use crate::measure::{Sample, nanoseconds};
use crate::output::Chart;
use crate::strategy::Strategy;

/// Bytes of an object, as in the thread's test; a slot has 256 bytes.
const SIZE: usize = 224;
/// Objects per bulk.
const BULK: usize = 64;
/// Bulks that are live at once.
const BULKS: usize = 64;
/// Every k-th object is of the same slab as the bulk's first. The last value means no object.
const EVERY: [usize; 8] = [1, 2, 3, 4, 5, 6, 10, BULK + 1];
/// Objects per slab, as in the thread's test.
const OBJECTS: &str = "slab_min_objects=32";
/// The minimum of sheaves: one object in each, and one sheaf in the barn.
pub const NO_SHEAVES: [&str; 4] = [
    OBJECTS,
    "sheaf_capacity=1",
    "max_full_sheaves=1",
    "max_empty_sheaves=0",
];

/// The way in which a round frees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    OneByOne,
    AtOnce,
}

/// The results of a round.
struct Round {
    /// Nanoseconds per object, for allocation and free.
    time: f64,
    /// Updates of slabs per bulk, by the allocator's counter; `None` without the counter.
    updates: Option<f64>,
    /// Updates per bulk that the look-ahead allows.
    runs: f64,
}

/// Measures the worst case.
pub fn run(bench: &Bench, slub: &Slub, rows: &mut Vec<Row>) -> Result<Chart, Failure> {
    let mut lines = [const { Vec::new() }; 4];
    for every in EVERY {
        let pattern = pattern(every);
        let mut times = Vec::new();
        for (sheaves, settings) in [("sheaves", &[OBJECTS][..]), ("no sheaves", &NO_SHEAVES)] {
            bench.says(&format!("worst case, {pattern}, {sheaves}"));
            let [old, new, single] = rounds(bench, slub, settings, every)?;
            let ways = detached::ways("bulk calls over many slabs", settings);
            let name = format!("worst case, {pattern}, {sheaves}");
            let row = time_row(&name, &old, &new).single(time_of(&single));
            let note = match updates(&old).zip(updates(&new)) {
                Some((old, new)) if old - new < 0.5 => {
                    "as many slab updates either way: the look-ahead finds no two alike"
                }
                _ => "",
            };
            rows.push(row.ways(&ways[0], &ways[1]).note(note));
            if settings.len() > 1 {
                let row = update_row(&pattern, &old, &new);
                rows.push(row.ways(&ways[0], &ways[1]));
            }
            times.extend([&old, &new].map(|rounds| time_of(rounds).median));
        }
        lines
            .iter_mut()
            .zip(times)
            .for_each(|(line, time)| line.push(time));
    }
    let [old, new, old_slabs, new_slabs] = lines;
    let chart = Chart::bars(
        "Worst case: how many of a bulk of 64 share a slab",
        "ns an object",
        EVERY
            .map(|every| pattern(every).replace(" alike", ""))
            .to_vec(),
    );
    Ok(chart
        .logarithmic()
        .with("freed one by one", old)
        .with("detached freelists", new)
        .with("freed one by one, no sheaves", old_slabs)
        .with("detached freelists, no sheaves", new_slabs))
}

fn time_of(rounds: &[Round]) -> Sample {
    Sample::of_each(rounds, |round| round.time)
}

/// The median of the updates of slabs per bulk.
fn updates(rounds: &[Round]) -> Option<f64> {
    let counted: Option<Vec<_>> = rounds.iter().map(|round| round.updates).collect();
    Some(Sample::of(counted?).median)
}

fn time_row(name: &str, old: &[Round], new: &[Round]) -> Row {
    let (old, new) = (time_of(old), time_of(new));
    let goal = Goal::none().no_dearer(old, new);
    Row::new(2, name, "ns/object", Some(old), new, &goal)
}

fn update_row(pattern: &str, before: &[Round], rounds: &[Round]) -> Row {
    let name = format!("slab updates, {pattern}, no sheaves");
    let unit = "updates/64 objects";
    let counted: Option<Vec<_>> = rounds.iter().map(|round| round.updates).collect();
    let Some(counted) = counted else {
        let why = Failure::Unavailable("counter 'free_detached'".to_owned());
        return Row::without(2, name, unit, &why);
    };
    let exact = rounds.iter().all(|round| round.updates == Some(round.runs));
    let runs = Sample::of_each(rounds, |round| round.runs).median;
    let goal = Goal::none().and(format!("{runs:.2}, as the look-ahead allows"), exact);
    let old = Sample::of_each(before, |round| round.updates.unwrap_or(0.0));
    let new = Sample::of(counted);
    Row::new(2, name, unit, Some(old), new, &goal)
}

/// The objects of the same slab, in words.
fn pattern(every: usize) -> String {
    match every {
        1 => "all alike".to_owned(),
        2 => "every 2nd alike".to_owned(),
        3 => "every 3rd alike".to_owned(),
        n if n > BULK => "none alike".to_owned(),
        n => format!("every {n}th alike"),
    }
}

/// The rounds of the old way, of the new way, and of single calls, each on its own cache.
fn rounds(
    bench: &Bench,
    slub: &Slub,
    settings: &[&str],
    every: usize,
) -> Result<[Vec<Round>; 3], Failure> {
    let [old, new] = detached::ways("", settings);
    let create = |way: &Way| {
        let settings: Vec<_> = way.settings.iter().map(String::as_str).collect();
        Strategy::new(slub, SIZE, &settings)
    };
    let all = [create(&old)?, create(&new)?, create(&new)?];
    let repeats = bench.size.pick(1, 4, 16);
    let rounds = bench.rounds_of(
        2,
        [
            &mut || round(&all[0], Calls::AtOnce, every, repeats),
            &mut || round(&all[1], Calls::AtOnce, every, repeats),
            &mut || round(&all[2], Calls::OneByOne, every, repeats),
        ],
    )?;
    for strategy in all {
        strategy.check_at_rest()?;
    }
    Ok(rounds)
}

fn round(
    strategy: &Strategy<'_, Linux>,
    way: Calls,
    every: usize,
    repeats: usize,
) -> Result<Round, Failure> {
    let mut objects = vec![null_mut(); BULK * BULKS];
    let (mut time, mut runs) = (0.0, 0);
    let before = strategy.count("free_detached").ok();
    for _ in 0..repeats {
        let (spent, done) = nanoseconds(|| allocate(strategy, way, black_box(&mut objects)));
        if !done {
            return Err(Failure::NoMemory("for 4096 objects"));
        }
        arrange(strategy, &mut objects, every);
        let slabs: Vec<_> = objects.iter().map(|&o| strategy.slab_of(o)).collect();
        let (freed, per_bulk) = nanoseconds(|| free(strategy, way, black_box(&mut objects)));
        time += spent + freed;
        // The end of each bulk is the part that did not fit into sheaves.
        for (bulk, slow) in slabs.chunks_exact(BULK).zip(per_bulk) {
            runs += runs_of(
                &bulk[BULK - slow as usize..],
                Tuning::DEFAULT.look_ahead as usize,
            );
        }
    }
    let bulks = (BULKS * repeats) as f64;
    let updates = match before {
        Some(before) => Some((strategy.count("free_detached")? - before) as f64 / bulks),
        None => None,
    };
    Ok(Round {
        time: time / (bulks * BULK as f64),
        updates,
        runs: runs as f64 / bulks,
    })
}

fn allocate(strategy: &Strategy<'_, Linux>, way: Calls, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    match way {
        Calls::AtOnce => objects
            .chunks_exact_mut(BULK)
            .all(|bulk| slub.alloc_bulk(cache, Gfp::KERNEL, bulk)),
        Calls::OneByOne => {
            for object in objects.iter_mut() {
                *object = slub.alloc(cache, Gfp::KERNEL);
            }
            objects.iter().all(|object| !object.is_null())
        }
    }
}

/// Frees all objects. For bulk calls, returns the objects of each bulk that went to slabs.
fn free(strategy: &Strategy<'_, Linux>, way: Calls, objects: &mut [*mut u8]) -> [u64; BULKS] {
    let Strategy { slub, cache } = strategy;
    let mut to_slabs = [0; BULKS];
    let id = uslub_core::stats::StatItem::FreeSlowpath;
    match way {
        Calls::AtOnce => {
            for (bulk, to_slabs) in objects.chunks_exact_mut(BULK).zip(&mut to_slabs) {
                let before = slub.stat(cache, id);
                // SAFETY: the objects are of this cache and are freed once.
                unsafe { slub.free_bulk(cache, bulk) };
                *to_slabs = slub.stat(cache, id) - before;
            }
        }
        Calls::OneByOne => {
            for &mut object in objects {
                // SAFETY: the object is of this cache and is freed once.
                unsafe { slub.free(cache, object) };
            }
        }
    }
    to_slabs
}

/// Arranges the objects: neighbours in a bulk are of different slabs, except every `every`-th
/// object, which is of the same slab as the bulk's first.
fn arrange(strategy: &Strategy<'_, Linux>, objects: &mut [*mut u8], every: usize) {
    let mut slabs: Vec<(Option<u32>, Vec<*mut u8>)> = Vec::new();
    let mut sorted = objects.to_vec();
    sorted.sort();
    for object in sorted {
        let slab = strategy.slab_of(object);
        match slabs.last_mut() {
            Some((last, list)) if *last == slab => list.push(object),
            _ => slabs.push((slab, vec![object])),
        }
    }
    let mut slabs: VecDeque<Vec<*mut u8>> = slabs.into_iter().map(|(_, list)| list).collect();
    // Takes an object of the next slab in turn and removes the slab if it has no further objects.
    let take = |slabs: &mut VecDeque<Vec<*mut u8>>| {
        let mut slab = slabs.pop_front()?;
        let object = slab.pop();
        if !slab.is_empty() {
            slabs.push_back(slab);
        }
        object
    };
    for bulk in objects.chunks_exact_mut(BULK) {
        let mut same = slabs.pop_front().unwrap_or_default();
        for (i, place) in bulk.iter_mut().enumerate() {
            if same.is_empty() {
                same = slabs.pop_front().unwrap_or_default();
            }
            let alike = if i % every == 0 { same.pop() } else { None };
            let other = alike.or_else(|| take(&mut slabs)).or_else(|| same.pop());
            *place = other.unwrap_or(*place);
        }
        if !same.is_empty() {
            slabs.push_back(same);
        }
    }
}

/// The number of updates that a look-ahead allows for objects of these slabs.
///
/// The kernel's rule: an update takes the last object. Then it goes backwards and takes the objects
/// of the same slab, until it has met `look_ahead` objects of other slabs. A taken object swaps
/// places with the last untaken object.
fn runs_of<T: PartialEq + Copy>(slabs: &[T], look_ahead: usize) -> usize {
    let mut left = slabs.to_vec();
    let mut runs = 0;
    while let Some(slab) = left.pop() {
        runs += 1;
        let (mut at, mut others) = (left.len(), 0);
        while at > 0 && others < look_ahead.max(1) {
            at -= 1;
            if left[at] == slab {
                left.swap_remove(at);
            } else {
                others += 1;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_that_the_look_ahead_allows() {
        assert_eq!(runs_of(&[1, 1, 1, 1], 3), 1);
        assert_eq!(runs_of(&[1, 2, 3, 4], 3), 4);
        assert_eq!(runs_of(&[1, 2, 1, 2, 1, 2], 3), 2);
        assert_eq!(runs_of(&[1, 2, 1, 2, 1, 2], 1), 6);
        assert_eq!(runs_of(&[1, 9, 8, 1], 3), 3);
        assert_eq!(runs_of(&[1, 9, 8, 7, 1], 3), 5);
        assert_eq!(runs_of::<u8>(&[], 3), 0);
    }
}
