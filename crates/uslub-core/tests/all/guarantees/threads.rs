//! Many threads on few CPUs: no object is lost, doubled or written to by two.
//!
//! Threads change their virtual CPU at every look, so glances and exchanges meet other CPUs' words
//! all the time, as they would under a scheduler, only far more often. Objects are filled by who
//! allocates and looked at by who frees, which is often another thread. And all are stopped in the
//! middle of anything now and then.

use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};

use crate::support;
use crate::support::pattern::{fill, is_filled};
use crate::support::torment::Torment;
use crate::support::{Cache, Dice, Setup, Slots, Slub, assert_all_is_given_back, hop, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::Platform;

const THREADS: usize = 8;

/// An object on its way from thread to thread.
#[derive(Clone, Copy)]
struct Object {
    start: usize,
    bytes: usize,
    byte: u8,
}

impl Object {
    fn new(start: *mut u8, bytes: usize, byte: u8) -> Self {
        fill(start, bytes, byte);
        let start = start as usize;
        Self { start, bytes, byte }
    }

    fn checked(self) -> *mut u8 {
        let start = self.start as *mut u8;
        assert!(
            is_filled(start, self.bytes, self.byte),
            "somebody else wrote to {start:p} of {} bytes",
            self.bytes
        );
        // So that a second owner would see it.
        fill(start, self.bytes, !self.byte);
        start
    }

    fn kfree(self, a: &Slub) {
        // SAFETY: live, freed once.
        unsafe { a.kfree(self.checked()) }
    }
}

fn size(dice: &mut Dice) -> usize {
    match dice.below(100) {
        0..70 => dice.below(600),
        70..92 => dice.below(6000),
        92..97 => dice.below(CLASS_MAX),
        97..99 => CLASS_MAX + dice.below(100_000),
        _ => LARGE_MAX + dice.below(200_000),
    }
}

/// One thread's calls: single objects, bulks, resizes, and a third of all to other threads.
fn churn(a: &Slub, me: usize, rounds: usize, others: &[Sender<Object>], mine: &Receiver<Object>) {
    hop(me as u64 + 1);
    let mut dice = Dice::new(100 + me as u64);
    let mut held: Vec<Object> = Vec::new();
    let caches: Vec<&Cache> = a
        .caches()
        .filter(|c| c.name().starts_with("test"))
        .collect();
    for round in 0..rounds {
        let byte = (round * THREADS + me) as u8;
        match dice.below(10) {
            0..4 => {
                let bytes = size(&mut dice);
                let object = a.kmalloc(bytes, Gfp::KERNEL);
                held.push(Object::new(object, bytes, byte));
            }
            4..6 => {
                let cache = caches[dice.below(caches.len())];
                let object = a.alloc(cache, Gfp::KERNEL);
                held.push(Object::new(object, cache.object_size(), byte));
            }
            6 => {
                let cache = caches[dice.below(caches.len())];
                let mut objects = [null_mut(); 40];
                assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
                let bytes = cache.object_size();
                held.extend(objects.iter().map(|&o| Object::new(o, bytes, byte)));
            }
            7 if !held.is_empty() => {
                let at = dice.below(held.len());
                let object = held.swap_remove(at);
                let bytes = size(&mut dice);
                // SAFETY: live.
                let moved = unsafe { a.krealloc(object.start as *mut u8, bytes, Gfp::KERNEL) };
                assert!(is_filled(moved, bytes.min(object.bytes), object.byte));
                held.push(Object::new(moved, bytes, byte));
            }
            _ => {
                for object in mine.try_iter() {
                    object.kfree(a);
                }
            }
        }
        while held.len() > 100 {
            let object = held.swap_remove(dice.below(held.len()));
            if dice.below(3) == 0 {
                others[dice.below(others.len())].send(object).unwrap();
            } else {
                object.kfree(a);
            }
        }
    }
    held.into_iter().for_each(|object| object.kfree(a));
}

/// Churns on all threads, while another gives memory back all the time.
fn stress(slots: Slots, disturb: u32, settings: &[&str], rounds: usize) {
    let mut setup = Setup::with(settings);
    setup.slots = slots;
    let a = &*setup.build();
    for (name, size, capacity) in [("test-a", 64, None), ("test-b", 500, Some(2))] {
        let mut args = CacheArgs::new(name, size);
        args.sheaf_capacity = capacity;
        a.create(&args).unwrap();
    }
    a.platform.disturb(disturb);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    let (done, torment) = (AtomicBool::new(false), &Torment::default());
    let left: Vec<Receiver<Object>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (receivers.into_iter().enumerate())
            .map(|(me, mine)| {
                let others = senders.clone();
                scope.spawn(move || {
                    torment.suffer(|| churn(a, me, rounds, &others, &mine));
                    mine
                })
            })
            .collect();
        scope.spawn(|| torment.suffer(|| give_back_until(a, &done)));
        scope.spawn(|| torment.run());
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        // SeqCst: nothing here is measured.
        done.store(true, SeqCst);
        torment.end();
        ends.into_iter().map(|end| end.unwrap()).collect()
    });
    drop(senders);
    on_cpu(0);
    a.platform.disturb(0);
    assert_eq!(a.validate(), Ok(()));
    for object in left.iter().flatten() {
        object.kfree(a);
    }
    assert_all_is_given_back(a);
}

