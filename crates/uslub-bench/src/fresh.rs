//! Bulks from fresh slabs. Each bulk allocates the objects of one slab. All objects are live at
//! once, and are freed in the same bulks. Seed 0 and K use it.
//!
//! Before a round, all free slabs go back to the page layer, so each bulk consumes a fresh slab.
//! The memory itself stays committed.

use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use uslub_core::Gfp;
use uslub_linux::Linux;

use crate::error::Failure;
use crate::quiet::nanoseconds_a_step;
use crate::strategy::Strategy;

/// Objects per slab on the machine of the thread of seed 0, which had eight CPUs.
pub const OBJECTS: &str = "slab_min_objects=20";

/// The setting for the order of a slab's objects.
pub fn order(random: bool) -> &'static str {
    if random {
        "slab_freelist_random=1"
    } else {
        "slab_freelist_random=0"
    }
}

/// Most slabs whose pages a cache takes at once.
const AHEAD: usize = 64;

/// The arrays that all competitors share.
pub struct Room {
    /// The objects of a round.
    objects: Vec<*mut u8>,
    /// A buffer larger than the processor's caches.
    others: Vec<u8>,
}

impl Room {
    /// Memory for `live` bytes of objects of `size` bytes, with `batch` objects a bulk.
    pub fn new(live: usize, size: usize, batch: usize) -> Self {
        Self {
            objects: vec![null_mut(); (live / (batch * size)).max(1) * batch],
            others: vec![0; live.min(64 << 20)],
        }
    }

    /// Fills the processor's caches with other data. Otherwise the next round would pay for the
    /// write-back of this round's lines. Returns the array of objects.
    fn begin(&mut self) -> &mut [*mut u8] {
        for byte in &mut self.others {
            *byte = byte.wrapping_add(1);
        }
        black_box(&mut self.others);
        &mut self.objects
    }
}

/// Nanoseconds per object.
pub struct Times {
    /// Time of the allocation.
    pub alloc: f64,
    /// Time of the free.
    pub free: f64,
}

/// Allocates all objects, one slab a bulk, and frees them in the same bulks, without using them.
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
            // SAFETY: the objects are of this cache and are freed once; null is ignored.
            unsafe { slub.free_bulk(cache, black_box(bulk)) };
        }
    });
    if !done {
        return Err(Failure::NoMemory("for the objects of a round"));
    }
    // The cache may have taken the pages of further slabs in advance.
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

/// The work that no allocator can avoid. It writes the addresses into the same array and reads each
/// address again. One compare-and-swap a bulk claims the addresses against other threads.
pub fn least(size: usize, room: &mut Room, batch: usize) -> Times {
    let next = AtomicUsize::new(size);
    let objects = room.begin();
    let bulks = objects.len() / batch;
    let alloc = nanoseconds_a_step(bulks, |range| {
        for bulk in objects[range.start * batch..range.end * batch].chunks_exact_mut(batch) {
            let bulk = black_box(bulk);
            // Relaxed: no other thread uses the word.
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
