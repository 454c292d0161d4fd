//! uslub beside allocators for one thread: bumpalo, typed-arena and slab. `docs/when-not.md` has the
//! figures of a run. `cargo run --release -p uslub --example arenas`

use std::hint::black_box;
use std::time::Instant;

use bumpalo::Bump;
use slab::Slab;
use typed_arena::Arena;
use uslub::Cache;

/// Objects that live at once.
const LIVE: usize = 1000;
/// Measured rounds; each allocates all objects and ends them.
const ROUNDS: usize = 2000;

type Node = [u64; 6];

/// The least nanoseconds an object of five attempts.
fn measure(mut round: impl FnMut()) -> f64 {
    let attempt = |_| {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| round());
        start.elapsed().as_secs_f64() * 1e9 / (ROUNDS * LIVE) as f64
    };
    (0..5).map(attempt).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = |n: usize| -> Node { [n as u64; 6] };
    println!("48 bytes, {LIVE} objects at once, one thread: ns for an allocation and its end");

    let mut bump = Bump::new();
    let figure = measure(|| {
        (0..LIVE).for_each(|n| {
            black_box(bump.alloc(node(n)));
        });
        bump.reset();
    });
    println!("bumpalo      {figure:5.1}");

    let figure = measure(|| {
        let arena = Arena::with_capacity(LIVE);
        (0..LIVE).for_each(|n| {
            black_box(arena.alloc(node(n)));
        });
    });
    println!("typed-arena  {figure:5.1}");

    let mut slots = Slab::with_capacity(LIVE);
    let mut keys = Vec::with_capacity(LIVE);
    let figure = measure(|| {
        keys.extend((0..LIVE).map(|n| slots.insert(node(n))));
        keys.drain(..).for_each(|key| {
            black_box(slots.remove(key));
        });
    });
    println!("slab         {figure:5.1}");

    let cache = Cache::new("node")?;
    let mut objects = Vec::with_capacity(LIVE);
    let figure = measure(|| {
        objects.extend((0..LIVE).map(|n| cache.alloc(node(n)).expect("memory")));
        black_box(&objects);
        objects.clear();
    });
    println!("uslub        {figure:5.1}");

    let mut boxes = Vec::with_capacity(LIVE);
    let figure = measure(|| {
        boxes.extend((0..LIVE).map(|n| Box::new(node(n))));
        black_box(&boxes);
        boxes.clear();
    });
    println!("Box, malloc  {figure:5.1}");
    Ok(())
}