fn give_back_until(a: &Slub, done: &AtomicBool) {
    hop(999);
    let mut dice = Dice::new(999);
    // SeqCst: nothing here is measured.
    while !done.load(SeqCst) {
        match dice.below(5) {
            0 => a.shrink_all(),
            1 => {
                a.trim();
            }
            2 => {
                a.platform.advance(700);
                a.tick(a.platform.now_ms());
            }
            _ => a.caches().for_each(|cache| {
                a.shrink(cache);
            }),
        }
        // Figures may be asked for at any time; they are exact only in quiet moments.
        std::hint::black_box((a.totals(), a.activity()));
        std::thread::yield_now();
    }
}

#[test]
fn threads_that_hop_between_cpus_lose_no_object() {
    stress(Slots::Locked, 0, &[], 5000);
}

#[test]
fn threads_that_hop_lose_no_object_with_tiny_sheaves() {
    let tiny = [
        "sheaf_capacity=1",
        "max_full_sheaves=1",
        "max_empty_sheaves=0",
        "min_partial=1",
        "slab_freelist_random=1",
    ];
    stress(Slots::Locked, 0, &tiny, 5000);
}

#[test]
fn threads_that_hop_lose_no_object_where_cpus_are_stopped() {
    stress(Slots::Restartable, 0, &[], 5000);
}

#[test]
fn threads_lose_no_object_when_their_slot_operations_are_disturbed() {
    stress(Slots::Restartable, 3, &["sheaf_capacity=3"], 3000);
    stress(Slots::Locked, 3, &["sheaf_capacity=3"], 3000);
}

#[test]
fn threads_lose_no_object_with_the_old_strategies() {
    let old = [
        "freelist_deferred=0",
        "slab_state_lockfree=0",
        "detached_freelist=0",
        "refill_needs_blocking=1",
    ];
    stress(Slots::Restartable, 0, &old, 3000);
    stress(Slots::Restartable, 0, &old[..2], 3000);
}

#[test]
fn threads_lose_no_object_when_leftovers_are_spilled() {
    stress(Slots::Restartable, 0, &["sheaf_spill=1"], 3000);
    let both = ["sheaf_spill=1", "empty_reserve=1", "sheaf_capacity=5"];
    stress(Slots::Locked, 3, &both, 3000);
    stress(Slots::Restartable, 0, &["sheaf_spill=2"], 3000);
    let both = ["sheaf_spill=2", "empty_reserve=1", "sheaf_capacity=5"];
    stress(Slots::Locked, 3, &both, 3000);
}

#[test]
fn threads_lose_no_object_when_sheaves_are_partly_filled() {
    let all = [
        "refill_min_percent=50",
        "empty_reserve=1",
        "sheaf_capacity=5",
    ];
    stress(Slots::Locked, 3, &all, 3000);
}

#[test]
fn threads_lose_no_object_while_sheaves_grow_and_shrink() {
    let grow = ["sheaf_capacity=2", "sheaf_capacity_max=250"];
    stress(Slots::Restartable, 0, &grow, 3000);
    let tight = [
        "sheaf_capacity=2",
        "sheaf_capacity_max=60",
        "sheaf_budget_mb=0",
    ];
    stress(Slots::Locked, 3, &tight, 3000);
}

