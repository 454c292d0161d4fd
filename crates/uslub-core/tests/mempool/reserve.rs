//! Requests that wait, and those that the reserve serves.

use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::scope;

use crate::budget::{Budget, alone, assert_balanced, free, free_bulk, taker, until_asleep, use_it};
use crate::support::torment::Torment;
use crate::support::{Dice, allocator, assert_all_is_given_back, never_waiting, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor};
use uslub_core::mempool::{KmallocSource, Mempool, MempoolError, SlabSource};
use uslub_core::platform::PAGE_SIZE;

#[test]
fn the_reserve_serves_when_the_source_fails_and_fills_up_first() {
    let (a, budget) = (allocator(2), Budget::of(4));
    let pool = Mempool::new(&a, 3, &budget).unwrap();
    assert_eq!((pool.min_nr(), pool.curr_nr(), budget.left()), (3, 3, 1));
    let elements: Vec<_> = (0..4).map(|_| pool.alloc(Gfp::KERNEL)).collect();
    assert!(elements.iter().all(|element| !element.is_null()));
    assert_eq!(pool.curr_nr(), 0);
    for (i, &element) in elements.iter().enumerate() {
        free(&pool, element);
        assert_eq!(pool.curr_nr(), (i + 1).min(3));
    }
    assert_eq!(budget.live(), 3, "the fourth went to the source");
    free(&pool, null_mut());
    assert_eq!(pool.curr_nr(), 3);
    pool.destroy();
    assert_balanced(&a, &budget);
}

