//! Operations in flight finish when memory has run out.

mod support;

use std::ptr::{NonNull, null_mut};
use std::sync::Barrier;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Instant;

use support::{assert_live, stress};
use uslub::{Cache, FnSource, Gfp, Mempool, kfree, kmalloc};

const MIN_NR: usize = 16;
const THREADS: usize = 8;

#[test]
fn all_operations_finish_though_the_source_always_fails() {
    let fails = AtomicBool::new(false);
    let source = FnSource::new(
        |gfp| {
            // Relaxed: set before the threads begin.
            if fails.load(Relaxed) {
                return null_mut();
            }
            kmalloc(64, gfp).map_or(null_mut(), NonNull::as_ptr)
        },
        // SAFETY: an element, freed once.
        |element| unsafe { kfree(element) },
    );
    // SAFETY: elements have 64 bytes.
    let pool = unsafe { Mempool::<[usize; 8], _>::from_source(MIN_NR, source) }.unwrap();
    fails.store(true, Relaxed);

    // So many can be in flight at once.
    let all: Vec<_> = (0..MIN_NR).map(|n| pool.alloc([n; 8])).collect();
    assert!(pool.try_alloc([0; 8], Gfp::NOWAIT).is_err());
    drop(all);

    // And all finish, one by one and in bulk, whoever waits for whom.
    let (inflight, most, done) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let begin = Barrier::new(THREADS);
    let end = Instant::now() + stress() / 2;
    thread::scope(|scope| {
        for me in 0..THREADS {
            let (pool, begin, inflight, most, done) = (&pool, &begin, &inflight, &most, &done);
            scope.spawn(move || {
                begin.wait();
                while Instant::now() < end {
                    // Half of the threads ask for several; together they ask for more than there
                    // are.
                    let n = if me % 2 == 0 { 1 } else { 2 + me };
                    let mut elements = vec![None; n];
                    pool.alloc_bulk(Gfp::KERNEL, &mut elements)
                        .expect("it waits");
                    most.fetch_max(inflight.fetch_add(n, SeqCst) + n, SeqCst);
                    for element in elements.iter().flatten() {
                        // SAFETY: ours.
                        unsafe { element.write([me; 8]) };
                    }
                    thread::yield_now();
                    for element in elements.iter().flatten() {
                        // SAFETY: ours.
                        assert_eq!(unsafe { element.read() }, [me; 8]);
                    }
                    inflight.fetch_sub(n, SeqCst);
                    // SAFETY: ours, freed once.
                    unsafe { pool.free_bulk(&mut elements) };
                    done.fetch_add(1, SeqCst);
                }
            });
        }
    });
    let (most, done) = (most.into_inner(), done.into_inner());
    println!("{done} operations, at most {most} elements in flight of {MIN_NR}");
    assert!(done > THREADS && most <= MIN_NR && most > MIN_NR / 2);
    assert_eq!(pool.curr_nr(), MIN_NR);
}

#[test]
fn a_cache_at_its_limit_serves_through_its_pool() {
    let cache = Cache::<[u8; 1024]>::builder("bounded")
        .limit(128 << 10)
        .build()
        .unwrap();
    let pool = Mempool::new(&cache, 8).unwrap();
    let mut hogs = Vec::new();
    while let Ok(hog) = cache.alloc([0; 1024]) {
        hogs.push(hog);
    }
    let finished = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..THREADS as u8 {
            let (pool, finished) = (&pool, &finished);
            scope.spawn(move || {
                for _ in 0..200 {
                    let element = pool.alloc([n; 1024]);
                    thread::yield_now();
                    assert_eq!(*element, [n; 1024]);
                    drop(element);
                    finished.fetch_add(1, SeqCst);
                }
            });
        }
    });
    assert_eq!(finished.into_inner(), 200 * THREADS);
    drop(hogs);
    assert_eq!(pool.curr_nr(), 8);
    drop(pool);
    assert_live(&cache, 0);
}