/// Threads that take from slabs and threads that free into the same slabs, in pieces that make
/// slabs go from full to partial to empty and back all the time.
fn race_for_slabs(sheaves: bool, hardened: bool, size: usize, rounds: usize) {
    let hardened = format!("slab_freelist_hardened={}", u8::from(hardened));
    let a = &*Setup::with(&["min_partial=1", "slab_max_order=0", &hardened]).build();
    let mut args = CacheArgs::new("test", size);
    args.sheaf_capacity = Some(1);
    let cache = a.create(&args).unwrap();
    a.platform.set_percpu_usable(sheaves);
    let pool = Mutex::new(Vec::<Object>::new());
    let torment = &Torment::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|me| {
                let pool = &pool;
                let race = move || race(a, cache, me, rounds, pool);
                scope.spawn(move || torment.suffer(race))
            })
            .collect();
        scope.spawn(|| torment.run());
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        torment.end();
        ends.into_iter().for_each(|end| end.unwrap());
    });
    on_cpu(0);
    assert_eq!(a.validate(), Ok(()));
    a.platform.set_percpu_usable(true);
    for object in pool.into_inner().unwrap() {
        object.kfree(a);
    }
    assert_all_is_given_back(a);
}

/// One thread's part: takes some objects, puts them into the pool, and frees others out of it.
fn race(a: &Slub, cache: &Cache, me: u64, rounds: usize, pool: &Mutex<Vec<Object>>) {
    hop(me + 50);
    let mut dice = Dice::new(me);
    let size = cache.object_size();
    for round in 0..rounds {
        let mut objects = vec![null_mut(); 1 + dice.below(6)];
        if me < 2 {
            assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        } else {
            let alloc = |o: &mut *mut u8| *o = a.alloc(cache, Gfp::KERNEL);
            objects.iter_mut().for_each(alloc);
        }
        let new = objects.iter().map(|&o| Object::new(o, size, round as u8));
        let mut some: Vec<Object> = new.collect();
        {
            let mut pool = pool.lock().unwrap();
            pool.append(&mut some);
            dice.shuffle(&mut pool);
            let keep = dice.below(24).min(pool.len());
            some = pool.split_off(keep);
        }
        let mut freed: Vec<*mut u8> = some.into_iter().map(Object::checked).collect();
        // SAFETY: live, freed once.
        unsafe {
            if round % 3 == 0 {
                freed.iter().for_each(|&o| a.free(cache, o));
            } else {
                a.free_bulk(cache, &mut freed);
            }
        }
    }
}

#[test]
fn slabs_that_are_freed_into_while_others_take_from_them_stay_whole() {
    for size in [128, 512, 2048, 4096] {
        race_for_slabs(false, true, size, 8000);
    }
    race_for_slabs(false, false, 512, 8000);
}

#[test]
fn slabs_stay_whole_behind_sheaves_of_one_object() {
    for size in [128, 512, 2048] {
        race_for_slabs(true, true, size, 8000);
    }
}

#[test]
fn caches_and_regions_may_be_made_while_others_allocate() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let setup = Setup {
            cpus: 40,
            slots,
            ..Setup::default()
        };
        let a = &*setup.build();
        std::thread::scope(|scope| {
            for me in 0..4u64 {
                scope.spawn(move || {
                    hop(me + 7);
                    for i in 0..60 {
                        // More than fit one page of a region, all together.
                        let name = format!("cache-{me}-{i}");
                        let cache = a.create(&CacheArgs::new(&name, 8 * (i + 1))).unwrap();
                        let objects: Vec<_> =
                            (0..20).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
                        for object in objects {
                            fill(object, 8 * (i + 1), me as u8);
                            // SAFETY: live, freed once.
                            unsafe { a.free(cache, object) };
                        }
                        let object = a.kmalloc(i * 100, Gfp::KERNEL);
                        // SAFETY: live, freed once.
                        unsafe { a.kfree(object) };
                        if i % 20 == 0 {
                            a.shrink_all();
                        }
                    }
                });
            }
        });
        on_cpu(0);
        assert_eq!(
            a.caches().filter(|c| c.name().starts_with("cache")).count(),
            240
        );
        assert_all_is_given_back(a);
    }
}

#[test]
fn threads_that_need_a_page_at_the_same_moment_let_the_range_grow_once() {
    for _ in 0..60 {
        let a = &*support::allocator(4);
        let together = &Barrier::new(4);
        let torment = &Torment::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        torment.suffer(|| {
                            together.wait();
                            a.zone.alloc(&a.platform, 1, 1, Gfp::KERNEL).is_some()
                        })
                    })
                })
                .collect();
            scope.spawn(|| torment.run());
            let all = threads.into_iter().all(|t| t.join().unwrap());
            torment.end();
            assert!(all);
        });
        assert_eq!(a.zone.arena.limit(), BLOCK_PAGES);
        assert_eq!(a.zone.validate(), Ok(()));
    }
}
