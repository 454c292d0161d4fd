//! Many threads at once: one cache, caches that come and go, forks.

mod support;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use support::{assert_live, stress};
use uslub::{Cache, Gfp, Object, kfree, kmalloc, trim};

#[test]
fn objects_made_by_some_threads_are_freed_by_others() {
    let cache = Cache::builder("passed")
        .sheaf_capacity(4..=200)
        .build()
        .unwrap();
    let end = Instant::now() + stress() / 4;
    thread::scope(|scope| {
        for seed in 0..3u64 {
            let (sender, receiver) = mpsc::sync_channel::<Object<'_, [u64; 9]>>(256);
            let cache = &cache;
            scope.spawn(move || {
                let mut n = seed;
                while Instant::now() < end {
                    n += 3;
                    sender.send(cache.alloc([n; 9]).unwrap()).unwrap();
                }
            });
            scope.spawn(move || {
                let mut batch = Vec::new();
                for object in receiver {
                    assert!(object.iter().all(|n| *n == object[0]));
                    batch.push(object);
                    if batch.len() == 100 {
                        cache.free_all(batch.drain(..));
                    }
                }
            });
        }
    });
    assert_live(&cache, 0);
    assert_eq!(cache.destroy(), Ok(()));
}

#[test]
fn caches_come_and_go_while_others_trim() {
    let end = Instant::now() + stress() / 4;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: nothing hangs on when it is seen.
            while !done.load(Relaxed) {
                trim();
                // Others' flushes of what nobody uses.
                let objects: Vec<_> = (0..100)
                    .filter_map(|_| kmalloc(4096, Gfp::KERNEL))
                    .collect();
                for object in objects {
                    // SAFETY: freed once.
                    unsafe { kfree(object.as_ptr()) };
                }
            }
        });
        let mut destroyed = Ok(());
        while destroyed.is_ok() && Instant::now() < end {
            let cache = Cache::new("mayfly").unwrap();
            let objects: Vec<_> = (0..200u64).map(|n| cache.alloc(n).unwrap()).collect();
            cache.free_all(objects);
            destroyed = cache.destroy();
        }
        // Relaxed: as above.
        done.store(true, Relaxed);
        assert_eq!(destroyed, Ok(()));
    });
}
