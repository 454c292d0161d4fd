//! The end of a cache: everything back, or every leaked object by its address.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support;
use crate::support::{Cache, Setup, Slub, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

fn take(a: &Slub, cache: &Cache, n: usize) -> Vec<*mut u8> {
    let objects: Vec<_> = (0..n).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert!(objects.iter().all(|o| !o.is_null()));
    objects
}

fn give(a: &Slub, cache: &Cache, objects: &[*mut u8]) {
    for &object in objects {
        // SAFETY: taken from this cache, and given back once.
        unsafe { a.free(cache, object) };
    }
}

fn destroy(a: &Slub, cache: &Cache) -> BTreeSet<usize> {
    let mut leaked = BTreeSet::new();
    // SAFETY: the tests use the cache no more unless objects were leaked.
    let count = unsafe { a.destroy(cache, |object| assert!(leaked.insert(object as usize))) };
    assert_eq!(count, leaked.len());
    leaked
}

#[test]
fn a_destroyed_cache_leaves_nothing_and_its_identity_serves_the_next() {
    let a = support::allocator(4);
    let mut ids = BTreeSet::new();
    for round in 0..50 {
        let size = 16 + 8 * round;
        let cache = a.create(&CacheArgs::new("mayfly", size)).unwrap();
        ids.insert(cache.id.index());
        for cpu in 0..4 {
            on_cpu(cpu);
            let objects = take(&a, cache, 100);
            on_cpu(3 - cpu);
            give(&a, cache, &objects);
        }
        assert!(destroy(&a, cache).is_empty());
        assert_eq!(a.validate(), Ok(()));
    }
    // A destroyed cache's identity rests a while before it serves again.
    assert_eq!(ids.len(), 17);
    assert_eq!(a.totals().slabs, 0);
}

#[test]
fn records_of_destroyed_caches_are_used_again() {
    for random in ["slab_freelist_random=0", "slab_freelist_random=1"] {
        let a = Setup::with(&[random]).build();
        let round = || {
            let cache = a.create(&CacheArgs::new("mayfly", 64)).unwrap();
            give(&a, cache, &take(&a, cache, 70));
            destroy(&a, cache);
        };
        // A destroyed cache's record rests a while before it serves again.
        (0..20).for_each(|_| round());
        let before = a.meta.bytes();
        (0..100).for_each(|_| round());
        // Sheaf windows come back too; nothing else may grow.
        assert_eq!(a.meta.bytes(), before);
    }
}

#[test]
fn leaked_objects_are_reported_exactly_and_stay_usable() {
    for random in ["slab_freelist_random=0", "slab_freelist_random=1"] {
        let a = Setup::with(&[random]).build();
        let cache = a.create(&CacheArgs::new("leaky", 192)).unwrap();
        let objects = take(&a, cache, 300);
        let (kept, freed): (Vec<_>, Vec<_>) =
            objects.iter().enumerate().partition(|(i, _)| i % 7 == 0);
        let freed: Vec<_> = freed.into_iter().map(|(_, &o)| o).collect();
        let kept: BTreeSet<_> = kept.into_iter().map(|(_, &o)| o as usize).collect();
        give(&a, cache, &freed);
        assert_eq!(destroy(&a, cache), kept);
        for &object in &kept {
            // SAFETY: leaked objects keep their memory.
            unsafe { (object as *mut u8).write_bytes(0x5a, 192) };
        }
        assert_eq!(a.validate(), Ok(()));
        // The cache lives on; once the rest is back it can go.
        give(
            &a,
            cache,
            &kept.iter().map(|&o| o as *mut u8).collect::<Vec<_>>(),
        );
        assert!(destroy(&a, cache).is_empty());
    }
}

#[test]
fn destroying_twice_is_seen() {
    let a = support::allocator(2);
    let cache = a.create(&CacheArgs::new("twice", 64)).unwrap();
    assert!(destroy(&a, cache).is_empty());
    let why = catch_unwind(AssertUnwindSafe(|| destroy(&a, cache))).expect_err("this was not seen");
    let why = why.downcast::<String>().expect("a message");
    assert!(
        why.contains("cache 'twice'") && why.contains("destroyed already"),
        "{why}"
    );
}

#[test]
fn a_cache_that_takes_over_an_identity_begins_with_no_counts() {
    let a = support::allocator(1);
    let old = a.create(&CacheArgs::new("old", 64)).unwrap();
    let id = old.id;
    for _ in 0..100 {
        let object = a.alloc(old, Gfp::KERNEL);
        // SAFETY: the test's object, freed once.
        unsafe { a.free(old, object) };
    }
    // SAFETY: nobody uses the cache any more.
    assert_eq!(unsafe { a.destroy(old, |_| ()) }, 0);
    // A destroyed cache's identity rests a while before it serves again.
    let next = || a.create(&CacheArgs::new("new", 64)).unwrap();
    let new = (0..20)
        .find_map(|_| {
            let new = next();
            // SAFETY: nobody uses the cache any more.
            (new.id == id || unsafe { a.destroy(new, |_| ()) } > 0).then_some(new)
        })
        .unwrap();
    assert_eq!(new.id, id);
    let info = a.info(new);
    assert_eq!(
        (info.allocs, info.frees),
        (0, 0),
        "counts of the cache before"
    );
}

#[test]
fn an_allocation_after_the_end_is_seen() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("gone", 64)).unwrap();
    let object = a.alloc(cache, Gfp::KERNEL);
    // SAFETY: the test's object, freed once.
    unsafe { a.free(cache, object) };
    assert!(destroy(&a, cache).is_empty());
    // Others come and go; the record rests meanwhile.
    for _ in 0..10 {
        destroy(&a, a.create(&CacheArgs::new("next", 64)).unwrap());
    }
    for work in [
        &|| {
            a.alloc(cache, Gfp::KERNEL);
        },
        &|| {
            destroy(&a, cache);
        },
    ] as [&dyn Fn(); 2]
    {
        let ended = catch_unwind(AssertUnwindSafe(work)).expect_err("this was not seen");
        let message = *ended.downcast::<String>().expect("a message");
        assert!(message.contains("'gone'"), "{message}");
    }
}
