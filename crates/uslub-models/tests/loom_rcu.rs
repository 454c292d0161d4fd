//! Handing objects over to a grace period, in every order with a reader, and with a barrier on
//! another CPU.
//!
//! The grace period is one of the simplest kind: what waits is in a list, and a barrier waits for
//! the reader before it calls all of it.

#![cfg(loom)]

use std::sync::Mutex;

use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
use uslub_core::sync::atomic::{self, AtomicUsize};
use uslub_core::sync::loom_atomics;
use uslub_core::tunables::Tunables;
use uslub_models::machine::Slots;
use uslub_models::model::{Cache, Model, Object, Slub, alloc, free_rcu};
use uslub_models::orders::{preemptions, spawn};

use std::sync::atomic::Ordering::{Acquire, Release};

/// Records that wait, and whether somebody reads.
struct Grace {
    waiting: Mutex<Vec<(usize, RcuCallback)>>,
    /// A lock that the checker knows, for what `waiting` orders.
    order: AtomicUsize,
    readers: AtomicUsize,
}

// SAFETY: callbacks run when there is no reader.
unsafe impl GracePeriod for Grace {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        // Release: who calls it sees what the caller wrote. No other thread comes in before the
        // push.
        self.order.fetch_add(1, Release);
        self.waiting.lock().unwrap().push((head as usize, callback));
    }

    fn barrier(&self) {
        self.synchronize();
        // Acquire: pairs with `call`.
        self.order.fetch_add(0, Acquire);
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        for (head, callback) in waiting {
            // SAFETY: each record is called once.
            unsafe { callback(head as *mut RcuHead) };
        }
    }

    fn synchronize(&self) {
        // Acquire: what readers did is done.
        while self.readers.load(Acquire) > 0 {
            loom::thread::yield_now();
        }
    }
}

fn cache(slub: &Slub) -> &Cache {
    let mut caches = slub.caches();
    caches.find(|c| c.name() == "model").expect("a cache")
}

/// A model with rcu sheaves of two objects on CPU 0, and three objects in use.
fn model(slots: Slots) -> (Model, &'static Grace, Vec<usize>) {
    let model = Model::new(2, Some(slots), Tunables::DEFAULT);
    let grace: &'static Grace = model.place(Grace {
        waiting: Mutex::default(),
        order: AtomicUsize::new(0),
        readers: AtomicUsize::new(0),
    });
    loom_atomics::watch(std::ptr::from_ref(grace) as usize, size_of::<Grace>());
    let slub = model.slub;
    assert!(slub.set_grace_period(grace));
    let args = CacheArgs {
        max_order: Some(0),
        min_objects: Some(1),
        sheaf_capacity: Some(2),
        ..CacheArgs::new("model", 512)
    };
    slub.create(&args).expect("a cache");
    let objects: Vec<*mut u8> = (0..8)
        .map(|_| slub.alloc(cache(slub), Gfp::KERNEL))
        .collect();
    for &object in &objects[3..] {
        // SAFETY: just allocated, freed once.
        unsafe { slub.free_rcu(cache(slub), object) };
    }
    slub.rcu_barrier();
    model.watch_slots_of(cache(slub));
    model.watch_node_of(cache(slub));
    model.watch_slab_of(cache(slub), objects[0]);
    model.watch_cache(cache(slub));
    model.watch_allocator();
    (
        model,
        grace,
        objects[..3].iter().map(|&o| o as usize).collect(),
    )
}

#[test]
fn objects_wait_for_the_reader_that_may_still_see_them() {
    let (model, grace, objects) = model(Slots::Restartable);
    model.check("rcu hand-over and a reader", preemptions(2), move |slub| {
        let seen = objects[0];
        // The reader is inside of its section before anything is freed.
        grace.readers.store(1, Release);
        let reader = spawn(1, move || {
            atomic::reads(seen as *const u8, 8);
            // Release: we look at it no more.
            grace.readers.fetch_sub(1, Release);
        });
        let objects: Vec<_> = objects
            .iter()
            .map(|&o| Object::before(o as *mut u8, cache(slub)))
            .collect();
        let frees = spawn(0, move || {
            for object in objects {
                free_rcu(slub, cache(slub), object);
            }
            // All that are free, and more: what waits must not be among them.
            let left: Vec<_> = (0..7)
                .map(|_| alloc(slub, cache(slub), Gfp::KERNEL))
                .collect();
            slub.rcu_barrier();
            left
        });
        reader.join().unwrap();
        frees.join().unwrap()
    });
}

#[test]
fn a_barrier_finds_what_another_cpu_has_given() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let (model, _, objects) = model(slots);
        model.check(
            &format!("rcu hand-over and a barrier, {slots:?}"),
            preemptions(2),
            move |slub| {
                let objects: Vec<_> = objects
                    .iter()
                    .map(|&o| Object::before(o as *mut u8, cache(slub)))
                    .collect();
                let frees = spawn(0, move || {
                    for object in objects {
                        free_rcu(slub, cache(slub), object);
                    }
                });
                let barrier = spawn(1, move || slub.rcu_barrier());
                frees.join().unwrap();
                barrier.join().unwrap();
                spawn(1, move || slub.rcu_barrier()).join().unwrap();
                Vec::new()
            },
        );
    }
}
