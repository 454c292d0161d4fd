//! P1: one object is allocated and freed, repeatedly.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::mem::MaybeUninit;

use uslub::Object;

use super::face::{Face, OURS, SYSTEM};
use super::row::{Aim, PeerRow, Rounds};
use super::{More, Peers, Section, in_turn};
use crate::bench::Bench;
use crate::error::Failure;
use crate::floor::{FLOOR, Floor};
use crate::linux::Pinned;
use crate::quiet::nanoseconds_a_step;

/// Sizes of the objects, in bytes.
const SIZES: [usize; 2] = [64, 256];
/// A difference up to this counts as a tie, in nanoseconds.
const TIE_NS: f64 = 0.3;

/// Measures the part.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let loops = bench.size.pick(10_000, 500_000, 4_000_000);
    let mut rows = Vec::new();
    for size in SIZES {
        bench.says(&format!("P1, a pair of {size} bytes"));
        let rounds = by_malloc(bench, peers, loops, [size; 2])?;
        let aim = Aim::ratio(1.0).tie(TIE_NS);
        let name = format!("pair of {size} B, malloc");
        rows.push(PeerRow::new("P1", name, "ns", &rounds, aim));
    }
    bench.says("P1, pairs of two sizes");
    let rounds = by_malloc(bench, peers, loops, SIZES)?;
    let aim = Aim::ratio(1.05).tie(TIE_NS);
    let name = "pairs of 64 and 256 B in turn, malloc";
    rows.push(PeerRow::new("P1", name, "ns", &rounds, aim));
    rows.push(global::<{ SIZES[0] }>(bench, loops)?);
    rows.push(typed::<{ SIZES[0] }>(bench, peers, loops)?);
    rows.push(global::<{ SIZES[1] }>(bench, loops)?);
    rows.push(typed::<{ SIZES[1] }>(bench, peers, loops)?);
    Ok(Section::new(
        "P1",
        "One object, allocated and freed",
        "The shortest path of all, on one CPU. Nothing is written into the objects. What counts of each round is when the core was least shared.",
        rows,
    ))
}

/// The rounds of all allocators and the floor, by malloc and free.
fn by_malloc(
    bench: &Bench,
    peers: &Peers,
    loops: usize,
    sizes: [usize; 2],
) -> Result<Rounds, Failure> {
    let floor = Floor::here()?.map(Face::of_floor);
    let of = |face: &Face| Ok(pairs(face, loops, sizes));
    let floor = floor
        .as_ref()
        .map(|face| -> More<'_> { (FLOOR, Box::new(|| of(face))) });
    peers.each_and(bench, of, floor.into_iter().collect())
}

/// The floor with a constant size, inlined by the compiler.
pub fn bare<const SIZE: usize>(loops: usize) -> Result<Option<More<'static>>, Failure> {
    let of =
        move |floor: &Floor| direct(loops, || floor.pop(SIZE), |object| floor.push(SIZE, object));
    let floor = Floor::here()?;
    Ok(floor.map(|floor| -> More<'_> { (FLOOR, Box::new(move || Ok(of(floor)))) }))
}

/// Nanoseconds per pair, with two sizes in turn.
#[inline(never)]
fn pairs(face: &Face, loops: usize, sizes: [usize; 2]) -> f64 {
    face.enter();
    let time = nanoseconds_a_step(loops / 2, |range| {
        for _ in range {
            for size in sizes {
                let object = black_box(face.alloc(size));
                // SAFETY: the object is of this allocator and is freed once.
                unsafe { face.free(object) };
            }
        }
    });
    time / sizes.len() as f64
}

/// Nanoseconds per pair, with functions that the compiler can inline.
#[inline(always)]
pub fn direct(loops: usize, alloc: impl Fn() -> *mut u8, free: impl Fn(*mut u8)) -> f64 {
    nanoseconds_a_step(loops, |range| {
        for _ in range {
            free(black_box(alloc()));
        }
    })
}

/// The other allocators, called by name.
fn others<const SIZE: usize>(loops: usize) -> Vec<More<'static>> {
    #[cfg(feature = "peers")]
    let mut all: Vec<More<'_>> = super::linked::called_directly::<SIZE>(loops);
    #[cfg(not(feature = "peers"))]
    let mut all: Vec<More<'_>> = Vec::new();
    let system = move || {
        // SAFETY: malloc accepts any size.
        let alloc = || unsafe { libc::malloc(SIZE) }.cast();
        // SAFETY: the counterpart allocated the object; it is freed once.
        let free = |object: *mut u8| unsafe { libc::free(object.cast()) };
        Ok(direct(loops, alloc, free))
    };
    all.push((SYSTEM, Box::new(system)));
    all
}

/// Rust's heap on uslub, compared with the other allocators called by name.
fn global<const SIZE: usize>(bench: &Bench, loops: usize) -> Result<PeerRow, Failure> {
    bench.says(&format!("P1, a pair of {SIZE} bytes from Rust's heap"));
    let mut all = others::<SIZE>(loops);
    let ours = move || {
        // A `Box` knows its layout at compile time.
        let layout = const { Layout::new::<MaybeUninit<[u8; SIZE]>>() };
        // SAFETY: the size of the layout is not 0.
        let alloc = || unsafe { uslub::Uslub.alloc(layout) };
        // SAFETY: the counterpart allocated the object; it is freed once.
        let free = |object: *mut u8| unsafe { uslub::Uslub.dealloc(object, layout) };
        Ok(direct(loops, alloc, free))
    };
    all.push((OURS, Box::new(ours)));
    all.extend(bare::<SIZE>(loops)?);
    let rounds = in_turn(bench, all)?;
    let aim = Aim::ratio(0.9);
    let name = format!("pair of {SIZE} B, Rust's global allocator");
    Ok(PeerRow::new("P1", name, "ns", &rounds, aim))
}

/// A typed cache, compared with every malloc.
fn typed<const SIZE: usize>(
    bench: &Bench,
    peers: &Peers,
    loops: usize,
) -> Result<PeerRow, Failure> {
    bench.says(&format!("P1, a pair of {SIZE} bytes from a cache"));
    let mut ours = cache::<SIZE>(loops)?;
    let mut more: Vec<More<'_>> = vec![(OURS, Box::new(move || Ok(ours())))];
    more.extend(bare::<SIZE>(loops)?);
    let rounds = peers.each_and(bench, |face| Ok(pairs(face, loops, [SIZE; 2])), more)?;
    let name = format!("pair of {SIZE} B, Cache<T>");
    Ok(PeerRow::new("P1", name, "ns", &rounds, Aim::ratio(0.6)))
}

/// A round with a typed cache.
fn cache<const SIZE: usize>(loops: usize) -> Result<impl FnMut() -> f64, Failure> {
    let cache = uslub::Cache::<MaybeUninit<[u8; SIZE]>>::new("pair")
        .map_err(|error| Failure::Wrong(error.to_string()))?;
    let round = move || {
        nanoseconds_a_step(loops, |range| {
            for _ in range {
                if let Ok(object) = cache.alloc(MaybeUninit::uninit()) {
                    // Hides only the address, like the calls of the other competitors.
                    let address = black_box(Object::into_raw(object));
                    // SAFETY: `into_raw` released the object above.
                    drop(unsafe { Object::from_raw(address, &cache) });
                }
            }
        })
    };
    Ok(round)
}
