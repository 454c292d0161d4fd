//! The longer protocols, in orders by chance: more threads and more operations than can be tried in
//! every order.
//!
//! Each model runs with slots guarded by their lock bit, and as by restartable sequences. Threads
//! change their CPU, slot operations are disturbed, and each object is looked at when it is given
//! up. At the end nothing may be lost, and the allocator's invariants must hold.

#![cfg(shuttle)]

use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use shuttle::thread::JoinHandle;
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
use uslub_core::mempool::{Mempool, SlabSource};
use uslub_core::sync::atomic::AtomicUsize;
use uslub_core::tunables::{Tunables, Tuning};
use uslub_models::machine::Slots;
use uslub_models::model::{Cache, Model, Object, Slub, alloc, free};
use uslub_models::schedules::{below, hop, rest, spawn};

/// CPUs of all models here.
const CPUS: usize = 2;

/// Small sheaves and few slabs, so that a short run comes everywhere.
fn args(name: &str) -> CacheArgs<'_> {
    CacheArgs {
        max_order: Some(0),
        min_objects: Some(1),
        sheaf_capacity: Some(3),
        ..CacheArgs::new(name, 512)
    }
}

fn ways() -> impl Iterator<Item = (Slots, Tuning)> {
    let ways = [
        (Slots::Locked, 1),
        (Slots::Restartable, 1),
        (Slots::Restartable, 0),
    ];
    ways.into_iter().map(|(slots, newer)| {
        let tuning = Tuning {
            slab_state_lockfree: newer,
            detached_freelist: newer,
            sheaf_spill: newer,
            empty_reserve: newer,
            min_partial: 1,
            max_full_sheaves: 1,
            max_empty_sheaves: 1,
            ..Tuning::DEFAULT
        };
        (slots, tuning)
    })
}

fn model((slots, tuning): (Slots, Tuning), args: &CacheArgs<'_>) -> Model {
    let tunables = Tunables {
        tuning,
        ..Tunables::DEFAULT
    };
    let model = Model::new(CPUS, Some(slots), tunables);
    model.slub.create(args).expect("a cache");
    model
}

fn named((slots, tuning): (Slots, Tuning), name: &str) -> String {
    format!("{name}, {slots:?}, tuning {}", tuning.slab_state_lockfree)
}

fn cache(slub: &Slub) -> &Cache {
    let mut caches = slub.caches();
    caches.find(|c| c.name() == "model").expect("a cache")
}

/// Objects that threads hand to each other. No step lies inside of it.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<Vec<Object>>>);

impl Table {
    fn put(&self, object: Object) {
        self.0.lock().unwrap().push(object);
    }

    /// Takes at most so many, by chance which.
    fn take(&self, n: usize) -> Vec<Object> {
        let mut all = self.0.lock().unwrap();
        let n = n.min(all.len());
        (0..n)
            .map(|_| {
                let n = below(all.len());
                all.swap_remove(n)
            })
            .collect()
    }

    fn rest(&self) -> Vec<Object> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    let joined = threads.into_iter().map(|thread| thread.join().unwrap());
    joined.collect()
}

