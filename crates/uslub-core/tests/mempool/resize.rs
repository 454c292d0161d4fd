//! Memory pools that are resized, while threads wait in them or use them.

use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{scope, yield_now};

use crate::budget::{Budget, alone, assert_balanced, free, free_bulk, taker, until_asleep, use_it};
use crate::support::torment::Torment;
use crate::support::{Dice, allocator, on_cpu};
use uslub_core::Gfp;
use uslub_core::mempool::{Mempool, MempoolError};

#[test]
fn growing_wakes_those_who_wait() {
    let _alone = alone();
    let (a, budget) = (allocator(2), Budget::of(1));
    let pool = Mempool::new(&a, 1, &budget).unwrap();
    let only = pool.alloc(Gfp::KERNEL);
    scope(|s| {
        let takers: Vec<_> = (0..6).map(|_| taker(s, &pool)).collect();
        until_asleep(6);
        budget.set(3);
        assert_eq!(pool.resize(4), Ok(()));
        // The first element never comes back, and they finish all the same.
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
    assert_eq!((pool.min_nr(), pool.curr_nr()), (4, 3));
    free(&pool, only);
    assert_eq!(pool.curr_nr(), 4);
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn shrinking_under_those_who_wait_leaves_nobody_behind() {
    let _alone = alone();
    let (a, budget) = (allocator(2), Budget::of(4));
    let pool = Mempool::new(&a, 4, &budget).unwrap();
    let mut all = [null_mut(); 4];
    pool.alloc_bulk(Gfp::KERNEL, &mut all).unwrap();
    scope(|s| {
        let takers: Vec<_> = (0..4).map(|_| taker(s, &pool)).collect();
        let bulk = s.spawn(|| pool.alloc_bulk(Gfp::KERNEL, &mut [null_mut(); 3]));
        until_asleep(5);
        assert_eq!(pool.resize(2), Ok(()));
        // Three will never be there together again.
        assert_eq!(bulk.join().unwrap(), Err(MempoolError::TooMany));
        assert_eq!(pool.resize(0), Ok(()));
        free_bulk(&pool, &all);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
    assert_eq!((pool.curr_nr(), budget.live()), (1, 1));
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn shrinking_to_none_does_not_take_what_somebody_was_woken_for() {
    let _alone = alone();
    let a = allocator(2);
    for _ in 0..300 {
        let budget = Budget::of(2);
        let pool = Mempool::new(&a, 2, &budget).unwrap();
        let both = [0; 2].map(|_| pool.alloc(Gfp::KERNEL) as usize);
        scope(|s| {
            let takers = [taker(s, &pool), taker(s, &pool)];
            until_asleep(2);
            s.spawn(|| assert_eq!(pool.resize(0), Ok(())));
            for element in both {
                let pool = &pool;
                s.spawn(move || free(pool, element as *mut u8));
            }
            takers.into_iter().for_each(|taker| taker.join().unwrap());
        });
        assert_eq!((pool.curr_nr(), budget.live()), (1, 1));
        drop(pool);
        assert_balanced(&a, &budget);
    }
}

#[test]
fn shrinking_frees_what_is_too_much_and_failing_to_grow_changes_nothing() {
    let (a, budget) = (allocator(1), Budget::of(8));
    let pool = Mempool::new(&a, 8, &budget).unwrap();
    assert_eq!(pool.resize(3), Ok(()));
    assert_eq!((pool.min_nr(), pool.curr_nr(), budget.live()), (3, 3, 3));
    assert_eq!(pool.resize(3), Ok(()));
    let held = pool.alloc(Gfp::KERNEL);
    budget.set(4);
    assert_eq!(pool.resize(8), Err(MempoolError::NoMemory));
    assert_eq!((pool.min_nr(), pool.curr_nr(), budget.live()), (3, 2, 3));
    assert_eq!(pool.resize(usize::MAX), Err(MempoolError::NoMemory));
    budget.set(5);
    assert_eq!(pool.resize(8), Ok(()));
    assert_eq!((pool.min_nr(), pool.curr_nr(), budget.live()), (8, 7, 8));
    free(&pool, held);
    let mut all = [null_mut(); 8];
    assert_eq!(pool.alloc_bulk(Gfp::NOWAIT, &mut all), Ok(()));
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 8);
    assert_eq!(free_bulk(&pool, &all), 8);
    drop(pool);
    assert_balanced(&a, &budget);
}

#[test]
fn pools_that_are_resized_under_load_lose_nothing() {
    let _alone = alone();
    let (a, budget) = (allocator(4), Budget::of(usize::MAX));
    let pool = Mempool::new(&a, 4, &budget).unwrap();
    let (torment, done) = (Torment::default(), AtomicUsize::new(0));
    scope(|s| {
        s.spawn(|| torment.run());
        for thread in 0..6 {
            let (pool, torment, done, budget) = (&pool, &torment, &done, &budget);
            s.spawn(move || {
                on_cpu(thread);
                let mut dice = Dice::new(thread as u64);
                torment.suffer(|| {
                    for round in 0..1500 {
                        // Now and then the source has nothing, but for those who resize.
                        match (thread, round % 64) {
                            (0, 0) => budget.set(0),
                            (0, 32) => budget.set(usize::MAX),
                            _ => {}
                        }
                        let mut elements = vec![null_mut(); 1 + dice.below(3)];
                        if pool.alloc_bulk(Gfp::NOWAIT, &mut elements).is_ok() {
                            elements.iter().for_each(|&element| use_it(element));
                        }
                        free_bulk(pool, &elements);
                    }
                });
                // SeqCst: nothing here is measured.
                done.fetch_add(1, SeqCst);
            });
        }
        for thread in 0..2 {
            let (pool, done) = (&pool, &done);
            s.spawn(move || {
                let mut dice = Dice::new(thread);
                // SeqCst: as above.
                while done.load(SeqCst) < 6 {
                    let _ = pool.resize(dice.below(9));
                }
            });
        }
        // SeqCst: as above.
        while done.load(SeqCst) < 6 {
            yield_now();
        }
        torment.end();
    });
    assert!(pool.curr_nr() <= pool.min_nr().max(1));
    assert_eq!(budget.live(), pool.curr_nr());
    drop(pool);
    assert_balanced(&a, &budget);
}
