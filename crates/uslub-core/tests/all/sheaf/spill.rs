//! What a refill leaves over, and what of it takes the list lock.

use std::ptr::null_mut;

use crate::support::{Cache, Setup, Slub, assert_all_is_given_back, sheaves_on};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::policy::PENDING_LISTS;
use uslub_core::stats::StatItem;

/// Bytes of an object, of which a slab of two pages has 32 and a sheaf 32.
const SIZE: usize = 256;
const KERNEL: [&str; 3] = [
    "sheaf_capacity=32",
    "slab_min_objects=32",
    "slab_min_order=1",
];

fn setup(settings: &[&str]) -> Box<Slub> {
    let setup = Setup::with(&[&KERNEL[..], settings].concat());
    setup.build()
}

fn create(a: &Slub) -> &Cache {
    let cache = a.create(&CacheArgs::new("node", SIZE)).unwrap();
    assert_eq!((cache.geometry.objects, cache.capacity), (32, 32));
    cache
}

/// List locks that some work takes.
fn locks(a: &Slub, cache: &Cache, work: impl FnOnce()) -> u64 {
    let before = a.stat(cache, StatItem::ListLock);
    work();
    a.stat(cache, StatItem::ListLock) - before
}

/// Leaves the CPU with a sheaf that has `held` objects and the node with one slab that has `free`
/// free slots; returns the objects that are in use.
fn one_partial_slab(a: &Slub, cache: &Cache, held: usize, free: usize) -> Vec<*mut u8> {
    a.platform.set_percpu_usable(false);
    let mut used = vec![null_mut(); 64];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut used));
    let gone = used.split_off(64 - free);
    for object in gone {
        // SAFETY: the test's, freed once.
        unsafe { a.free(cache, object) };
    }
    a.platform.set_percpu_usable(true);
    for object in used.drain(..held) {
        // SAFETY: the test's, freed once.
        unsafe { a.free(cache, object) };
    }
    assert_eq!(sheaves_on(a, cache, 0), (Some(held), None));
    used
}

fn free_all(a: &Slub, cache: &Cache, objects: Vec<*mut u8>) {
    for object in objects {
        // SAFETY: the test's, freed once.
        unsafe { a.free(cache, object) };
    }
}

/// Prefills 8 objects from a slab that has 20 free slots; list locks that it took, and what main
/// holds then.
fn prefill_eight(spill: &str, held: usize) -> (u64, Option<usize>) {
    let a = setup(&[spill, "sheaf_capacity=12"]);
    let cache = a.create(&CacheArgs::new("node", SIZE)).unwrap();
    let used = one_partial_slab(&a, cache, held, 20);
    let mut prefilled = None;
    let taken = locks(&a, cache, || {
        prefilled = a.prefill(cache, Gfp::KERNEL, 8);
    });
    let main = sheaves_on(&a, cache, 0).0;
    a.return_prefilled(cache, Gfp::KERNEL, prefilled.unwrap());
    free_all(&a, cache, used);
    assert_all_is_given_back(&a);
    (taken, main)
}

#[test]
fn what_is_left_over_goes_into_the_main_sheaf_if_it_has_room_for_all_of_it() {
    assert_eq!(prefill_eight("sheaf_spill=1", 4), (1, Some(12)));
}

#[test]
fn what_does_not_fit_as_a_whole_goes_back_to_its_slab() {
    assert_eq!(prefill_eight("sheaf_spill=1", 5), (2, Some(5)));
}

#[test]
fn without_spilling_it_goes_back_under_a_second_hold_of_the_list_lock() {
    assert_eq!(prefill_eight("sheaf_spill=0", 4), (2, Some(4)));
}

#[test]
fn the_barn_takes_what_is_left_over_and_the_next_empty_main_gets_it() {
    let a = setup(&["sheaf_spill=2", "sheaf_capacity=12"]);
    let cache = a.create(&CacheArgs::new("node", SIZE)).unwrap();
    let used = one_partial_slab(&a, cache, 4, 20);
    let mut prefilled = None;
    let taken = locks(&a, cache, || {
        prefilled = a.prefill(cache, Gfp::KERNEL, 8);
    });
    assert_eq!((taken, cache.barn(0).nr_spilled()), (1, 1));
    assert_eq!(
        sheaves_on(&a, cache, 0).0,
        Some(4),
        "the CPU's are as before"
    );
    a.return_prefilled(cache, Gfp::KERNEL, prefilled.unwrap());
    // Main and spare have 12 objects, the barn has 12 more.
    let refilled = a.stat(cache, StatItem::SheafRefill);
    let more: Vec<_> = (0..24).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert_eq!(a.stat(cache, StatItem::SheafRefill), refilled);
    assert_eq!(cache.barn(0).nr_spilled(), 0);
    free_all(&a, cache, more);
    free_all(&a, cache, used);
    assert_all_is_given_back(&a);
}

/// Objects in main and list locks taken when a CPU without objects allocates one from a node with
/// two slabs, of 20 free slots each.
fn one_from_two_slabs(settings: &[&str]) -> (Option<usize>, u64) {
    let a = setup(settings);
    let cache = create(&a);
    a.platform.set_percpu_usable(false);
    let mut used = vec![null_mut(); 64];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut used));
    let mut gone: Vec<_> = used.drain(44..).collect();
    gone.extend(used.drain(12..32));
    free_all(&a, cache, gone);
    a.platform.set_percpu_usable(true);
    let taken = locks(&a, cache, || used.push(a.alloc(cache, Gfp::KERNEL)));
    let main = sheaves_on(&a, cache, 0).0;
    free_all(&a, cache, used);
    assert_all_is_given_back(&a);
    (main, taken)
}

