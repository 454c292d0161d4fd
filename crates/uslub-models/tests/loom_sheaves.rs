//! Taking and installing sheaves, in every order with a drain from another CPU.
//!
//! The slot operations are those of the lock bit, real code, or indivisible ones with a fence, as
//! restartable sequences are seen from outside. What is inside of a sequence is explored in
//! `tests/sequences.rs`.

#![cfg(loom)]

use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::tunables::Tunables;
use uslub_models::machine::Slots;
use uslub_models::model::{Cache, Model, Object, Slub, alloc, free};
use uslub_models::orders::{Thread, preemptions, spawn};

fn cache(slub: &Slub) -> &Cache {
    slub.caches().next().expect("a cache")
}

/// A model with sheaves of two objects, a slab of which is in use, and `held` objects of it; CPU 0
/// has sheaves.
fn sheaves_with(slots: Slots, held: usize) -> (Model, Vec<usize>) {
    let model = Model::new(2, Some(slots), Tunables::DEFAULT);
    let slub = model.slub;
    let args = CacheArgs {
        max_order: Some(0),
        min_objects: Some(1),
        sheaf_capacity: Some(2),
        ..CacheArgs::new("model", 512)
    };
    slub.create(&args).expect("a cache");
    let mut objects: Vec<*mut u8> = (0..8)
        .map(|_| slub.alloc(cache(slub), Gfp::KERNEL))
        .collect();
    for &object in &objects {
        model.watch_slab_of(cache(slub), object);
    }
    model.watch_node_of(cache(slub));
    model.watch_cache(cache(slub));
    model.watch_allocator();
    for object in objects.drain(held..) {
        // SAFETY: just allocated.
        unsafe { slub.free(cache(slub), object) };
    }
    model.watch_slots_of(cache(slub));
    (model, objects.into_iter().map(|o| o as usize).collect())
}

/// A thread on CPU 0 that frees some objects and then allocates so many.
fn user(slub: &'static Slub, objects: &[usize], allocs: usize) -> Thread<Vec<Object>> {
    let cache = cache(slub);
    let objects: Vec<_> = objects
        .iter()
        .map(|&o| Object::of(o as *mut u8, cache))
        .collect();
    spawn(0, move || {
        for object in objects {
            free(slub, cache, object, Gfp::KERNEL);
        }
        (0..allocs)
            .map(|_| alloc(slub, cache, Gfp::KERNEL))
            .collect()
    })
}

fn drain(slots: Slots, name: &str, frees: usize, allocs: usize) {
    let (model, objects) = sheaves_with(slots, frees);
    model.check(
        &format!("{name} and drain, {slots:?}"),
        preemptions(2),
        move |slub| {
            let user = user(slub, &objects, allocs);
            let drainer = spawn(1, move || slub.flush(cache(slub)));
            drainer.join().unwrap();
            user.join().unwrap()
        },
    );
}

#[test]
fn a_drain_meets_an_allocation() {
    drain(Slots::Locked, "allocation", 0, 1);
    drain(Slots::Restartable, "allocation", 0, 1);
}

#[test]
fn a_drain_meets_a_free() {
    drain(Slots::Locked, "free", 1, 0);
    drain(Slots::Restartable, "free", 1, 0);
}

#[test]
fn two_threads_share_the_slots_of_a_cpu() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let (model, objects) = sheaves_with(slots, 1);
        model.check(
            &format!("two on one CPU, {slots:?}"),
            preemptions(2),
            move |slub| {
                let threads = [user(slub, &objects, 0), user(slub, &[], 1)];
                threads
                    .into_iter()
                    .flat_map(|t| t.join().unwrap())
                    .collect()
            },
        );
    }
}
