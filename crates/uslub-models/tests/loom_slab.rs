//! A slab's state, its node's lists and the list lock, in every order of the threads that use them.
//!
//! No sheaves: all allocations and frees come to the slabs. Each model runs with the state changed
//! in one step, and with the state changed under the slab's lock.

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
    // All are taken once, so that freelists are made of links.
    slabs_used(slabs * OBJECTS, taken, tuning)
}

/// As [`slabs_with`]; `used` slots were handed out at least once, all others are fresh.
fn slabs_used(used: usize, taken: usize, tuning: Tuning) -> (Model, Vec<usize>) {
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
    assert_eq!(cache(slub).geometry.objects as usize, OBJECTS);
    let mut objects: Vec<*mut u8> = (0..used)
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

/// A thread that allocates an object, which may mean that it takes a part of a slab and returns the
/// rest. None where it would have to wait and must not. It goes past the CPU's slots, which are no
/// part of these models.
fn takes_part(slub: &'static Slub, gfp: Gfp) -> Thread<Option<Object>> {
    spawn(0, move || {
        let object = slub.kmalloc_slow(cache(slub).id, 1024, gfp);
        assert!(!object.is_null() || gfp == Gfp::NOSPIN, "no object");
        (!object.is_null()).then(|| Object::of(object, cache(slub)))
    })
}

/// A thread that allocates an object and frees it.
fn takes_and_frees(slub: &'static Slub) -> Thread<()> {
    spawn(0, move || {
        let object = alloc(slub, cache(slub), Gfp::KERNEL);
        free(slub, cache(slub), object, Gfp::KERNEL);
    })
}

/// Two slots are free. Each refill takes one and returns what it finds more. Between the detach of
/// the first and its return the slab may become partial, be listed, be emptied by the second, and
/// look as before.
#[test]
fn a_slab_that_is_full_again_has_one_owner() {
    let [lock_free, locked] = ways();
    for (first, second, freed, tuning) in [
        (Gfp::KERNEL, Gfp::KERNEL, 1, lock_free),
        (Gfp::KERNEL, Gfp::KERNEL, 2, lock_free),
        (Gfp::KERNEL, Gfp::KERNEL, 1, locked),
        // Whoever may not wait leaves states under a lock alone.
        (Gfp::KERNEL, Gfp::NOSPIN, 1, lock_free),
        (Gfp::NOSPIN, Gfp::KERNEL, 1, lock_free),
    ] {
        let (model, objects) = slabs_with(1, 2, tuning);
        let of = |gfp| ["waits", "must not wait"][usize::from(gfp == Gfp::NOSPIN)];
        let name = format!(
            "full again, {freed} freed, first {}, second {}, {}",
            of(first),
            of(second),
            way(&tuning)
        );
        model.check(&name, preemptions(1), move |slub| {
            let kept = objects[freed..].iter().map(|&o| held(slub, o));
            let mut left: Vec<_> = kept.collect();
            let takers = [first, second].map(|gfp| takes_part(slub, gfp));
            let frees = frees(slub, &objects[..freed], Gfp::KERNEL);
            left.extend(takers.into_iter().filter_map(|taker| taker.join().unwrap()));
            frees.join().unwrap();
            left
        });
    }
}

/// The slab never looks full, as a slot of it is fresh: its refill owns it until it lists it again.
#[test]
fn a_slab_with_fresh_slots_stays_with_its_refill() {
    for tuning in ways() {
        // Three slots were handed out, two of them are free again.
        let (model, objects) = slabs_used(OBJECTS - 1, 1, tuning);
        let name = format!("return with fresh slots left, {}", way(&tuning));
        model.check(&name, preemptions(1), move |slub| {
            let frees = frees(slub, &objects, Gfp::KERNEL);
            let takers = [Gfp::KERNEL; 2].map(|gfp| takes_part(slub, gfp));
            let taken = takers.into_iter().filter_map(|taker| taker.join().unwrap());
            let left = taken.collect();
            frees.join().unwrap();
            left
        });
    }
}

/// A refill returns a part, all objects are freed, and a shrink looks for empty slabs: the slab
/// goes once, or stays listed.
#[test]
fn a_slab_that_empties_behind_a_return_goes_once() {
    for reserve in [0, 1] {
        for tuning in ways() {
            let tuning = Tuning {
                min_partial: 1,
                empty_reserve: reserve,
                ..tuning
            };
            let (model, objects) = slabs_with(1, 2, tuning);
            let name = format!("return, empty, shrink, reserve {reserve}, {}", way(&tuning));
            model.check(&name, preemptions(1), move |slub| {
                let taker = takes_and_frees(slub);
                let frees = frees(slub, &objects, Gfp::KERNEL);
                let shrink = spawn(0, move || slub.shrink(cache(slub)));
                taker.join().unwrap();
                frees.join().unwrap();
                shrink.join().unwrap();
                let slabs = cache(slub).nr_slabs();
                assert!(slabs <= 2, "{slabs} slabs");
                slub.shrink(cache(slub));
                assert_eq!(cache(slub).nr_slabs(), 0, "an empty slab was lost");
                Vec::new()
            });
        }
    }
}
