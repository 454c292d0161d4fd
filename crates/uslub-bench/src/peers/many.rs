//! P2: N objects are allocated, then all N are freed.

use std::cell::RefCell;
use std::hint::black_box;

use uslub_core::Gfp;
use uslub_linux::Linux;

use super::dpdk::{DPDK, Pool};
use super::face::{Face, OURS};
use super::row::{Aim, PeerRow, Rounds};
use super::{More, Peers, Section};
use crate::bench::Bench;
use crate::bulks::Places;
use crate::error::Failure;
use crate::floor::{FLOOR, Floor};
use crate::linux::{self, Pinned};
use crate::output::Chart;
use crate::quiet::nanoseconds_a_step;
use crate::strategy::Strategy;

/// Bytes of an object.
const SIZE: usize = 256;
/// Objects per round, and the time of DPDK's mempool per object, in nanoseconds, on the machine of
/// the goals. The time replaces a measurement if DPDK is not installed.
const NUMBERS: [(usize, Option<f64>); 14] = [
    (1, None),
    (2, None),
    (3, None),
    (4, None),
    (8, Some(1.4)),
    (16, None),
    (30, None),
    (32, Some(0.45)),
    (34, None),
    (48, None),
    (64, None),
    (128, None),
    (158, None),
    (250, Some(0.28)),
];
/// Objects of DPDK's pool.
const POOL: usize = 4095;
/// A difference up to this counts as a tie, in nanoseconds.
const TIE_NS: f64 = 0.3;

/// Measures the part.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let cache = Strategy::new(linux::steady()?, SIZE, &["sheaf_capacity=250"])?;
    let dpdk = peers.dpdk();
    let pool = dpdk.map(|dpdk| dpdk.pool(POOL, SIZE)).transpose()?;
    let mut rows = Vec::new();
    let mut lines = [const { Vec::new() }; 4];
    for (n, known) in NUMBERS {
        bench.says(&format!("P2, {n} objects"));
        let (malloc, bulk, pooled) = number(bench, peers, &cache, pool.as_ref(), n, known)?;
        let of_pool = pooled.as_ref().and_then(|row| row.figures.best);
        let single = &malloc.figures;
        let figures = [single.best, single.ours, bulk.figures.ours, of_pool];
        for (line, figure) in lines.iter_mut().zip(figures) {
            line.push((n as f64, figure.unwrap_or(f64::NAN)));
        }
        rows.extend([malloc, bulk]);
        rows.extend(pooled);
    }
    cache.check_at_rest()?;
    let mut section = Section::new(
        "P2",
        "N objects, allocated and freed",
        "One CPU; the bulk face takes all objects by one call and trusts its caller, as a pool of network buffers does. DPDK's \
         mempool, where it is installed, is compiled for this machine and inlined into its loop; ours is called. \
         What counts of each round is when the core was least shared.",
        rows,
    );
    let [best, ours, bulk, of_pool] = lines;
    let chart = Chart::curves("Allocate and free N objects", "objects", "ns an object");
    let chart = chart.with("best peer", best).with("uslub, malloc", ours);
    let chart = chart.with("uslub, bulk", bulk);
    section.charts = vec![match pool {
        Some(_) => chart.with("DPDK, bulk", of_pool),
        None => chart,
    }];
    Ok(section)
}

