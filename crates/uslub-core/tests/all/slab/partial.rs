//! Partial lists: which slabs are listed, in which order they are used, and which empty ones are
//! kept.

use std::ptr::null_mut;

use crate::support;
use crate::support::{Cache, Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::StatItem;

/// An allocator whose caches keep so many slabs, and where everything goes straight to the slabs.
fn setup(min_partial: usize) -> Box<Slub> {
    let a = Setup::with(&[&format!("min_partial={min_partial}")]).build();
    a.create(&CacheArgs::new("test", 256)).unwrap();
    a.platform.set_percpu_usable(false);
    a
}

fn cache(a: &Slub) -> &Cache {
    a.caches().next().unwrap()
}

fn take(a: &Slub, count: usize) -> Vec<*mut u8> {
    let mut objects = vec![null_mut(); count];
    assert!(a.alloc_bulk(cache(a), Gfp::KERNEL, &mut objects));
    objects
}

fn give(a: &Slub, objects: &[*mut u8]) {
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache(a), &mut objects.to_vec()) }
}

/// So many slabs, all full.
fn full_slabs(a: &Slub, count: usize) -> Vec<Vec<*mut u8>> {
    let objects = cache(a).geometry.objects as usize;
    (0..count).map(|_| take(a, objects)).collect()
}

fn partial(a: &Slub) -> usize {
    cache(a).node(0).nr_partial()
}

/// Which of the slabs an object is of.
fn slab_of(slabs: &[Vec<*mut u8>], object: *mut u8) -> usize {
    slabs.iter().position(|s| s.contains(&object)).unwrap()
}

