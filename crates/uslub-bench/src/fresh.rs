//! Bulks from fresh slabs: objects as many as so much memory holds are allocated in bulks of a slab
//! each, live all at once, and are freed in the same bulks.
//!
//! What was freed went back to the page layer before, so that each bulk uses up a fresh slab, and
//! the memory is there already.

use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use uslub_core::Gfp;
use uslub_linux::Linux;

use crate::error::Failure;
use crate::quiet::nanoseconds_a_step;
use crate::strategy::Strategy;

/// Objects in a slab as on the machine of the first thread, which had eight CPUs.
pub const OBJECTS: &str = "slab_min_objects=20";

/// The order of a slab's objects, as a setting.
pub fn order(random: bool) -> &'static str {
    if random {
        "slab_freelist_random=1"
    } else {
        "slab_freelist_random=0"
    }
}

/// Slabs whose pages a cache takes at once, at most.
const AHEAD: usize = 64;

/// Memory of all competitors.
pub struct Room {
    /// The array of a round.
    objects: Vec<*mut u8>,
    /// More bytes than the processor's caches have.
    others: Vec<u8>,
}

impl Room {
    /// For objects of so many bytes that all in all take `live` bytes, `batch` a bulk.
    pub fn new(live: usize, size: usize, batch: usize) -> Self {
        Self {
            objects: vec![null_mut(); (live / (batch * size)).max(1) * batch],
            others: vec![0; live.min(64 << 20)],
        }
    }

    /// Writes the processor's caches full of other things, for what a round has left there would be
    /// written back in the time of the next one; the array.
    fn begin(&mut self) -> &mut [*mut u8] {
        for byte in &mut self.others {
            *byte = byte.wrapping_add(1);
        }
        black_box(&mut self.others);
        &mut self.objects
    }
}

/// Nanoseconds an object.
pub struct Times {
    /// Of its allocation.
    pub alloc: f64,
    /// Of its free.
    pub free: f64,
}

/// Allocates all objects, a slab a bulk, and frees them likewise; nobody uses them.
pub fn round(
    strategy: &Strategy<'_, Linux>,
    room: &mut Room,
    batch: usize,
) -> Result<Times, Failure> {
    let Strategy { slub, cache } = strategy;
    slub.shrink(cache);
    let slabs = strategy.count("alloc_slab")?;
    let objects = room.begin();
    let bulks = objects.len() / batch;
    let mut done = true;
    let alloc = nanoseconds_a_step(bulks, |range| {
        done &= objects[range.start * batch..range.end * batch]
            .chunks_exact_mut(batch)
            .all(|bulk| slub.alloc_bulk(cache, Gfp::KERNEL, black_box(bulk)));
    });
    let slabs = strategy.count("alloc_slab")? - slabs;
    let free = nanoseconds_a_step(bulks, |range| {
        for bulk in objects[range.start * batch..range.end * batch].chunks_exact_mut(batch) {
            // SAFETY: this cache's, freed once; null is ignored.
            unsafe { slub.free_bulk(cache, black_box(bulk)) };
        }
    });
    if !done {
        return Err(Failure::NoMemory("for the objects of a round"));
    }
    // The pages of some slabs may have been taken ahead.
    if !(bulks..bulks + AHEAD).contains(&(slabs as usize)) {
        return Err(Failure::Wrong(format!(
            "{bulks} bulks took {slabs} fresh slabs: not every one a whole one"
        )));
    }
    let batch = batch as f64;
    Ok(Times {
        alloc: alloc / batch,
        free: free / batch,
    })
}

/// What no allocator can leave out: addresses go into the same array, with one compare-and-swap a
/// bulk that takes them from whoever else might; and each is looked at again.
pub fn least(size: usize, room: &mut Room, batch: usize) -> Times {
    let next = AtomicUsize::new(size);
    let objects = room.begin();
    let bulks = objects.len() / batch;
    let alloc = nanoseconds_a_step(bulks, |range| {
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
    let free = nanoseconds_a_step(bulks, |range| {
        for bulk in objects[range.start * batch..range.end * batch].chunks_exact(batch) {
            black_box(black_box(bulk).iter().fold(0, |all, &o| all | o as usize));
        }
    });
    let batch = batch as f64;
    Times {
        alloc: alloc / batch,
        free: free / batch,
    }
}
