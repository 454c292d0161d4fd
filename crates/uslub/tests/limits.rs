//! Limits hold under load, and shrinkers make room.

mod support;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::Instant;

use support::{assert_live, stress};
use uslub::{Cache, Object};

const LIMIT: usize = 512 << 10;
const THREADS: usize = 8;

#[test]
fn slabs_never_exceed_the_limit() {
    let cache = Cache::<[u64; 40]>::builder("bounded")
        .limit(LIMIT)
        .build()
        .unwrap();
    let (done, failures) = (AtomicBool::new(false), AtomicUsize::new(0));
    let slab = cache.stats().pages_per_slab * 4096;
    let end = Instant::now() + stress() / 2;
    let mut most = 0;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let (cache, failures) = (&cache, &failures);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    while Instant::now() < end {
                        for n in 0..400 {
                            match cache.alloc([me as u64 ^ n; 40]) {
                                Ok(object) => held.push(object),
                                // Relaxed: a figure.
                                Err(_) => _ = failures.fetch_add(1, Relaxed),
                            }
                        }
                        cache.free_all(held.drain(..));
                    }
                })
            })
            .collect();
        let stop = &done;
        let watch = scope.spawn(|| {
            let mut most = 0;
            // Relaxed: nothing hangs on when it is seen.
            while !stop.load(Relaxed) {
                // A slab counts before it is had, so attempts that will fail are seen too, for a
                // moment.
                let sample = || cache.stats().slab_bytes();
                most = most.max(sample().min(sample()).min(sample()));
            }
            most
        });
        for thread in threads {
            thread.join().unwrap();
        }
        done.store(true, Relaxed);
        most = watch.join().unwrap();
    });
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let failures = failures.into_inner();
    println!("at most {most} bytes of {LIMIT} ({slab} a slab), {failures} allocations refused");
    assert!(most <= LIMIT + cpus * slab, "{most}");
    assert!(failures > 0 && most > LIMIT / 2, "the limit was reached");
    assert_live(&cache, 0);
    assert_eq!(cache.destroy(), Ok(()));
}

#[test]
fn what_was_freed_is_found_while_others_trim() {
    let cache = Cache::<[u8; 1024]>::builder("found")
        .limit(32 << 10)
        .build()
        .unwrap();
    let full: Vec<_> = std::iter::from_fn(|| cache.alloc([0; 1024]).ok()).collect();
    let (room, end) = (full.len(), Instant::now() + stress() / 8);
    drop(full);
    thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                uslub::trim();
            }
        });
        while Instant::now() < end {
            // What a trim has in its hands is somewhere else for a moment.
            let held: Vec<_> = (0..room)
                .map(|n| cache.alloc([n as u8; 1024]).expect("room"))
                .collect();
            cache.free_all(held);
        }
    });
    assert_live(&cache, 0);
    assert_eq!(cache.destroy(), Ok(()));
}

#[test]
fn a_shrinker_makes_room_and_the_allocation_then_succeeds() {
    type Page = [u8; 2048];
    static CACHE: LazyLock<Cache<Page>> =
        LazyLock::new(|| Cache::builder("pages").limit(LIMIT).build().unwrap());
    static CLEAN: Mutex<Vec<Object<'static, Page>>> = Mutex::new(Vec::new());
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let shrinker = CACHE.shrinker(|wanted| {
        // Relaxed: a figure.
        ASKED.fetch_add(1, Relaxed);
        // The oldest first.
        let Ok(mut clean) = CLEAN.try_lock() else {
            return 0;
        };
        let n = wanted.min(clean.len());
        clean.drain(..n).count()
    });
    for n in 0..5000 {
        let page = CACHE
            .alloc([n as u8; 2048])
            .expect("the shrinker makes room");
        CLEAN.lock().unwrap().push(page);
        assert!(CACHE.stats().slab_bytes() <= LIMIT);
    }
    // Relaxed: as above.
    println!("asked {} times for 5000 pages", ASKED.load(Relaxed));
    assert!(ASKED.load(Relaxed) >= 5000 * 2048 / LIMIT / 2);
    drop(shrinker);
    // Without it the limit is a limit.
    let refused = (0..1000).any(|_| match CACHE.alloc([0; 2048]) {
        Ok(page) => {
            CLEAN.lock().unwrap().push(page);
            false
        }
        Err(_) => true,
    });
    assert!(refused);
    CLEAN.lock().unwrap().clear();
    assert_live(&CACHE, 0);
}