#[test]
fn a_slab_is_listed_while_some_of_its_slots_are_free() {
    let a = setup(100);
    let slabs = full_slabs(&a, 3);
    assert_eq!(partial(&a), 0, "full slabs are on no list");
    give(&a, &slabs[1][..1]);
    assert_eq!(partial(&a), 1);
    give(&a, &slabs[1][1..3]);
    give(&a, &slabs[2][..1]);
    assert_eq!(partial(&a), 2);
    assert_eq!(a.stat(cache(&a), StatItem::FreeAddPartial), 2);
    take(&a, 4);
    assert_eq!(partial(&a), 0);
    assert_eq!(a.info(cache(&a)).num_slabs, 3);
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn slabs_are_used_in_the_order_in_which_they_got_a_free_slot() {
    let a = setup(100);
    let slabs = full_slabs(&a, 4);
    for slab in [2, 0, 3, 1] {
        give(&a, &slabs[slab][..1]);
    }
    let order: Vec<usize> = take(&a, 4).iter().map(|&o| slab_of(&slabs, o)).collect();
    assert_eq!(order, [2, 0, 3, 1]);
}

#[test]
fn a_slab_that_a_refill_did_not_use_up_goes_behind_the_others() {
    let a = setup(100);
    let slabs = full_slabs(&a, 3);
    for slab in [0, 1, 2] {
        give(&a, &slabs[slab][..3]);
    }
    let order: Vec<usize> = (0..6).map(|_| slab_of(&slabs, take(&a, 1)[0])).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn a_refill_takes_no_more_slabs_than_it_needs() {
    let a = setup(100);
    let slabs = full_slabs(&a, 4);
    for slab in &slabs {
        give(&a, &slab[..5]);
    }
    // Two slabs have enough; the rest of the second goes back by one update.
    let got = take(&a, 7);
    let of = |slab| got.iter().filter(|&&o| slab_of(&slabs, o) == slab).count();
    assert_eq!([of(0), of(1), of(2), of(3)], [5, 2, 0, 0]);
    assert_eq!(partial(&a), 3);
    assert_eq!(a.stat(cache(&a), StatItem::FreeAddPartial), 4);
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn slabs_that_become_empty_are_kept_up_to_min_partial() {
    for min_partial in [1, 2, 5] {
        let a = setup(min_partial);
        let slabs = full_slabs(&a, 10);
        let last: Vec<*mut u8> = slabs.iter().map(|slab| slab[0]).collect();
        for slab in &slabs {
            give(&a, &slab[1..]);
        }
        assert_eq!(partial(&a), 10, "all partial, none empty");
        assert_eq!(a.stat(cache(&a), StatItem::FreeSlab), 0);
        for (i, &object) in last.iter().enumerate() {
            let listed = partial(&a);
            give(&a, &[object]);
            // The list, the emptied slab on it, is too long as long as it has min_partial.
            let discarded = usize::from(listed >= min_partial);
            assert_eq!(partial(&a), listed - discarded, "slab {i}");
        }
        assert_eq!(partial(&a), min_partial - 1);
        let gone = (10 - partial(&a)) as u64;
        assert_eq!(a.stat(cache(&a), StatItem::FreeSlab), gone);
        assert_eq!(a.stat(cache(&a), StatItem::FreeRemovePartial), gone);
        assert_eq!(a.info(cache(&a)).num_slabs, partial(&a));
        a.platform.set_percpu_usable(true);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn full_slabs_that_become_empty_at_once_are_kept_up_to_min_partial() {
    let a = setup(3);
    let slabs = full_slabs(&a, 8);
    for (i, slab) in slabs.iter().enumerate() {
        give(&a, slab);
        assert_eq!(partial(&a), (i + 1).min(3));
    }
    assert_eq!(a.info(cache(&a)).active_slabs, 0);
    assert_eq!(a.stat(cache(&a), StatItem::FreeRemovePartial), 0);
    assert_eq!(a.stat(cache(&a), StatItem::FreeSlab), 5);
    assert_eq!(a.stat(cache(&a), StatItem::AllocSlab), 8);
    a.platform.set_percpu_usable(true);
    assert_all_is_given_back(&a);
}

#[test]
fn a_shrink_discards_empty_slabs_and_puts_the_fullest_first() {
    let a = setup(100);
    let slabs = full_slabs(&a, 6);
    let all = slabs[0].len();
    // Free slots: none, three, all, one, five, two.
    for (slab, free) in [(1, 3), (2, all), (3, 1), (4, 5), (5, 2)] {
        give(&a, &slabs[slab][..free]);
    }
    assert!(a.shrink(cache(&a)), "slabs remain");
    assert_eq!((partial(&a), a.info(cache(&a)).num_slabs), (4, 5));
    assert_eq!(a.validate(), Ok(()));
    let order: Vec<usize> = (take(&a, 11).iter()).map(|&o| slab_of(&slabs, o)).collect();
    assert_eq!(order, [3, 5, 5, 1, 1, 1, 4, 4, 4, 4, 4]);
}

#[test]
fn slabs_with_one_slot_come_and_go_with_their_object() {
    let a = Setup::with(&["min_partial=1"]).build();
    let mut args = CacheArgs::new("test", 40_000);
    args.max_order = Some(4);
    let cache = a.create(&args).unwrap();
    assert_eq!(cache.geometry.objects, 1);
    a.platform.set_percpu_usable(false);
    let objects: Vec<_> = (0..4).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert_eq!((a.info(cache).num_slabs, partial(&a)), (4, 0));
    for object in objects {
        give(&a, &[object]);
        assert_eq!(a.validate(), Ok(()));
    }
    assert_eq!((a.info(cache).num_slabs, partial(&a)), (1, 1));
    a.platform.set_percpu_usable(true);
    assert_all_is_given_back(&a);
}

#[test]
fn every_object_size_gives_slabs_that_can_be_filled_and_emptied() {
    let a = support::allocator(4);
    for size in (1..200).chain((200..65_536).step_by(977)).chain([65_536]) {
        let cache = a.create(&CacheArgs::new("test", size)).unwrap();
        let mut objects = vec![null_mut(); 2 * cache.geometry.objects as usize + 1];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        for (i, &object) in objects.iter().enumerate() {
            support::pattern::fill(object, size, i as u8);
        }
        for (i, &object) in objects.iter().enumerate() {
            assert!(support::pattern::is_filled(object, size, i as u8));
        }
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
    }
    assert_all_is_given_back(&a);
}
