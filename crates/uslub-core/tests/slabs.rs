//! Partial lists: which slabs are listed, in which order they are used, and which empty ones are
//! kept.

mod support;

use std::ptr::null_mut;

use support::{Cache, Setup, Slub, assert_all_is_given_back};
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
fn what_a_zeroed_object_grows_by_is_zero() {
    let a = support::allocator(1);
    let gfp = Gfp::KERNEL | Gfp::ZERO;
    // Old bytes everywhere.
    let dirty: Vec<_> = [100, 1000, 5000, 9000, 70_000, 300_000]
        .iter()
        .map(|&bytes| {
            let object = a.kmalloc(bytes, Gfp::KERNEL);
            support::pattern::fill(object, a.ksize(object), 0xff);
            object
        })
        .collect();
    for object in dirty {
        // SAFETY: the test's object, freed once.
        unsafe { a.kfree(object) };
    }
    let mut object = a.kmalloc(10, gfp);
    let mut written = 10;
    support::pattern::fill(object, written, 0x55);
    for bytes in [
        15, 90, 60, 100, 1000, 900, 5000, 9000, 8100, 70_000, 300_000, 299_000, 600_000,
    ] {
        // SAFETY: the test's object; the old pointer is used no more.
        object = unsafe { a.krealloc(object, bytes, gfp) };
        written = written.min(bytes);
        assert!(
            support::pattern::is_filled(object, written, 0x55),
            "{bytes}"
        );
        let rest = object.wrapping_add(written);
        assert!(
            support::pattern::is_filled(rest, bytes - written, 0),
            "{bytes}"
        );
        support::pattern::fill(object, bytes, 0x55);
        written = bytes;
    }
    // SAFETY: the test's object, freed once.
    unsafe { a.kfree(object) };
    assert_all_is_given_back(&a);
}

/// A bulk finds what is listed, and what is in a sheaf, before it takes a new slab; where there is
/// nothing it says what it missed.
#[test]
fn a_bulk_takes_new_slabs_only_where_nothing_else_is_left() {
    let a = Setup::with(&["slab_min_objects=64", "sheaf_capacity=32"]).build();
    let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
    let stats = || {
        let items = [
            StatItem::AllocSlab,
            StatItem::AllocSlowpath,
            StatItem::AllocFastpath,
            StatItem::BarnGetFail,
        ];
        items.map(|item| a.stat(cache, item))
    };
    assert_eq!(cache.geometry.objects, 64);
    let bulk = |count| {
        let mut objects = vec![null_mut(); count];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        objects
    };
    let mut held = bulk(160);
    assert_eq!(stats(), [3, 160, 0, 1]);
    assert_eq!(cache.node(0).nr_partial(), 1, "half a slab is left");
    held.extend(bulk(32));
    assert_eq!(stats(), [3, 192, 0, 2]);
    assert_eq!(cache.node(0).nr_partial(), 0);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut held.split_off(172)) };
    held.extend(bulk(40));
    assert_eq!(stats()[..3], [4, 212, 20]);
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), 212, "no object is handed out twice");
    // What is given back comes before a new slab.
    // SAFETY: as above.
    unsafe { a.free_bulk(cache, &mut held) };
    let slabs = stats()[0];
    bulk(64);
    assert_eq!(stats()[0], slabs);
    assert_eq!(a.validate(), Ok(()));
}

/// What a bulk of new slabs counts does not depend on how many there are, although all of one slab
/// are counted at once.
#[test]
fn a_bulk_of_new_slabs_counts_each_object_and_one_miss() {
    for count in [40, 64, 65, 128, 160] {
        let a = Setup::with(&["slab_min_objects=64", "sheaf_capacity=32"]).build();
        let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
        let mut objects = vec![null_mut(); count];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        let items = [
            (StatItem::AllocSlowpath, count as u64),
            (StatItem::AllocFastpath, 0),
            (StatItem::BarnGetFail, 1),
            (StatItem::OrderFallback, 0),
        ];
        for (item, n) in items {
            assert_eq!(a.stat(cache, item), n, "{item:?} of {count}");
        }
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
        assert_all_is_given_back(&a);
    }
}
