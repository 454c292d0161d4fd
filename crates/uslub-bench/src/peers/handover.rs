//! P4: one CPU allocates objects, another CPU frees them.

use std::hint::black_box;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use uslub_core::Gfp;
use uslub_linux::Linux;

use super::carried::Carried;
use super::dpdk::{DPDK, Pool};
use super::face::{Face, OURS};
use super::row::{Aim, PeerRow, Rounds};
use super::{More, Peers, Section};
use crate::bench::Bench;
use crate::bulks::Page;
use crate::error::Failure;
use crate::floor::FLOOR;
use crate::linux::{self, Pinned};
use crate::measure::nanoseconds;
use crate::ring::{Ring, wait_until};
use crate::strategy::Strategy;
use crate::threads::joined;

/// Sizes of the objects, in bytes.
const SIZES: [usize; 2] = [64, 256];
/// Objects per batch, and the time of DPDK's mempool per object, in nanoseconds, on the machine of
/// the goals. The time replaces a measurement if DPDK is not installed.
const BATCHES: [(usize, Option<f64>); 2] = [(32, None), (4096, Some(9.6))];
/// Capacity of the ring in batches.
const DEPTH: usize = 4;
/// The largest sheaves, a barn for all objects in transit, and slabs of the largest order that the
/// kernel allocates routinely. For fairness: DPDK's pool has its largest caches and a ring for all
/// of its objects.
const OPTIONS: [&str; 3] = [
    "sheaf_capacity=500",
    "max_full_sheaves=100",
    "slab_min_order=3",
];
/// Batches that the floor reuses in turn. No batch is rewritten before the consumer has read it.
const IN_TURN: usize = 2 * DEPTH;
/// Objects of DPDK's pool: the maximum in transit plus the capacity of its caches.
const POOL: usize = (1 << 16) - 1;

/// Measures the part.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    let mut rows = Vec::new();
    for size in SIZES {
        for (batch, known) in BATCHES {
            bench.says(&format!("P4, batches of {batch} of {size} bytes"));
            rows.extend(batches(bench, peers, size, batch, known)?);
        }
    }
    Ok(Section::new(
        "P4",
        "One CPU allocates, another frees",
        "The producer allocates a batch and writes a word into each object, the consumer reads it and frees them. What \
         counts is the time in these loops on both CPUs, not the waiting for each other. For bulks our cache has its largest sheaves (500 \
         objects), a barn for 100 full ones and slabs of 32 KiB; DPDK's pool its largest caches (512) and a ring for all of its objects. \
         The floor of malloc is restartable sequences called once an object, on stacks of 250 that are handed over as they are; that of \
         the bulks is no allocator at all: the same objects again and again.",
        rows,
    ))
}