#[test]
fn the_first_attempt_may_not_ask_the_os_and_only_kernel_gets_a_second() {
    let (a, budget) = (allocator(1), Budget::of(1));
    let pool = Mempool::new(&a, 1, &budget).unwrap();
    let (kernel, nowait) = (Gfp::KERNEL.bits(), Gfp::NOWAIT.bits());
    assert_eq!(budget.take_calls(), [kernel], "a reserve may ask the OS");
    let reserved = pool.alloc(Gfp::KERNEL);
    assert_eq!(budget.take_calls(), [nowait], "then the reserve");
    budget.set(1);
    let second = pool.alloc(Gfp::KERNEL | Gfp::NOFAIL);
    assert_eq!(budget.take_calls(), [nowait], "no flag of a second attempt");
    assert!(pool.alloc(Gfp::NOWAIT).is_null());
    assert_eq!(budget.take_calls(), [nowait]);
    assert!(pool.alloc(Gfp::NOSPIN).is_null());
    assert_eq!(budget.take_calls(), [Gfp::NOSPIN.bits()]);
    assert!(pool.alloc(Gfp::MAP).is_null(), "may ask, but not wait");
    assert_eq!(budget.take_calls(), [0, Gfp::MAP.bits()]);
    assert_eq!(free_bulk(&pool, &[reserved, second]), 1);
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn nowait_and_nospin_get_null_instead_of_waiting() {
    let (a, budget) = (allocator(1), Budget::of(2));
    let pool = Mempool::new(&a, 2, &budget).unwrap();
    never_waiting(|| {
        let elements = [pool.alloc(Gfp::NOWAIT), pool.alloc(Gfp::NOSPIN)];
        assert!(!elements[0].is_null() && !elements[1].is_null());
        let mut bulk = [null_mut(); 2];
        for gfp in [Gfp::NOWAIT, Gfp::NOSPIN] {
            assert!(pool.alloc(gfp).is_null() && pool.alloc_preallocated(gfp).is_null());
            assert_eq!(pool.alloc_bulk(gfp, &mut bulk), Err(MempoolError::NoMemory));
        }
        assert_eq!(free_bulk(&pool, &elements), 2);
    });
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn nospin_never_waits_for_the_lock_of_the_pool() {
    let _alone = alone();
    let (a, budget) = (allocator(4), Budget::of(64));
    let pool = Mempool::new(&a, 64, &budget).unwrap();
    let (torment, done) = (Torment::default(), AtomicBool::new(false));
    let (mut got, mut not) = (0, 0);
    scope(|s| {
        s.spawn(|| torment.run());
        for cpu in 1..4 {
            let (pool, torment, done) = (&pool, &torment, &done);
            s.spawn(move || {
                on_cpu(cpu);
                torment.suffer(|| {
                    // SeqCst: nothing here is measured.
                    while !done.load(SeqCst) {
                        free(pool, pool.alloc_preallocated(Gfp::KERNEL));
                    }
                });
            });
        }
        // A try that finds the lock busy gets nothing, though the reserve has enough.
        while got < 1000 || not < 10 {
            let element = never_waiting(|| pool.alloc(Gfp::NOSPIN));
            if element.is_null() {
                not += 1;
            } else {
                got += 1;
                free(&pool, element);
            }
        }
        // SeqCst: as above.
        done.store(true, SeqCst);
        torment.end();
    });
    assert_eq!(pool.curr_nr(), 64);
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn a_source_that_always_fails_still_lets_every_operation_finish() {
    let _alone = alone();
    const MIN: usize = 4;
    let (a, budget) = (allocator(4), Budget::of(MIN));
    let pool = Mempool::new(&a, MIN, &budget).unwrap();
    let (flying, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    scope(|s| {
        for cpu in 0..16 {
            let (pool, flying, most) = (&pool, &flying, &most);
            s.spawn(move || {
                on_cpu(cpu);
                for _ in 0..500 {
                    let element = pool.alloc(Gfp::KERNEL);
                    // SeqCst: nothing here is measured.
                    most.fetch_max(flying.fetch_add(1, SeqCst) + 1, SeqCst);
                    use_it(element);
                    flying.fetch_sub(1, SeqCst);
                    free(pool, element);
                }
            });
        }
    });
    // SeqCst: as above.
    assert!((2..=MIN).contains(&most.load(SeqCst)));
    assert_eq!((pool.curr_nr(), budget.live()), (MIN, MIN));
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn bulk_and_single_requests_that_wait_all_finish() {
    let _alone = alone();
    const MIN: usize = 5;
    let (a, budget) = (allocator(4), Budget::of(MIN));
    let pool = Mempool::new(&a, MIN, &budget).unwrap();
    scope(|s| {
        for thread in 0..10 {
            let pool = &pool;
            s.spawn(move || {
                on_cpu(thread);
                let mut dice = Dice::new(thread as u64);
                for _ in 0..300 {
                    let mut elements = vec![null_mut(); 1 + dice.below(MIN)];
                    pool.alloc_bulk(Gfp::KERNEL, &mut elements).unwrap();
                    elements.iter().for_each(|&element| use_it(element));
                    if dice.below(2) == 0 {
                        free_bulk(pool, &elements);
                    } else {
                        elements.iter().for_each(|&element| free(pool, element));
                    }
                }
            });
        }
    });
    assert_eq!((pool.curr_nr(), budget.live()), (MIN, MIN));
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn a_bulk_request_fills_empty_entries_only_and_takes_all_or_none_of_the_reserve() {
    let (a, budget) = (allocator(1), Budget::of(4));
    let pool = Mempool::new(&a, 4, &budget).unwrap();
    let mut elements = [null_mut(); 4];
    elements[1] = pool.alloc(Gfp::NOWAIT);
    let first = elements[1];
    assert_eq!(
        pool.alloc_bulk(Gfp::NOWAIT, &mut [null_mut(); 4]),
        Err(MempoolError::NoMemory)
    );
    assert_eq!(pool.curr_nr(), 3, "three are not four");
    assert_eq!(pool.alloc_bulk(Gfp::NOWAIT, &mut elements), Ok(()));
    assert_eq!(elements[1], first);
    assert_eq!(elements.iter().collect::<HashSet<_>>().len(), 4);
    assert_eq!(pool.curr_nr(), 0);
    assert_eq!(pool.alloc_bulk(Gfp::NOWAIT, &mut elements), Ok(()), "none");
    // What the source gave stays, whether or not the rest can be had.
    assert_eq!(free_bulk(&pool, &elements[..1]), 1);
    budget.set(2);
    let mut more = [null_mut(); 4];
    let failed = pool.alloc_bulk(Gfp::NOWAIT, &mut more);
    assert_eq!(failed, Err(MempoolError::NoMemory));
    assert_eq!(more.map(|e| e.is_null()), [false, false, true, true]);
    assert_eq!(pool.curr_nr(), 1);
    // Null is passed over; the reserve takes what it has room for.
    assert_eq!(free_bulk(&pool, &more), 2);
    assert_eq!(free_bulk(&pool, &elements[1..]), 1);
    assert_eq!(free_bulk(&pool, &[]), 0);
    assert_eq!((pool.curr_nr(), budget.live()), (4, 4));
    let too_many = pool.alloc_bulk(Gfp::KERNEL, &mut [null_mut(); 5]);
    assert_eq!(too_many, Err(MempoolError::TooMany));
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn zeroed_elements_are_refused() {
    let (a, budget) = (allocator(1), Budget::of(9));
    let pool = Mempool::new(&a, 2, &budget).unwrap();
    budget.take_calls();
    for gfp in [Gfp::KERNEL, Gfp::NOWAIT, Gfp::NOSPIN] {
        let gfp = gfp | Gfp::ZERO;
        assert!(pool.alloc(gfp).is_null() && pool.alloc_preallocated(gfp).is_null());
        assert_eq!(
            pool.alloc_bulk(gfp, &mut [null_mut()]),
            Err(MempoolError::Zero)
        );
    }
    assert_eq!((pool.curr_nr(), budget.take_calls().len()), (2, 0));
    assert_eq!(
        a.platform.warnings(),
        ["mempool: a pool's elements are not zeroed"; 9]
    );
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn preallocated_elements_never_come_from_the_source() {
    let (a, budget) = (allocator(1), Budget::of(9));
    let pool = Mempool::new(&a, 2, &budget).unwrap();
    budget.take_calls();
    let elements = [0; 2].map(|_| pool.alloc_preallocated(Gfp::KERNEL));
    assert!(elements.iter().all(|element| !element.is_null()));
    assert!(pool.alloc_preallocated(Gfp::KERNEL).is_null());
    assert_eq!(budget.take_calls().len(), 0);
    assert_eq!(free_bulk(&pool, &elements), 2);
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn a_pool_of_none_parks_one_element_for_those_who_sleep() {
    let _alone = alone();
    let (a, budget) = (allocator(2), Budget::of(1));
    let pool = Mempool::new(&a, 0, &budget).unwrap();
    assert_eq!((pool.min_nr(), pool.curr_nr(), budget.live()), (0, 0, 0));
    let element = pool.alloc(Gfp::KERNEL);
    scope(|s| {
        let takers: Vec<_> = (0..4).map(|_| taker(s, &pool)).collect();
        until_asleep(4);
        free(&pool, element);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
    assert_eq!((pool.curr_nr(), budget.live()), (1, 1), "one is parked");
    budget.set(1);
    let second = pool.alloc(Gfp::KERNEL);
    free(&pool, second);
    assert_eq!(budget.live(), 1, "and no other");
    assert_eq!(pool.resize(0), Ok(()));
    assert_eq!((pool.curr_nr(), budget.live()), (1, 1), "it stays");
    // It makes way for those that are reserved.
    budget.set(2);
    assert_eq!(pool.resize(2), Ok(()));
    assert_eq!((pool.curr_nr(), budget.live()), (2, 2));
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn a_creation_that_fails_gives_everything_back() {
    let a = allocator(1);
    for had in 0..5 {
        let budget = Budget::of(had);
        let error = Mempool::new(&a, 5, &budget).err();
        assert_eq!(error, Some(MempoolError::NoMemory));
        assert_balanced(&a, &budget);
    }
    for min_nr in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8] {
        let budget = Budget::of(9);
        let error = Mempool::new(&a, min_nr, &budget).err();
        assert_eq!(error, Some(MempoolError::NoMemory));
        assert_eq!(budget.left(), 9);
    }
    let (a, budget) = (allocator(1), Budget::of(9));
    a.platform.fail(0, usize::MAX);
    let error = Mempool::new(&a, 5, &budget).err();
    assert_eq!(error, Some(MempoolError::NoMemory), "no array");
    assert!(a.platform.heal() > 0);
    assert_balanced(&a, &budget);
}

#[test]
fn objects_of_a_cache_last_through_a_shortage() {
    let a = allocator(2);
    let cache = a.create(&CacheArgs::new("request", 200)).unwrap();
    let pool = Mempool::new(&a, 10, SlabSource::new(&a, cache).unwrap()).unwrap();
    // All else is taken, and no more is to be had.
    a.platform.fail(0, usize::MAX);
    let mut others = Vec::new();
    while let object = a.alloc(cache, Gfp::KERNEL)
        && !object.is_null()
    {
        others.push(object);
    }
    let mut requests = [null_mut(); 10];
    for _ in 0..3 {
        assert_eq!(pool.alloc_bulk(Gfp::KERNEL, &mut requests), Ok(()));
        assert!(pool.alloc(Gfp::NOWAIT).is_null());
        // SAFETY: live, freed once.
        assert_eq!(unsafe { pool.free_bulk(&requests) }, 10);
        requests.fill(null_mut());
    }
    a.platform.heal();
    for object in others {
        // SAFETY: live, freed once.
        unsafe { a.free(cache, object) };
    }
    drop(pool);
    assert_all_is_given_back(&a);
}

#[test]
fn runs_of_pages_can_be_reserved() {
    let a = allocator(1);
    let pool = Mempool::new(&a, 3, KmallocSource::new(&a, 3 * PAGE_SIZE)).unwrap();
    let mut runs = [null_mut(); 3];
    assert_eq!(pool.alloc_bulk(Gfp::KERNEL, &mut runs), Ok(()));
    for run in runs {
        assert!((run as usize).is_multiple_of(PAGE_SIZE));
        assert!(a.ksize(run) >= 3 * PAGE_SIZE);
        // SAFETY: live, freed once.
        unsafe { pool.free(run) };
    }
    drop(pool);
    assert_all_is_given_back(&a);
}

#[test]
fn constructed_objects_are_refused() {
    unsafe fn nothing(_: *mut u8) {}
    let a = allocator(1);
    let mut args = CacheArgs::new("constructed", 64);
    args.ctor = Some(Ctor::plain(nothing));
    let cache = a.create(&args).unwrap();
    assert!(SlabSource::new(&a, cache).is_none());
}
