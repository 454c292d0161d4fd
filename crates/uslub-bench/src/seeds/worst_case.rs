//! Seed 2, the worst case: neighbours in the array lie in different slabs, but for every k-th
//! object.
//!
//! 4096 objects are allocated 64 at a time, put into an order, and freed 64 at a time in that
//! order. How many updates of slabs the look-ahead allows is computed here from the slabs alone,
//! and must be what the allocator counted.

use std::collections::VecDeque;
use std::hint::black_box;
use std::ptr::null_mut;

use uslub_core::Gfp;
use uslub_core::tunables::Tuning;
use uslub_linux::Linux;

use crate::bench::Bench;
use crate::chart::Chart;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::Slub;
use crate::measure::{Sample, nanoseconds};
use crate::row::Row;
use crate::strategy::Strategy;

/// Bytes of an object, as the thread's test had it: a slot of 256.
const SIZE: usize = 224;
/// Objects a bulk.
const BULK: usize = 64;
/// Bulks that live at once.
const BULKS: usize = 64;
/// Which objects come from the same slab as the bulk's first: every k-th; the last means none.
const EVERY: [usize; 8] = [1, 2, 3, 4, 5, 6, 10, BULK + 1];
/// Objects in a slab, as the thread had them.
const OBJECTS: &str = "slab_min_objects=32";
/// As good as no sheaves: one object in each, and one sheaf in the barn.
const NO_SHEAVES: [&str; 4] = [
    OBJECTS,
    "sheaf_capacity=1",
    "max_full_sheaves=1",
    "max_empty_sheaves=0",
];

/// How a round frees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    OneByOne,
    AtOnce,
}

/// What a round gave.
struct Round {
    /// Nanoseconds of an object's allocation and free.
    time: f64,
    /// Updates of slabs, counted by the allocator, a bulk; where it counts them.
    updates: Option<f64>,
    /// Updates that the look-ahead allows, a bulk.
    runs: f64,
    /// Objects that went to slabs, a bulk.
    to_slabs: f64,
}

/// Measures it.
pub fn run(bench: &Bench, slub: &Slub, rows: &mut Vec<Row>) -> Result<Chart, Failure> {
    let none = |last: &'static str| [&NO_SHEAVES[..], &[last]].concat();
    let with = [&[OBJECTS][..], &[OBJECTS]];
    let without = [none("detached_freelist=0"), none("detached_freelist=1")];
    let mut lines = [const { Vec::new() }; 4];
    for every in EVERY {
        let pattern = pattern(every);
        bench.says(&format!("worst case, {pattern}"));
        let (old, new) = pair(bench, slub, with, every)?;
        rows.push(time_row(
            &format!("worst case, {pattern}, sheaves"),
            &old,
            &new,
        ));
        let parts = [&without[0][..], &without[1][..]];
        let (old_slabs, new_slabs) = pair(bench, slub, parts, every)?;
        let name = format!("worst case, {pattern}, no sheaves");
        rows.push(time_row(&name, &old_slabs, &new_slabs));
        rows.push(update_row(&pattern, &new_slabs));
        let times = [old, new, old_slabs, new_slabs].map(|rounds| time_of(&rounds).median);
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
        .with("one by one", old)
        .with("bulk", new)
        .with("one by one, no sheaves", old_slabs)
        .with("bulk, no sheaves", new_slabs))
}

fn time_of(rounds: &[Round]) -> Sample {
    Sample::of_each(rounds, |round| round.time)
}

fn time_row(name: &str, old: &[Round], new: &[Round]) -> Row {
    let (old, new) = (time_of(old), time_of(new));
    let goal = Goal::none().no_dearer(old, new);
    Row::new(2, name, "ns/object", Some(old), new, &goal)
}

fn update_row(pattern: &str, rounds: &[Round]) -> Row {
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
    let old = Sample::of_each(rounds, |round| round.to_slabs);
    Row::new(2, name, unit, Some(old), Sample::of(counted), &goal)
}