/// Allocates `n` objects at once; all are there.
fn alloc_bulk(slub: &Slub, cache: &Cache, n: usize) -> Vec<Object> {
    let mut objects = vec![null_mut(); n];
    assert!(slub.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    objects.into_iter().map(|o| Object::of(o, cache)).collect()
}

fn free_bulk(slub: &Slub, cache: &Cache, objects: Vec<Object>) {
    let mut objects: Vec<_> = objects.into_iter().map(Object::end).collect();
    // SAFETY: objects of the cache, held by the caller alone.
    unsafe { slub.free_bulk(cache, &mut objects) };
}

/// What a drain of any kind does.
fn drain(slub: &Slub, cache: &Cache) {
    match below(4) {
        0 => slub.flush(cache),
        1 => drop(slub.shrink(cache)),
        2 => slub.shrink_all(),
        _ => drop(slub.trim()),
    }
}

/// Drains so many times, in a thread of its own.
fn drains(slub: &'static Slub, times: usize) -> JoinHandle<()> {
    spawn(1, move || {
        for _ in 0..times {
            drain(slub, cache(slub));
        }
    })
}

#[test]
fn objects_go_across_cpus_while_others_drain() {
    for way in ways() {
        let model = model(way, &args("model"));
        model.check(&named(way, "across and drain"), 600, |slub| {
            let table = Table::default();
            let users = [0, 1, 0].map(|cpu| {
                let table = table.clone();
                spawn(cpu, move || {
                    for _ in 0..10 {
                        for _ in 0..1 + below(3) {
                            table.put(alloc(slub, cache(slub), Gfp::KERNEL));
                        }
                        for object in table.take(below(5)) {
                            free(slub, cache(slub), object, Gfp::KERNEL);
                        }
                        hop(CPUS);
                    }
                })
            });
            let drains = drains(slub, 3);
            join(users);
            drains.join().unwrap();
            table.rest()
        });
    }
}

#[test]
fn bulk_frees_meet_refills() {
    for way in ways() {
        let model = model(way, &args("model"));
        model.check(&named(way, "bulk and refill"), 600, |slub| {
            let table = Table::default();
            let bulks = [0, 1].map(|cpu| {
                let table = table.clone();
                spawn(cpu, move || {
                    for _ in 0..5 {
                        // One sheaf's, more than a sheaf's, more than a slab's.
                        for object in alloc_bulk(slub, cache(slub), [2, 5, 11][below(3)]) {
                            table.put(object);
                        }
                        free_bulk(slub, cache(slub), table.take(below(14)));
                        hop(CPUS);
                    }
                })
            });
            let single = {
                let table = table.clone();
                spawn(0, move || {
                    for _ in 0..12 {
                        table.put(alloc(slub, cache(slub), Gfp::KERNEL));
                        for object in table.take(below(3)) {
                            free(slub, cache(slub), object, Gfp::KERNEL);
                        }
                    }
                })
            };
            let shrinks = spawn(1, move || {
                for _ in 0..2 {
                    slub.shrink(cache(slub));
                }
            });
            join(bulks);
            join([single, shrinks]);
            table.rest()
        });
    }
}

#[test]
fn what_may_not_wait_is_lost_nowhere() {
    for way in ways() {
        let model = model(way, &args("model"));
        model.check(&named(way, "without waiting"), 600, |slub| {
            let table = Table::default();
            let users = [(0, Gfp::NOSPIN), (1, Gfp::NOSPIN), (0, Gfp::KERNEL)].map(|(cpu, gfp)| {
                let table = table.clone();
                spawn(cpu, move || {
                    for _ in 0..10 {
                        let object = slub.alloc(cache(slub), gfp);
                        if !object.is_null() {
                            table.put(Object::of(object, cache(slub)));
                        }
                        for object in table.take(below(4)) {
                            let gfp = [gfp, Gfp::NOSPIN][below(2)];
                            free(slub, cache(slub), object, gfp);
                        }
                        hop(CPUS);
                    }
                })
            });
            let drains = drains(slub, 2);
            join(users);
            drains.join().unwrap();
            table.rest()
        });
    }
}

/// What waits for readers; a barrier keeps others out, as each returns when all callbacks have.
struct Grace {
    waiting: Mutex<Vec<(usize, RcuCallback)>>,
    readers: AtomicUsize,
    barrier: shuttle::sync::Mutex<()>,
}

// SAFETY: callbacks run when each reader of before has left: at a moment without any.
unsafe impl GracePeriod for Grace {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        self.waiting.lock().unwrap().push((head as usize, callback));
    }

    fn barrier(&self) {
        let _barrier = self.barrier.lock().unwrap();
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        self.synchronize();
        for (head, callback) in waiting {
            // SAFETY: each record is called once.
            unsafe { callback(head as *mut RcuHead) };
        }
    }

    fn synchronize(&self) {
        // SeqCst, here and below: all steps have one order.
        while self.readers.load(SeqCst) > 0 {
            shuttle::thread::yield_now();
        }
    }
}

