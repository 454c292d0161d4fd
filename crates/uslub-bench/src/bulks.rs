//! Allocates and frees N objects: with a call for each object, or with one bulk call. P2, K and
//! seed 2 use it.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ptr::null_mut;

use uslub_core::Gfp;
use uslub_linux::Linux;

use crate::error::Failure;
use crate::floor::Floor;
use crate::quiet::nanoseconds_a_step;
use crate::strategy::Strategy;

/// Number of different start positions of an array, in words.
const PLACES: usize = 512;
/// Objects in the largest array.
const MOST: usize = 250;

/// Memory for an array of objects. The array starts at another position each time, because some
/// positions cost a processor 10 ns a call. Every competitor gets the same positions in turn.
pub struct Places {
    room: Page<[*mut u8; PLACES + MOST]>,
    /// The next position of each competitor.
    next: BTreeMap<&'static str, usize>,
}

/// A value on its own page.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page<T>(pub T);

impl Places {
    /// The start state, equal for every competitor.
    pub const fn new() -> Self {
        Self {
            room: Page([null_mut(); PLACES + MOST]),
            next: BTreeMap::new(),
        }
    }

    /// An array of `n` objects at the next position of competitor `who`.
    pub fn array(&mut self, who: &'static str, n: usize) -> &mut [*mut u8] {
        let next = self.next.entry(who).or_default();
        let at = *next;
        *next = (at + 37) % PLACES;
        &mut self.room.0[at..at + n]
    }

    /// Nanoseconds per object of competitor `who`'s work on arrays of `n` objects.
    pub fn time(
        &mut self,
        who: &'static str,
        loops: usize,
        n: usize,
        mut work: impl FnMut(&mut [*mut u8]) -> bool,
    ) -> Result<f64, Failure> {
        let objects = self.array(who, n);
        let mut done = true;
        let time = nanoseconds_a_step(loops, |mut range| {
            done &= range.all(|_| work(black_box(&mut *objects)));
        });
        if done {
            Ok(time / n as f64)
        } else {
            Err(Failure::NoMemory("for a bulk"))
        }
    }
}

/// Allocates and frees all objects with single calls; returns whether there was memory.
#[inline(never)]
pub fn one_by_one(strategy: &Strategy<'_, Linux>, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    for object in objects.iter_mut() {
        *object = slub.alloc(cache, Gfp::KERNEL);
    }
    let done = objects.last().is_none_or(|last| !last.is_null());
    for &mut object in objects {
        // SAFETY: the object is of this cache and is freed once; null is ignored.
        unsafe { slub.free(cache, object) };
    }
    done
}

/// Like [`one_by_one`], with one bulk call each way.
#[inline(never)]
pub fn at_once(strategy: &Strategy<'_, Linux>, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    let done = slub.alloc_bulk(cache, Gfp::KERNEL, objects);
    if done {
        // SAFETY: the objects are of this cache and are freed once.
        unsafe { slub.free_bulk(cache, objects) };
    }
    done
}

/// Like [`at_once`], but the free does not check each object.
#[inline(never)]
pub fn at_once_unchecked(strategy: &Strategy<'_, Linux>, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    let done = slub.alloc_bulk(cache, Gfp::KERNEL, objects);
    if done {
        // SAFETY: the objects are of this cache and are freed once.
        unsafe { slub.free_bulk_unchecked(cache, objects) };
    }
    done
}

/// Only the two restartable sequences of the bulk calls, if the thread has them.
#[inline(never)]
pub fn sequences(floor: Option<&Floor>, objects: &mut [*mut u8]) -> bool {
    if let Some(floor) = floor {
        floor.pop_and_push_many(objects);
    }
    true
}