#[test]
fn a_partly_filled_sheaf_splits_no_slab() {
    assert_eq!(one_from_two_slabs(&[]), (Some(31), 2));
    assert_eq!(
        one_from_two_slabs(&["refill_min_percent=50"]),
        (Some(19), 1)
    );
}

#[test]
fn what_a_new_slab_has_too_many_of_is_spilled_too() {
    let a = setup(&["sheaf_spill=1"]);
    let cache = create(&a);
    // SAFETY: just allocated.
    unsafe { a.free(cache, a.alloc(cache, Gfp::KERNEL)) };
    // Half of main's 32 objects, which it then has room for again.
    let used: Vec<_> = (0..30).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert_eq!(sheaves_on(&a, cache, 0).0, Some(2));
    let mut one = None;
    let taken = locks(&a, cache, || one = a.prefill(cache, Gfp::KERNEL, 20));
    assert_eq!(taken, 0, "a new slab that is used up is on no list");
    assert_eq!(a.stat(cache, StatItem::AllocSlab), 2);
    a.return_prefilled(cache, Gfp::KERNEL, one.unwrap());
    free_all(&a, cache, used);
    assert_all_is_given_back(&a);
}

#[test]
fn lists_that_need_the_list_lock_share_a_hold_of_it() {
    let a = setup(&[]);
    let cache = create(&a);
    a.platform.set_percpu_usable(false);
    let mut slabs: Vec<_> = (0..PENDING_LISTS).map(|_| vec![null_mut(); 32]).collect();
    for slab in &mut slabs {
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, slab));
    }
    let mut first: Vec<_> = slabs.iter_mut().map(|slab| slab.pop().unwrap()).collect();
    // SAFETY: the test's, freed once.
    let taken = locks(&a, cache, || unsafe { a.free_bulk(cache, &mut first) });
    assert_eq!(taken, 1, "all slabs were full, and are listed now");
    assert_eq!(
        a.stat(cache, StatItem::FreeAddPartial),
        PENDING_LISTS as u64
    );
    for slab in slabs {
        free_all(&a, cache, slab);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn lists_of_one_slab_share_a_hold_too() {
    let a = setup(&["look_ahead=1"]);
    let cache = create(&a);
    a.platform.set_percpu_usable(false);
    let [mut one, mut other] = [[null_mut(); 32]; 2];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut one));
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut other));
    let mut mixed: Vec<_> = (0..PENDING_LISTS / 2)
        .flat_map(|i| [one[i], other[i]])
        .collect();
    // SAFETY: the test's, freed once.
    let taken = locks(&a, cache, || unsafe { a.free_bulk(cache, &mut mixed) });
    assert_eq!(taken, 1, "lists of one object each, of two full slabs");
    assert_eq!(a.stat(cache, StatItem::FreeAddPartial), 2);
    assert_eq!(a.stat(cache, StatItem::FreeDetached), PENDING_LISTS as u64);
    assert_eq!(a.validate(), Ok(()));
    free_all(&a, cache, one[PENDING_LISTS / 2..].to_vec());
    free_all(&a, cache, other[PENDING_LISTS / 2..].to_vec());
    assert_all_is_given_back(&a);
}

#[test]
fn an_object_that_is_freed_twice_is_found_while_its_slab_waits_for_the_lock() {
    let a = setup(&["look_ahead=1"]);
    let cache = create(&a);
    a.platform.set_percpu_usable(false);
    let mut slabs = [[null_mut(); 32]; 2];
    for slab in &mut slabs {
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, slab));
    }
    let [a1, b1] = [slabs[0][0], slabs[1][0]];
    let mut objects = [a1, b1, a1];
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: the test's; the second free of one is what is to be found.
        unsafe { a.free_bulk(cache, &mut objects) };
    }));
    let message = *ended.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("double free"), "{message}");
}

#[test]
fn empty_slabs_at_hand_are_taken_without_the_list_lock() {
    let a = setup(&["empty_reserve=1"]);
    let cache = create(&a);
    a.platform.set_percpu_usable(false);
    let mut slabs: Vec<_> = (0..4).map(|_| vec![null_mut(); 32]).collect();
    for slab in &mut slabs {
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, slab));
    }
    for slab in &mut slabs {
        // SAFETY: the test's, freed once.
        unsafe { a.free_bulk(cache, slab) };
    }
    assert_eq!(
        (a.info(cache).num_slabs, a.info(cache).active_slabs),
        (4, 0)
    );
    let mut first = vec![null_mut(); 32];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut first));
    // SAFETY: as above.
    unsafe { a.free_bulk(cache, &mut first) };
    let taken = locks(&a, cache, || {
        for slab in &mut slabs {
            assert!(a.alloc_bulk(cache, Gfp::KERNEL, slab));
        }
    });
    assert_eq!(taken, 0);
    assert_eq!(a.stat(cache, StatItem::AllocSlab), 4);
    for slab in &mut slabs {
        // SAFETY: as above.
        unsafe { a.free_bulk(cache, slab) };
    }
    assert_all_is_given_back(&a);
}
