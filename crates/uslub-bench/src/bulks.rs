//! N objects, allocated and freed: one by one, or by one call each.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ptr::null_mut;

use uslub_core::Gfp;
use uslub_linux::Linux;

use crate::error::Failure;
use crate::floor::Floor;
use crate::quiet::nanoseconds_a_step;
use crate::strategy::Strategy;

/// Words by whose multiples places differ.
const PLACES: usize = 512;
/// Objects of the largest array.
const MOST: usize = 250;

/// Room for an array of objects, which lies elsewhere each time, and for everybody in the same
/// places: some cost a processor 10 ns a call.
pub struct Places {
    room: Page<[*mut u8; PLACES + MOST]>,
    /// Where who comes next.
    next: BTreeMap<&'static str, usize>,
}

/// On a page of its own.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page<T>(pub T);

impl Places {
    /// For everybody the same.
    pub const fn new() -> Self {
        Self {
            room: Page([null_mut(); PLACES + MOST]),
            next: BTreeMap::new(),
        }
    }

    /// An array of `n`, where it is this one's turn.
    pub fn array(&mut self, who: &'static str, n: usize) -> &mut [*mut u8] {
        let next = self.next.entry(who).or_default();
        let at = *next;
        *next = (at + 37) % PLACES;
        &mut self.room.0[at..at + n]
    }

    /// Nanoseconds an object of this one's work with arrays of `n`.
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

/// Allocates and frees all, each by a call of its own; whether there was memory.
#[inline(never)]
pub fn one_by_one(strategy: &Strategy<'_, Linux>, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    for object in objects.iter_mut() {
        *object = slub.alloc(cache, Gfp::KERNEL);
    }
    let done = objects.last().is_none_or(|last| !last.is_null());
    for &mut object in objects {
        // SAFETY: this cache's, freed once; null is ignored.
        unsafe { slub.free(cache, object) };
    }
    done
}

/// The same by one call each.
#[inline(never)]
pub fn at_once(strategy: &Strategy<'_, Linux>, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    let done = slub.alloc_bulk(cache, Gfp::KERNEL, objects);
    if done {
        // SAFETY: this cache's, freed once.
        unsafe { slub.free_bulk(cache, objects) };
    }
    done
}

/// The same without a look at each object.
#[inline(never)]
pub fn at_once_unchecked(strategy: &Strategy<'_, Linux>, objects: &mut [*mut u8]) -> bool {
    let Strategy { slub, cache } = strategy;
    let done = slub.alloc_bulk(cache, Gfp::KERNEL, objects);
    if done {
        // SAFETY: this cache's, freed once.
        unsafe { slub.free_bulk_unchecked(cache, objects) };
    }
    done
}

/// The two sequences of bulk calls alone, where there are such.
#[inline(never)]
pub fn sequences(floor: Option<&Floor>, objects: &mut [*mut u8]) -> bool {
    if let Some(floor) = floor {
        floor.pop_and_push_many(objects);
    }
    true
}
