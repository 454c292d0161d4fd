//! A slab's state, lists and list lock, in every order of the threads that use them.
//!
//! No sheaves: all allocations and frees come to the slabs.

#![cfg(loom)]

use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::tunables::Tunables;
use uslub_models::model::{Cache, Model, Object, Slub, alloc, free, preemptions, spawn};

/// Objects of a slab in these models.
const OBJECTS: usize = 4;

fn cache(slub: &Slub) -> &Cache {
    slub.caches().next().expect("a cache")
}

/// A model whose threads find `taken` objects of one slab in use, and those objects.
fn slab_with(taken: usize, change: impl FnOnce(&mut Tunables)) -> (Model, Vec<usize>) {
    let mut tunables = Tunables::DEFAULT;
    change(&mut tunables);
    let model = Model::new(2, None, tunables);
    let slub = model.slub;
    let args = CacheArgs {
        max_order: Some(0),
        min_objects: Some(1),
        ..CacheArgs::new("model", 1024)
    };
    slub.create(&args).expect("a cache");
    assert_eq!(cache(slub).oo.objects as usize, OBJECTS);
    // All are taken once, so that the freelist is one of links.
    let mut objects: Vec<*mut u8> = (0..OBJECTS)
        .map(|_| slub.alloc(cache(slub), Gfp::KERNEL))
        .collect();
    model.watch_slab_of(cache(slub), objects[0]);
    model.watch_node_of(cache(slub));
    for object in objects.drain(taken..) {
        // SAFETY: just allocated.
        unsafe { slub.free(cache(slub), object) };
    }
    (model, objects.into_iter().map(|o| o as usize).collect())
}

fn held(slub: &Slub, object: usize) -> Object {
    Object::of(object as *mut u8, cache(slub))
}

#[test]
fn a_push_comes_between_a_detach_and_its_optimistic_return() {
    let (model, objects) = slab_with(2, |_| ());
    model.check("push and detach", preemptions(2), move |slub| {
        let objects: Vec<_> = objects.iter().map(|&o| held(slub, o)).collect();
        let frees = spawn(0, move || {
            for object in objects {
                free(slub, cache(slub), object, Gfp::KERNEL);
            }
        });
        let allocs = spawn(1, move || alloc(slub, cache(slub), Gfp::KERNEL));
        frees.join().unwrap();
        vec![allocs.join().unwrap()]
    });
}
