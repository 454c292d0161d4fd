//! A slab's state, its node's lists and the list lock, in every order of the threads that use them.
//!
//! No sheaves: all allocations and frees come to the slabs. Each model runs with the state changed in one step, and
//! with the state changed under the slab's lock.

#![cfg(loom)]

use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::tunables::{Tunables, Tuning};
use uslub_models::model::{Cache, Model, Object, Slub, alloc, free};
use uslub_models::orders::{Thread, preemptions, spawn};

/// Objects of a slab in these models.
const OBJECTS: usize = 4;

fn cache(slub: &Slub) -> &Cache {
    slub.caches().next().expect("a cache")
}

/// A model whose threads find `taken` objects in use, of `slabs` slabs, and those objects.
fn slabs_with(slabs: usize, taken: usize, tuning: Tuning) -> (Model, Vec<usize>) {
    let tunables = Tunables {
        tuning,
        ..Tunables::DEFAULT
    };
    let model = Model::new(1, None, tunables);
    let slub = model.slub;
    let args = CacheArgs {
        max_order: Some(0),
        min_objects: Some(1),
        ..CacheArgs::new("model", 1024)
    };
    slub.create(&args).expect("a cache");
    assert_eq!(cache(slub).oo.objects as usize, OBJECTS);
    // All are taken once, so that freelists are made of links.
    let mut objects: Vec<*mut u8> = (0..slabs * OBJECTS)
        .map(|_| slub.alloc(cache(slub), Gfp::KERNEL))
        .collect();
    for &object in &objects {
        model.watch_slab_of(cache(slub), object);
    }
    model.watch_node_of(cache(slub));
    model.watch_cache(cache(slub));
    model.watch_allocator();
    for object in objects.drain(taken..) {
        // SAFETY: just allocated.
        unsafe { slub.free(cache(slub), object) };
    }
    (model, objects.into_iter().map(|o| o as usize).collect())
}

/// The two ways in which a state changes.
fn ways() -> [Tuning; 2] {
    [1, 0].map(|slab_state_lockfree| Tuning {
        slab_state_lockfree,
        ..Tuning::DEFAULT
    })
}

fn way(tuning: &Tuning) -> &'static str {
    ["locked", "lock-free"][tuning.slab_state_lockfree as usize]
}

fn held(slub: &Slub, object: usize) -> Object {
    Object::of(object as *mut u8, cache(slub))
}

/// A thread that frees some objects, one by one.
fn frees(slub: &'static Slub, objects: &[usize], gfp: Gfp) -> Thread<()> {
    let objects: Vec<_> = objects.iter().map(|&o| held(slub, o)).collect();
    spawn(0, move || {
        for object in objects {
            free(slub, cache(slub), object, gfp);
        }
    })
}

/// A thread that allocates so many objects, one by one.
fn allocs(slub: &'static Slub, count: usize) -> Thread<Vec<Object>> {
    spawn(0, move || {
        (0..count)
            .map(|_| alloc(slub, cache(slub), Gfp::KERNEL))
            .collect()
    })
}

#[test]
fn pushes_come_between_a_detach_and_its_optimistic_return() {
    for tuning in ways() {
        let (model, objects) = slabs_with(1, 2, tuning);
        let name = format!("push and detach, {}", way(&tuning));
        model.check(&name, preemptions(3), move |slub| {
            let frees = frees(slub, &objects, Gfp::KERNEL);
            let allocs = allocs(slub, 1);
            frees.join().unwrap();
            allocs.join().unwrap()
        });
    }
}

#[test]
fn pushes_of_two_threads_meet_a_detach() {
    for tuning in ways() {
        let (model, objects) = slabs_with(1, 3, tuning);
        let name = format!("two pushes and detach, {}", way(&tuning));
        model.check(&name, preemptions(1), move |slub| {
            let first = frees(slub, &objects[..1], Gfp::KERNEL);
            let second = frees(slub, &objects[1..2], Gfp::KERNEL);
            let kept = held(slub, objects[2]);
            let mut left = allocs(slub, 1).join().unwrap();
            first.join().unwrap();
            second.join().unwrap();
            left.push(kept);
            left
        });
    }
}

#[test]
fn a_full_slab_is_listed_by_its_first_free_and_by_no_other() {
    for tuning in ways() {
        let (model, objects) = slabs_with(1, OBJECTS, tuning);
        let name = format!("full to partial, {}", way(&tuning));
        model.check(&name, preemptions(1), move |slub| {
            let frees = [&objects[..1], &objects[1..2]].map(|o| frees(slub, o, Gfp::KERNEL));
            let mut left: Vec<_> = objects[2..].iter().map(|&o| held(slub, o)).collect();
            left.extend(allocs(slub, 1).join().unwrap());
            for thread in frees {
                thread.join().unwrap();
            }
            left
        });
    }
}

#[test]
fn the_last_free_of_a_slab_gives_it_back_though_others_look_for_objects() {
    for reserve in [0, 1] {
        for tuning in ways() {
            let tuning = Tuning {
                min_partial: 1,
                empty_reserve: reserve,
                ..tuning
            };
            // One slab is partial for good; another empties.
            let (model, objects) = slabs_with(2, 6, tuning);
            let name = format!("partial to empty, reserve {reserve}, {}", way(&tuning));
            model.check(&name, preemptions(1), move |slub| {
                let frees = [&objects[4..5], &objects[5..6]].map(|o| frees(slub, o, Gfp::KERNEL));
                let mut left: Vec<_> = objects[..4].iter().map(|&o| held(slub, o)).collect();
                left.extend(allocs(slub, 1).join().unwrap());
                for thread in frees {
                    thread.join().unwrap();
                }
                left
            });
        }
    }
}

#[test]
fn what_may_not_wait_is_set_aside_and_found_again() {
    let (model, objects) = slabs_with(1, OBJECTS, Tuning::DEFAULT);
    model.check("set aside", preemptions(1), move |slub| {
        let wait = frees(slub, &objects[..1], Gfp::KERNEL);
        let nowait = frees(slub, &objects[1..2], Gfp::NOSPIN);
        let mut left: Vec<_> = objects[2..].iter().map(|&o| held(slub, o)).collect();
        left.extend(allocs(slub, 1).join().unwrap());
        wait.join().unwrap();
        nowait.join().unwrap();
        left
    });
}