/// The rows of one size of objects and batches.
fn batches(
    bench: &Bench,
    peers: &Peers,
    size: usize,
    batch: usize,
    known: Option<f64>,
) -> Result<Vec<PeerRow>, Failure> {
    let cpus = linux::two_cpus();
    let objects = bench.size.pick(1 << 14, 1 << 18, 1 << 22);
    let row = |face, rounds: &Rounds, aim| {
        let name = format!("batches of {batch} of {size} B, {face}");
        PeerRow::new("P4", name, "ns/object", rounds, aim)
    };
    let one_by_one = |face: &Face| single(face, size, cpus, objects, batch);
    let least = Carried::new((DEPTH + 2) * batch, size)?;
    let least = least
        .iter()
        .map(|least| -> More<'_> { (FLOOR, Box::new(|| carried(least, cpus, objects, batch))) });
    let malloc = peers.each_and(bench, one_by_one, least.collect())?;
    let malloc = row("malloc", &malloc, Aim::ratio(1.0).tie(0.3));
    let cache = Strategy::new(linux::steady()?, size, &OPTIONS)?;
    let pool = peers.dpdk().map(|dpdk| dpdk.pool(POOL, size)).transpose()?;
    let at_once = || bulk(&cache, cpus, objects, batch);
    let mut more: Vec<More<'_>> = vec![(OURS, Box::new(at_once))];
    if let Some(pool) = &pool {
        more.push((DPDK, Box::new(|| pooled(pool, cpus, objects, batch))));
    }
    more.push((FLOOR, Box::new(|| bare(size, cpus, objects, batch))));
    let all = peers.each_and(bench, one_by_one, more)?;
    let aim = Aim::ratio(0.5);
    let aim = (known.filter(|_| pool.is_none())).map_or(aim, |limit| aim.and_limit(limit));
    let mut bulk = row("bulk", &all.without(DPDK), aim);
    if let Some(limit) = known {
        bulk.note = format!("DPDK's mempool, elsewhere: {limit} ns");
    }
    let mut rows = vec![malloc, bulk];
    if pool.is_some() {
        let all = all.against(DPDK);
        rows.push(row("bulk, beside DPDK", &all, Aim::ratio(1.0)));
    }
    cache.check_at_rest()?;
    Ok(rows)
}

/// The time of single calls.
fn single(
    face: &Face,
    size: usize,
    cpus: [usize; 2],
    objects: usize,
    batch: usize,
) -> Result<f64, Failure> {
    let alloc = |batch: &mut [*mut u8]| {
        batch.fill_with(|| face.alloc(size));
        batch.last().is_none_or(|last| !last.is_null())
    };
    let free = |batch: &mut [*mut u8]| {
        for &mut object in batch {
            // SAFETY: the object is of this allocator and is freed once.
            unsafe { face.free(object) };
        }
    };
    hand_over(cpus, objects, batch, || face.enter_for_now(), alloc, free)
}

fn bulk(
    cache: &Strategy<'_, Linux>,
    cpus: [usize; 2],
    objects: usize,
    batch: usize,
) -> Result<f64, Failure> {
    let Strategy { slub, cache } = cache;
    let alloc = |batch: &mut [*mut u8]| slub.alloc_bulk(cache, Gfp::KERNEL, batch);
    let free = |batch: &mut [*mut u8]| {
        // SAFETY: the objects are of this cache and are freed once.
        unsafe { slub.free_bulk_unchecked(cache, batch) };
    };
    hand_over(cpus, objects, batch, || (), alloc, free)
}

/// The time with DPDK's mempool.
fn pooled(pool: &Pool<'_>, cpus: [usize; 2], objects: usize, batch: usize) -> Result<f64, Failure> {
    let alloc = |batch: &mut [*mut u8]| pool.get(batch);
    // SAFETY: the objects are of this pool and are freed once.
    let free = |batch: &mut [*mut u8]| unsafe { pool.put(batch) };
    hand_over(cpus, objects, batch, || pool.enter(), alloc, free)
}

/// The time of the restartable sequences alone, one an object, on stacks that are handed over.
fn carried(
    carried: &Carried,
    cpus: [usize; 2],
    objects: usize,
    batch: usize,
) -> Result<f64, Failure> {
    // Called through a pointer, like the functions of other allocators.
    let take = black_box(Carried::alloc as fn(&Carried) -> *mut u8);
    let put = black_box(Carried::free as fn(&Carried, *mut u8));
    let alloc = |batch: &mut [*mut u8]| {
        batch.fill_with(|| take(carried));
        true
    };
    let free = |batch: &mut [*mut u8]| batch.iter().for_each(|&object| put(carried, object));
    hand_over(cpus, objects, batch, || (), alloc, free)
}

/// The time without an allocator: the same objects circulate, so only their lines and addresses
/// move between the CPUs.
fn bare(size: usize, cpus: [usize; 2], objects: usize, batch: usize) -> Result<f64, Failure> {
    let count = IN_TURN * batch;
    let mut memory = vec![Page([0u8; 4096]); (count * size).div_ceil(4096)];
    let start = memory.as_mut_ptr().expose_provenance();
    let next = AtomicUsize::new(0);
    let alloc = |batch: &mut [*mut u8]| {
        // Relaxed: only the producer uses the counter.
        let first = next.load(Relaxed);
        for (at, object) in (first..).zip(batch.iter_mut()) {
            *object = with_exposed_provenance_mut(start + at * size);
        }
        // Relaxed: as above.
        next.store((first + batch.len()) % count, Relaxed);
        true
    };
    hand_over(cpus, objects, batch, || (), alloc, |_| ())
}

/// Nanoseconds per object in both loops together. Each thread holds the value from `enter`.
fn hand_over<T>(
    [from, to]: [usize; 2],
    objects: usize,
    batch: usize,
    enter: impl Fn() -> T + Sync,
    alloc: impl Fn(&mut [*mut u8]) -> bool + Sync,
    free: impl Fn(&mut [*mut u8]) + Sync,
) -> Result<f64, Failure> {
    let ring = Ring::new((DEPTH * batch).next_power_of_two());
    let batches = objects / batch;
    thread::scope(|scope| {
        let producer = scope.spawn(|| {
            // If pinning fails, the thread stays unpinned.
            let _pinned = Pinned::to(from).ok();
            let _entered = enter();
            produce(&ring, batches, batch, &alloc)
        });
        let consumer = scope.spawn(|| {
            let _pinned = Pinned::to(to).ok();
            let _entered = enter();
            consume(&ring, batches, batch, &free)
        });
        let (sent, received) = (joined(producer), joined(consumer));
        Ok((sent? + received?) / (batches * batch) as f64)
    })
}

/// Nanoseconds of all allocations, each with a word written.
fn produce(
    ring: &Ring,
    batches: usize,
    batch: usize,
    alloc: impl Fn(&mut [*mut u8]) -> bool,
) -> Result<f64, Failure> {
    let mut array = vec![null_mut(); batch];
    let mut spent = 0.0;
    for number in 0..batches {
        let (time, there) = nanoseconds(|| {
            let there = alloc(&mut array);
            for &object in array.iter().take_while(|object| !object.is_null()) {
                // SAFETY: the object has at least 8 bytes, is aligned and is ours alone.
                unsafe { object.cast::<usize>().write(number) };
            }
            there
        });
        spent += time;
        if !there {
            // The consumer waits for every batch. An array of nulls ends the consumer.
            array.fill(null_mut());
        }
        wait_until(|| ring.try_put(&array));
        if !there {
            return Err(Failure::NoMemory("for a batch"));
        }
    }
    Ok(spent)
}

/// Nanoseconds of all frees, each with its word read.
fn consume(
    ring: &Ring,
    batches: usize,
    batch: usize,
    free: impl Fn(&mut [*mut u8]),
) -> Result<f64, Failure> {
    let mut array = vec![null_mut(); batch];
    let mut spent = 0.0;
    for number in 0..batches {
        let mut taken = 0;
        wait_until(|| {
            taken += ring.try_take(&mut array[taken..]);
            taken == batch
        });
        if array.iter().any(|object| object.is_null()) {
            return Ok(spent);
        }
        let (time, right) = nanoseconds(|| {
            // SAFETY: the object is live, and the producer wrote the word.
            let read = |&object: &*mut u8| unsafe { object.cast::<usize>().read() };
            let right = array.iter().all(|object| read(object) == number);
            free(&mut array);
            right
        });
        spent += time;
        if !right {
            return Err(Failure::Wrong("an object is not what was sent".into()));
        }
    }
    Ok(spent)
}