#[test]
fn readers_see_what_they_found_until_they_leave() {
    for way in ways() {
        let model = model(way, &args("model"));
        // Each run has a grace period of its own.
        model.check(&named(way, "rcu, readers, barriers"), 400, |slub| {
            let grace: &'static Grace = Box::leak(Box::new(Grace {
                waiting: Mutex::default(),
                readers: AtomicUsize::new(0),
                barrier: shuttle::sync::Mutex::new(()),
            }));
            assert!(slub.set_grace_period(grace));
            let shared: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
            let writers = [0, 1].map(|cpu| {
                spawn(cpu, move || {
                    for _ in 0..8 {
                        let new = slub.alloc(cache(slub), Gfp::KERNEL);
                        assert!(!new.is_null());
                        // SAFETY: just allocated, and large enough.
                        unsafe { new.cast::<[usize; 64]>().write([new as usize; 64]) };
                        // SeqCst: see above.
                        let old = shared.swap(new as usize, SeqCst);
                        // SAFETY: who took it out is the only one who frees it.
                        unsafe { slub.free_rcu(cache(slub), old as *mut u8) };
                        hop(CPUS);
                    }
                })
            });
            let reader = spawn(0, move || {
                for _ in 0..8 {
                    // SeqCst: see above.
                    grace.readers.fetch_add(1, SeqCst);
                    // SeqCst: see above.
                    let object = shared.load(SeqCst);
                    for _ in 0..3 {
                        // SeqCst: only a step.
                        shared.load(SeqCst);
                        if object != 0 {
                            // SAFETY: in use until we leave.
                            let words = unsafe { *(object as *const [usize; 64]) };
                            assert_eq!(words, [object; 64], "changed under a reader");
                        }
                    }
                    // SeqCst: see above.
                    grace.readers.fetch_sub(1, SeqCst);
                }
            });
            let barrier = spawn(1, move || {
                for _ in 0..3 {
                    slub.rcu_barrier();
                    drain(slub, cache(slub));
                }
            });
            join(writers);
            join([reader, barrier]);
            // SeqCst: see above.
            let last = shared.load(SeqCst) as *mut u8;
            // SAFETY: nobody else is left. The end of a cache waits for what waits.
            let leaked = unsafe {
                slub.free_rcu(cache(slub), last);
                slub.destroy(cache(slub), |_| {})
            };
            assert_eq!(leaked, 0);
            slub.rcu_barrier();
            Vec::new()
        });
    }
}

#[test]
fn caches_come_and_go_while_all_are_drained() {
    for way in ways() {
        let model = model(way, &args("model"));
        model.check(&named(way, "caches come and go"), 400, |slub| {
            let owners = [0, 1, 0].map(|cpu| {
                spawn(cpu, move || {
                    for name in ["one", "two"] {
                        let cache = slub.create(&args(name)).expect("a cache");
                        let mut held = alloc_bulk(slub, cache, 1 + below(12));
                        hop(CPUS);
                        held.drain(..below(held.len() + 1))
                            .for_each(|object| free(slub, cache, object, Gfp::KERNEL));
                        free_bulk(slub, cache, held);
                        // SAFETY: the cache is this thread's own.
                        assert_eq!(unsafe { slub.destroy(cache, |_| {}) }, 0);
                    }
                })
            });
            let drains = drains(slub, 3);
            join(owners);
            drains.join().unwrap();
            Vec::new()
        });
    }
}