/// Which objects come from the same slab, in words.
fn pattern(every: usize) -> String {
    match every {
        1 => "all alike".to_owned(),
        2 => "every 2nd alike".to_owned(),
        3 => "every 3rd alike".to_owned(),
        n if n > BULK => "none alike".to_owned(),
        n => format!("every {n}th alike"),
    }
}

/// Rounds of the loop over single calls on one cache, and of bulk calls on another.
fn pair(
    bench: &Bench,
    slub: &Slub,
    settings: [&[&str]; 2],
    every: usize,
) -> Result<(Vec<Round>, Vec<Round>), Failure> {
    let old = Strategy::new(slub, SIZE, settings[0])?;
    let new = Strategy::new(slub, SIZE, settings[1])?;
    let repeats = bench.size.pick(1, 4, 16);
    let [of_old, of_new] = bench.rounds_of(
        2,
        [
            &mut || round(&old, Way::OneByOne, every, repeats),
            &mut || round(&new, Way::AtOnce, every, repeats),
        ],
    )?;
    old.check_at_rest()?;
    new.check_at_rest()?;
    Ok((of_old, of_new))
}

fn round(
    strategy: &Strategy<'_, Linux>,
    way: Way,
    every: usize,
    repeats: usize,
) -> Result<Round, Failure> {
    let mut objects = vec![null_mut(); BULK * BULKS];
    let (mut time, mut runs, mut to_slabs) = (0.0, 0, 0);
    let before = strategy.count("free_detached").ok();
    for _ in 0..repeats {
        let (spent, done) = nanoseconds(|| allocate(strategy, way, black_box(&mut objects)));
        if !done {
            return Err(Failure::NoMemory("for 4096 objects"));
        }
        arrange(strategy, &mut objects, every);
        let slabs: Vec<_> = objects.iter().map(|&o| strategy.slab_of(o)).collect();
        let slow = strategy.count("free_slowpath")?;
        let (freed, per_bulk) = nanoseconds(|| free(strategy, way, black_box(&mut objects)));
        time += spent + freed;
        to_slabs += strategy.count("free_slowpath")? - slow;
        // What did not fit into sheaves was the end of each bulk.
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
        to_slabs: to_slabs as f64 / bulks,
    })
}

fn allocate(strategy: &Strategy<'_, Linux>, way: Way, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    match way {
        Way::AtOnce => objects
            .chunks_exact_mut(BULK)
            .all(|bulk| slub.alloc_bulk(cache, Gfp::KERNEL, bulk)),
        Way::OneByOne => {
            for object in objects.iter_mut() {
                *object = slub.alloc(cache, Gfp::KERNEL);
            }
            objects.iter().all(|object| !object.is_null())
        }
    }
}

/// Frees all; returns how many of each bulk went to slabs, where bulks are freed.
fn free(strategy: &Strategy<'_, Linux>, way: Way, objects: &mut [*mut u8]) -> [u64; BULKS] {
    let Strategy { slub, cache } = strategy;
    let mut to_slabs = [0; BULKS];
    let id = uslub_core::stats::StatItem::FreeSlowpath;
    match way {
        Way::AtOnce => {
            for (bulk, to_slabs) in objects.chunks_exact_mut(BULK).zip(&mut to_slabs) {
                let before = slub.stat(cache, id);
                // SAFETY: this cache's, freed once.
                unsafe { slub.free_bulk(cache, bulk) };
                *to_slabs = slub.stat(cache, id) - before;
            }
        }
        Way::OneByOne => {
            for &mut object in objects {
                // SAFETY: as above.
                unsafe { slub.free(cache, object) };
            }
        }
    }
    to_slabs
}

/// Puts objects into an order in which each bulk's neighbours lie in different slabs, but every
/// `every`-th lies in the same slab as the bulk's first.
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
    // The next slab in turn gives an object; one that is used up leaves.
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

/// Updates that a look-ahead allows for objects of these slabs.
///
/// The kernel's rule: each update takes the last object and, going backwards, all of its slab
/// before the `look_ahead`-th of another; one that is taken changes places with the last that is
/// not.
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
