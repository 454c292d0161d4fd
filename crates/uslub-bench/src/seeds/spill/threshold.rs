//! A threshold below a full sheaf, where it matters: a CPU allocates from slabs that random frees
//! have left half full. (The maple tree refills its main sheaf from slabs hardly ever.)

use std::cell::RefCell;
use std::ptr::null_mut;

use uslub_core::Gfp;
use uslub_linux::Linux;

use crate::bench::Bench;
use crate::dice::Dice;
use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::{self, Pinned};
use crate::measure::{Sample, nanoseconds};
use crate::seeds::Row;
use crate::strategy::Strategy;

use super::ideas::{PARTLY_FILLED, THRESHOLD, settings, way};
use super::maple::SIZE;

/// Objects before the random frees.
const OBJECTS: usize = 8192;

/// The figures of a round, by object allocated.
struct Round {
    time: f64,
    refills: f64,
}

/// Measures a full sheaf against a partly filled one.
pub fn run(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    bench.says("a threshold for refills");
    let _pinned = Pinned::to_the_last()?;
    let slub = linux::steady()?;
    let create = |number| Strategy::new(slub, SIZE, &settings(number));
    let (full, partly) = (create(0)?, create(PARTLY_FILLED)?);
    let mut number = 0;
    let mut round = |strategy: &Strategy<'_, Linux>| {
        number += 1;
        one(strategy, number / 2)
    };
    let round = RefCell::new(&mut round);
    let [old, new] = bench.rounds_of(
        2,
        [&mut || round.borrow_mut()(&full), &mut || {
            round.borrow_mut()(&partly)
        }],
    )?;
    full.check_at_rest()?;
    partly.check_at_rest()?;
    let mut push = |name: &str, unit, part: fn(&Round) -> f64| {
        let (old, new) = (Sample::of_each(&old, part), Sample::of_each(&new, part));
        let name = format!("half full slabs, partly filled: {name}");
        let row = Row::new(1, name, unit, Some(old), new, &Goal::none());
        rows.push(row.reported(THRESHOLD).ways(&way(0), &way(PARTLY_FILLED)));
    };
    push("refills", "in 1000 objects", |round| round.refills);
    push("an allocation", "ns", |round| round.time);
    Ok(())
}

/// Frees a random half of many objects, and allocates as many again, one by one.
fn one(strategy: &Strategy<'_, Linux>, number: u64) -> Result<Round, Failure> {
    let Strategy { slub, cache } = strategy;
    let mut objects = vec![null_mut(); OBJECTS];
    if !slub.alloc_bulk(cache, Gfp::KERNEL, &mut objects) {
        return Err(Failure::NoMemory("for 8192 objects"));
    }
    Dice::new(number).shuffle(&mut objects);
    // SAFETY: the objects are of this cache and are freed once.
    unsafe { slub.free_bulk(cache, &mut objects[..OBJECTS / 2]) };
    slub.shrink(cache);
    let before = strategy.count("barn_get_fail")?;
    let (time, ()) = nanoseconds(|| {
        for object in &mut objects[..OBJECTS / 2] {
            *object = slub.alloc(cache, Gfp::KERNEL);
        }
    });
    let refills = strategy.count("barn_get_fail")? - before;
    let done = objects.iter().all(|object| !object.is_null());
    // SAFETY: as above; null is ignored.
    objects
        .iter()
        .for_each(|&object| unsafe { slub.free(cache, object) });
    slub.shrink(cache);
    if !done {
        return Err(Failure::NoMemory("for an object"));
    }
    let allocated = (OBJECTS / 2) as f64;
    Ok(Round {
        time: time / allocated,
        refills: refills as f64 * 1000.0 / allocated,
    })
}