#[test]
fn a_pool_serves_all_who_wait() {
    for way in ways() {
        // One slab of 2 objects, both of which the pool holds.
        let limited = CacheArgs {
            size: 2048,
            limit: Some(4096),
            ..args("model")
        };
        let model = model(way, &limited);
        model.check(&named(way, "pool that is waited for"), 1200, |slub| {
            let source = SlabSource::new(slub, cache(slub)).expect("no constructor");
            let pool = Mempool::new(slub, 2, source).expect("memory");
            let pool: &'static Mempool<'static, _, _> = Box::leak(Box::new(pool));
            let users = [0, 1, 0].map(|cpu| {
                spawn(cpu, move || {
                    for _ in 0..2 {
                        let mut elements = vec![null_mut(); 1 + below(2)];
                        pool.alloc_bulk(Gfp::KERNEL, &mut elements).expect("waits");
                        let own = |&e: &*mut u8| Object::of(e, cache(slub)).end();
                        let elements: Vec<_> = elements.iter().map(own).collect();
                        hop(CPUS);
                        // Others run out of elements meanwhile.
                        rest();
                        // SAFETY: just allocated.
                        unsafe { pool.free_bulk(&elements) };
                    }
                })
            });
            // Takes what is left, without waiting.
            let hog = spawn(1, move || {
                for gfp in [Gfp::NOSPIN, Gfp::NOWAIT] {
                    let element = pool.alloc(gfp);
                    // SAFETY: just allocated, or null.
                    unsafe { pool.free(element) };
                }
            });
            join(users);
            hog.join().unwrap();
            // SAFETY: made above, and nobody has it any more.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(pool).cast_mut()) });
            Vec::new()
        });
    }
}

/// One free and one who waits for it: nobody comes later and makes up for a wake-up that is lost.
#[test]
fn a_pool_wakes_who_waits_for_its_last_element() {
    let limited = CacheArgs {
        size: 2048,
        limit: Some(4096),
        ..args("model")
    };
    let model = model(ways().next().unwrap(), &limited);
    model.check("pool, the last element", 60_000, |slub| {
        let source = SlabSource::new(slub, cache(slub)).expect("no constructor");
        let pool = Mempool::new(slub, 2, source).expect("memory");
        let pool: &'static Mempool<'static, _, _> = Box::leak(Box::new(pool));
        join([0, 1].map(|cpu| {
            spawn(cpu, move || {
                let mut elements = [null_mut(); 2];
                pool.alloc_bulk(Gfp::KERNEL, &mut elements).expect("waits");
                // Who looks for memory elsewhere gives way itself now and then.
                (0..below(16)).for_each(|_| rest());
                // SAFETY: just allocated.
                unsafe { pool.free_bulk(&elements) };
            })
        }));
        // SAFETY: made above, and nobody has it any more.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(pool).cast_mut()) });
        Vec::new()
    });
}

#[test]
fn sheaves_that_are_set_aside_keep_their_promise() {
    for way in ways() {
        let mut tuning = way.1;
        tuning.sheaf_capacity_max = 12;
        let model = model((way.0, tuning), &args("model"));
        model.check(&named(way, "prefilled sheaves"), 400, |slub| {
            let table = Table::default();
            let users = [0, 1, 0].map(|cpu| {
                let table = table.clone();
                spawn(cpu, move || {
                    for _ in 0..4 {
                        let cache = cache(slub);
                        let mut n = [2, 3, 7, 20][below(4)];
                        let mut set = slub.prefill(cache, Gfp::KERNEL, n).expect("memory");
                        if below(2) == 0 {
                            n += below(8);
                            assert!(slub.refill_prefilled(cache, Gfp::KERNEL, &mut set, n));
                        }
                        hop(CPUS);
                        for _ in 0..below(n + 1) {
                            let object = slub.alloc_from(cache, Gfp::NOSPIN, &mut set);
                            assert!(!object.is_null(), "fewer than promised");
                            table.put(Object::of(object, cache));
                        }
                        slub.return_prefilled(cache, Gfp::KERNEL, set);
                        for object in table.take(below(16)) {
                            free(slub, cache, object, Gfp::KERNEL);
                        }
                    }
                })
            });
            let drains = drains(slub, 2);
            join(users);
            drains.join().unwrap();
            table.rest()
        });
    }
}