/// The rows of `n` objects: by single calls, by bulk calls, and against DPDK's mempool.
fn number(
    bench: &Bench,
    peers: &Peers,
    cache: &Strategy<'_, Linux>,
    pool: Option<&Pool<'_>>,
    n: usize,
    known: Option<f64>,
) -> Result<(PeerRow, PeerRow, Option<PeerRow>), Failure> {
    // A tenth of this is too short: the processor powers its wide registers up after each pause.
    let objects = bench.size.pick(1_000, 1_000_000, 1_000_000);
    let row = |what, rounds: &Rounds, aim| {
        let name = format!("{n} of {SIZE} B, {what}");
        PeerRow::new("P2", name, "ns/object", rounds, aim)
    };
    let places = RefCell::new(Places::new());
    let loops = (objects / n).max(1);
    let one_by_one = |face: &Face| malloc(face, loops, places.borrow_mut().array(face.name, n));
    let floor = Floor::here()?.map(Face::of_floor);
    let bare = floor
        .as_ref()
        .map(|face| -> More<'_> { (FLOOR, Box::new(|| one_by_one(face))) });
    let single = peers.each_and(bench, one_by_one, bare.into_iter().collect())?;
    let single = row("malloc", &single, Aim::ratio(1.0).tie(TIE_NS));
    places.replace(Places::new());
    let at_once = || bulk(cache, loops, places.borrow_mut().array(OURS, n));
    let mut more: Vec<More<'_>> = vec![(OURS, Box::new(at_once))];
    if let Some(floor) = Floor::here()? {
        let bare = || Ok(sequences(floor, loops, places.borrow_mut().array(FLOOR, n)));
        more.push((FLOOR, Box::new(bare)));
    }
    if let Some(pool) = pool {
        let pooled = || pooled(pool, loops, places.borrow_mut().array(DPDK, n));
        more.push((DPDK, Box::new(pooled)));
    }
    let all = peers.each_and(bench, one_by_one, more)?;
    let aim = match known.filter(|_| pool.is_none()) {
        Some(limit) => Aim::limit(limit),
        None if n == 1 => Aim::ratio(1.0),
        None => Aim::ratio(0.5),
    };
    let mut bulk = row("bulk", &all.without(DPDK), aim);
    if let Some(limit) = known {
        bulk.note = format!("DPDK's mempool, pinned and inlined, elsewhere: {limit} ns");
    }
    let against = |_| row("bulk, beside DPDK", &all.against(DPDK), Aim::ratio(1.0));
    Ok((single, bulk, pool.map(against)))
}

/// Nanoseconds per object with single calls.
#[inline(never)]
fn malloc(face: &Face, loops: usize, objects: &mut [*mut u8]) -> Result<f64, Failure> {
    face.enter();
    let time = nanoseconds_a_step(loops, |range| {
        for _ in range {
            for object in black_box(&mut *objects).iter_mut() {
                *object = face.alloc(SIZE);
            }
            for &mut object in black_box(&mut *objects) {
                // SAFETY: the object is of this allocator and is freed once.
                unsafe { face.free(object) };
            }
        }
    });
    Ok(time / objects.len() as f64)
}

/// Nanoseconds per object with DPDK's mempool, both calls inlined.
fn pooled(pool: &Pool<'_>, loops: usize, objects: &mut [*mut u8]) -> Result<f64, Failure> {
    let mut done = true;
    let time = nanoseconds_a_step(loops, |range| done &= pool.rounds(objects, range.len()));
    if done {
        Ok(time / objects.len() as f64)
    } else {
        Err(Failure::NoMemory("for a bulk of DPDK's"))
    }
}

/// Nanoseconds per object with the floor, both sequences inlined.
#[inline(never)]
fn sequences(floor: &Floor, loops: usize, objects: &mut [*mut u8]) -> f64 {
    let time = nanoseconds_a_step(loops, |range| {
        for _ in range {
            floor.pop_and_push_many(black_box(&mut *objects));
        }
    });
    time / objects.len() as f64
}

/// Nanoseconds per object with one bulk call each way.
#[inline(never)]
fn bulk(
    cache: &Strategy<'_, Linux>,
    loops: usize,
    objects: &mut [*mut u8],
) -> Result<f64, Failure> {
    let Strategy { slub, cache } = cache;
    let mut done = true;
    let time = nanoseconds_a_step(loops, |mut range| {
        done &= range.all(|_| {
            let objects = black_box(&mut *objects);
            let done = slub.alloc_bulk(cache, Gfp::KERNEL, objects);
            if done {
                // SAFETY: the objects are of this cache and are freed once.
                unsafe { slub.free_bulk_unchecked(cache, objects) };
            }
            done
        });
    });
    if done {
        Ok(time / objects.len() as f64)
    } else {
        Err(Failure::NoMemory("for a bulk"))
    }
}
