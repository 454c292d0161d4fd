//! The reader from outside against this process's own figures: at rest, and under load.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use uslub::{Gfp, RawCache};
use uslub_inspect::snapshot::Row;
use uslub_inspect::{Depth, Heap, Process, root};

fn process() -> Process {
    Process::open(std::process::id() as i32).expect("a process may read itself")
}

fn heap(process: &Process) -> Heap<'_> {
    let roots = root::find(process).expect("the note of this program");
    assert_eq!(roots.len(), 1);
    assert_eq!(
        (roots[0].face.as_str(), roots[0].version.as_str()),
        ("rust", "0.1.0")
    );
    Heap::open(process, roots[0].clone()).expect("the heap")
}

fn row(heap: &mut Heap<'_>, name: &str) -> Row {
    let look = heap.look(Depth::Full).expect("a look");
    let row = look.rows.into_iter().find(|row| row.cache.name == name);
    row.expect("the cache")
}

#[test]
fn a_cache_at_rest_is_read_exactly() {
    let cache = RawCache::builder("at rest", 136).build().expect("a cache");
    let mut kept = Vec::new();
    for round in 0..5 {
        kept.extend((0..700).map(|_| cache.alloc(Gfp::KERNEL).expect("memory")));
        for object in kept.drain(..round * 100) {
            // SAFETY: of this cache, freed once.
            unsafe { cache.free(object.as_ptr()) };
        }
        let process = process();
        let mut heap = heap(&process);
        let (row, own) = (row(&mut heap, "at rest"), cache.stats().info);
        assert_eq!(row.live(), Some(kept.len() as u64));
        assert_eq!(row.live(), Some(own.live_objs() as u64));
        assert_eq!(row.cached, own.cached_objs as u64);
        assert_eq!(
            (row.slots, row.slabs),
            (own.num_objs as u64, own.num_slabs as u64)
        );
        assert_eq!(row.calls, (own.allocs, own.frees));
        assert_eq!(row.uncertain, 0);
    }
    for object in kept {
        // SAFETY: of this cache, freed once.
        unsafe { cache.free(object.as_ptr()) };
    }
}

#[test]
fn a_cache_under_load_is_read_within_the_stated_bound() {
    const THREADS: usize = 3;
    const KEPT: usize = 2000;
    let cache = RawCache::builder("under load", 72)
        .build()
        .expect("a cache");
    let ends = AtomicBool::new(false);
    let ready = std::sync::Barrier::new(THREADS + 1);
    let churn = |thread: usize| {
        let mut kept: Vec<_> = (0..KEPT)
            .map(|_| cache.alloc(Gfp::KERNEL).expect("memory"))
            .collect();
        let mut dice = thread + 1;
        ready.wait();
        // Relaxed: a hint to end.
        while !ends.load(Relaxed) {
            // Up to 300 objects leave and come back, so that sheaves and slabs change.
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = dice >> 33 & 255;
            for object in kept.drain(..n) {
                // SAFETY: of this cache, freed once.
                unsafe { cache.free(object.as_ptr()) };
            }
            kept.extend((0..n).map(|_| cache.alloc(Gfp::KERNEL).expect("memory")));
        }
        for object in kept {
            // SAFETY: of this cache, freed once.
            unsafe { cache.free(object.as_ptr()) };
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || churn(thread));
        }
        ready.wait();
        let process = process();
        let mut heap = heap(&process);
        let looks: Vec<_> = (0..60).map(|_| row(&mut heap, "under load")).collect();
        // Before any assertion: the scope waits for the threads. Relaxed: a hint to end.
        ends.store(true, Relaxed);
        let most = (THREADS * KEPT) as u64;
        // Each thread holds up to 255 objects fewer.
        let least = most - 255 * THREADS as u64;
        for row in looks {
            // Each thread may hold two sheaves in the middle of a call.
            let capacity = row.cache.capacity.0.max(row.cache.capacity.1);
            let in_hand = (2 * THREADS * capacity) as u64;
            let live = row.live().expect("a full look");
            let bound = row.uncertain + in_hand;
            assert!(live <= most + bound, "{live} of {most}, ~{bound}");
            assert!(live + bound >= least, "{live} of {least}, ~{bound}");
            assert!(live <= row.slots);
        }
    });
    assert_eq!(cache.stats().info.live_objs(), 0);
}
