//! Objects on their way from CPU to CPU: which of them are offered to the other one.

use std::collections::HashSet;

use crate::support::{Cache, Slub, allocator, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

/// Objects that are on their way at a time: more sheaves than a barn must hold before any are
/// offered.
const BATCH: usize = 800;

/// One CPU allocates and another frees, a few times; the addresses of all objects.
fn hand_over(a: &Slub, cache: &Cache, [from, to]: [usize; 2]) -> HashSet<usize> {
    let mut all = HashSet::new();
    for _ in 0..4 {
        on_cpu(from);
        let objects: Vec<_> = (0..BATCH).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        assert!(objects.iter().all(|object| !object.is_null()));
        on_cpu(to);
        for object in objects {
            all.insert(object as usize);
            // SAFETY: the test's, freed once.
            unsafe { a.free(cache, object) };
        }
    }
    all
}

/// The same by bulks, in which whole slabs lie, or neighbours are of different slabs.
fn hand_over_bulks(a: &Slub, cache: &Cache, [from, to]: [usize; 2], whole: bool) {
    for _ in 0..4 {
        let mut objects = vec![std::ptr::null_mut(); BATCH];
        on_cpu(from);
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        objects.sort();
        if !whole {
            let (even, odd) = objects.split_at(BATCH / 2);
            objects = even.iter().zip(odd).flat_map(|(&a, &b)| [a, b]).collect();
        }
        on_cpu(to);
        // SAFETY: the test's, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
    }
}

#[test]
fn what_another_cpu_takes_is_offered() {
    let a = allocator(2);
    let cache = a.create(&CacheArgs::new("message", 64)).unwrap();
    let all = hand_over(&a, cache, [0, 1]);
    let offered = a.platform.take_offered();
    assert!(offered.len() >= BATCH, "{} objects", offered.len());
    assert!(offered.iter().all(|object| all.contains(object)));
    for whole in [false, true] {
        hand_over_bulks(&a, cache, [0, 1], whole);
        assert!(a.platform.take_offered().len() >= BATCH, "{whole}");
    }
    assert_all_is_given_back(&a);
}

#[test]
fn empty_sheaves_are_offered_whole() {
    let a = allocator(2);
    let args = CacheArgs {
        sheaf_capacity: Some(60),
        ..CacheArgs::new("message", 64)
    };
    let cache = a.create(&args).unwrap();
    hand_over(&a, cache, [0, 1]);
    let arrays = a.platform.take_offered_arrays();
    assert!(arrays.len() >= BATCH / 60, "{} sheaves", arrays.len());
    hand_over_bulks(&a, cache, [0, 1], false);
    let of_bulks = a.platform.take_offered_arrays();
    assert!(of_bulks.len() >= BATCH / 60, "{} sheaves", of_bulks.len());
    assert!(arrays.iter().chain(&of_bulks).all(|&len| len == 60));
    assert_all_is_given_back(&a);
}

/// Objects of `bytes` bytes that are offered on their way from one CPU to another, one by one and
/// by bulks.
fn offered(bytes: usize, cpus: [usize; 2]) -> usize {
    let a = allocator(2);
    let cache = a.create(&CacheArgs::new("message", bytes)).unwrap();
    hand_over(&a, cache, cpus);
    for whole in [false, true] {
        hand_over_bulks(&a, cache, cpus, whole);
    }
    let offered = a.platform.take_offered().len();
    assert_all_is_given_back(&a);
    offered
}

#[test]
fn what_stays_on_a_cpu_is_not() {
    assert_eq!(offered(64, [1, 1]), 0);
}

#[test]
fn nor_are_objects_of_more_than_a_line() {
    assert!(offered(64, [0, 1]) > 0);
    assert_eq!(offered(128, [0, 1]), 0);
}
