//! CPUs that no call with `GFP_KERNEL` has run on: they get slots without a call of the system.

use std::ptr::null_mut;

use crate::support;
use crate::support::{Cache, Setup, Slub, assert_all_is_given_back, free_all, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::mempool::{Mempool, SlabSource};
use uslub_core::stats::StatItem;

/// Objects of one turn: several sheaves.
const OBJECTS: usize = 400;

/// An allocator whose CPU 0 has left objects in the slabs of a cache.
fn warm(setup: Setup) -> Box<Slub> {
    let a = setup.build();
    let cache = a.create(&CacheArgs::new("test", 256)).unwrap();
    let mut objects = vec![null_mut(); 8 * OBJECTS];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    free_all(&a, cache, objects);
    a
}

fn test_cache(a: &Slub) -> &Cache {
    a.caches().find(|cache| cache.name() == "test").unwrap()
}

/// Runs `work` on a CPU; returns the objects that it took from slabs, and the calls that asked the
/// system for memory.
fn on(a: &Slub, cpu: usize, work: impl FnOnce()) -> (u64, usize) {
    let slow = a.stat(test_cache(a), StatItem::AllocSlowpath);
    let asked = a.platform.calls().asking();
    on_cpu(cpu);
    work();
    let slow = a.stat(test_cache(a), StatItem::AllocSlowpath) - slow;
    (slow, a.platform.calls().asking() - asked)
}

/// Allocates on a CPU, one by one.
fn alloc_on(a: &Slub, cpu: usize, gfp: Gfp) -> (u64, usize) {
    let mut held = Vec::new();
    let figures = on(a, cpu, || {
        held.extend((0..OBJECTS).map(|_| a.alloc(test_cache(a), gfp)));
    });
    assert!(held.iter().all(|object| !object.is_null()));
    on_cpu(0);
    free_all(a, test_cache(a), held);
    figures
}

#[test]
fn a_cold_cpu_serves_nowait_and_nospin_from_sheaves() {
    // `GFP_ATOMIC` is `GFP_NOWAIT` here.
    for gfp in [Gfp::NOWAIT, Gfp::NOSPIN, Gfp::NOWAIT | Gfp::ZERO] {
        let a = warm(Setup::default());
        for cpu in 1..4 {
            let (slow, asked) = alloc_on(&a, cpu, gfp);
            assert_eq!((slow, asked), (0, 0), "{gfp:?} on CPU {cpu}");
        }
        // As on the CPU that is warm.
        assert_eq!(alloc_on(&a, 0, gfp), (0, 0));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_cold_cpu_serves_bulks_from_sheaves() {
    let a = warm(Setup::default());
    let cache = test_cache(&a);
    let fast = a.stat(cache, StatItem::AllocFastpath);
    let mut held = vec![null_mut(); 8];
    let (_, asked) = on(&a, 1, || {
        assert!(a.alloc_bulk(cache, Gfp::NOWAIT, &mut held));
        assert!(a.table.region(1).is_some());
        free_all(&a, cache, std::mem::take(&mut held));
    });
    assert_eq!(asked, 0);
    assert_eq!(a.stat(cache, StatItem::AllocFastpath), fast + 8);
    assert_all_is_given_back(&a);
}

#[test]
fn a_cold_cpu_serves_a_mempool_from_sheaves() {
    let a = warm(Setup::default());
    let cache = test_cache(&a);
    let pool = Mempool::new(&*a, 2, SlabSource::new(&a, cache).unwrap()).unwrap();
    let mut held = Vec::new();
    let (slow, asked) = on(&a, 2, || {
        held.extend((0..OBJECTS).map(|_| pool.alloc(Gfp::KERNEL)));
    });
    assert_eq!((slow, asked), (0, 0));
    for element in held {
        // SAFETY: of this pool, and not used any longer.
        unsafe { pool.free(element) };
    }
    drop(pool);
    on_cpu(0);
    assert_all_is_given_back(&a);
}

#[test]
fn a_cold_cpu_keeps_a_sheaf_that_was_prefilled() {
    let a = warm(Setup::default());
    let cache = test_cache(&a);
    on_cpu(3);
    for turn in 0..10 {
        let mut sheaf = a.prefill(cache, Gfp::NOWAIT, 8).unwrap();
        let object = a.alloc_from(cache, Gfp::NOWAIT, &mut sheaf);
        a.return_prefilled(cache, Gfp::NOWAIT, sheaf);
        // The first one comes from the barn, all others are the CPU's spare.
        assert_eq!(a.stat(cache, StatItem::SheafPrefillFast), turn);
        on_cpu(0);
        free_all(&a, cache, vec![object]);
        on_cpu(3);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn under_a_limit_the_next_call_that_may_map_makes_up_for_it() {
    let setup = Setup {
        limited: true,
        ..Setup::default()
    };
    let a = warm(setup);
    let (slow, asked) = alloc_on(&a, 1, Gfp::NOWAIT);
    assert_eq!(
        (slow, asked),
        (OBJECTS as u64, 0),
        "nothing is mapped ahead"
    );
    // CPU 0 has run out of objects now and then since, and mapped a region.
    assert_eq!(alloc_on(&a, 1, Gfp::NOWAIT), (0, 0));
    assert_all_is_given_back(&a);
}

#[test]
fn a_drain_does_not_keep_a_nowait_call_waiting() {
    let a = warm(Setup::default());
    let cache = test_cache(&a);
    // The second one is the drain's.
    let mut nr = 0;
    a.for_each_lock(|lock| {
        nr += 1;
        if nr == 2 {
            lock.acquire();
        }
    });
    on_cpu(1);
    let object = support::never_waiting(|| a.alloc(cache, Gfp::NOWAIT));
    assert!(!object.is_null());
    nr = 0;
    a.for_each_lock(|lock| {
        nr += 1;
        if nr == 2 {
            // SAFETY: this thread took it.
            unsafe { lock.release() };
        }
    });
    free_all(&a, cache, vec![object]);
    assert_all_is_given_back(&a);
}
