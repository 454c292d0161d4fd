//! The iterator over a fresh slab: every slot once, in the right order, constructed once,
//! and not touched before it is handed out.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::support;
use crate::support::{Cache, Dice, Fresh, POISON, Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor};

const SIZES: [usize; 9] = [8, 24, 64, 96, 256, 520, 1024, 4096, 9000];

/// Allocates straight from the slabs.
fn take(a: &Slub, cache: &Cache, count: usize) -> Vec<*mut u8> {
    let mut objects = vec![null_mut(); count];
    a.platform.set_percpu_usable(false);
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    a.platform.set_percpu_usable(true);
    objects
}

/// Frees straight to the slabs.
fn give(a: &Slub, cache: &Cache, objects: &[*mut u8]) {
    a.platform.set_percpu_usable(false);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut objects.to_vec()) };
    a.platform.set_percpu_usable(true);
}

/// Where in its slab each object lies, with the slab's address.
fn places(cache: &Cache, objects: &[*mut u8]) -> Vec<(usize, usize)> {
    let mask = cache.geometry.bytes() - 1;
    let place = |&o: &*mut u8| (o as usize & !mask, o as usize & mask);
    objects.iter().map(place).collect()
}

/// The offsets of all slots, in address order.
fn slots(cache: &Cache) -> Vec<usize> {
    (0..cache.geometry.objects as usize)
        .map(|slot| slot * cache.size as usize)
        .collect()
}

#[test]
fn a_slab_on_pages_that_were_given_back_is_in_another_epoch() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("herbs", 64)).unwrap();
    let epochs: Vec<_> = (0..3)
        .map(|_| {
            let objects = take(&a, cache, 3 * cache.geometry.objects as usize);
            let page = a.zone.arena.page_of(objects[0] as usize).unwrap();
            let epoch = cache.slab_of(&a.zone.arena, page).epoch();
            give(&a, cache, &objects);
            assert!(!a.shrink(cache));
            (page, epoch)
        })
        .collect();
    assert!(epochs.iter().all(|(page, _)| *page == epochs[0].0));
    assert!(epochs[0].1 != epochs[1].1 && epochs[1].1 != epochs[2].1);
}

#[test]
fn a_fresh_slab_hands_out_every_slot_once_in_address_order() {
    for size in SIZES {
        for portion in [1, 3, 1000] {
            let a = support::allocator(1);
            let cache = a.create(&CacheArgs::new("test", size)).unwrap();
            let objects = cache.geometry.objects as usize;
            let mut got = Vec::new();
            while got.len() < objects {
                got.extend(take(&a, cache, portion.min(objects - got.len())));
            }
            let places = places(cache, &got);
            let offsets: Vec<usize> = places.iter().map(|p| p.1).collect();
            assert_eq!(offsets, slots(cache), "size {size}, {portion} at a time");
            assert!(places.iter().all(|p| p.0 == places[0].0), "one slab");
            assert_eq!(a.info(cache).num_slabs, 1);
            give(&a, cache, &got);
            assert_all_is_given_back(&a);
        }
    }
}

#[test]
fn objects_taken_one_by_one_through_sheaves_walk_upwards() {
    let a = support::allocator(1);
    let mut args = CacheArgs::new("test", 64);
    args.sheaf_capacity = Some(10);
    let cache = a.create(&args).unwrap();
    let got: Vec<_> = (0..30).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    let slots: Vec<usize> = places(cache, &got).iter().map(|p| p.1 / 64).collect();
    assert_eq!(slots, (0..30).collect::<Vec<_>>());
}

#[test]
fn with_random_order_every_slab_hands_out_a_turn_of_one_permutation() {
    for size in SIZES {
        let a = Setup::with(&["slab_freelist_random=1"]).build();
        let cache = a.create(&CacheArgs::new("test", size)).unwrap();
        let objects = cache.geometry.objects as usize;
        assert_eq!(cache.is_random(), objects > 1);
        let mut dice = Dice::new(size as u64);
        let mut got = Vec::new();
        while got.len() < 6 * objects {
            let portion = 1 + dice.below(objects);
            got.extend(take(&a, cache, portion.min(6 * objects - got.len())));
        }
        let mut turns = BTreeMap::<usize, Vec<usize>>::new();
        for (slab, offset) in places(cache, &got) {
            turns.entry(slab).or_default().push(offset);
        }
        assert_eq!(turns.len(), 6);
        let first = turns.values().next().unwrap().clone();
        for turn in turns.values() {
            let sorted: BTreeSet<usize> = turn.iter().copied().collect();
            assert_eq!(sorted.into_iter().collect::<Vec<_>>(), slots(cache));
            let start = first.iter().position(|o| o == &turn[0]).unwrap();
            let turned = [&first[start..], &first[..start]].concat();
            assert_eq!(turn, &turned, "size {size}");
        }
        if objects >= 16 {
            assert_ne!(first, slots(cache), "not in address order");
            let starts: BTreeSet<usize> = turns.values().map(|turn| turn[0]).collect();
            assert!(starts.len() > 1, "slabs begin at different places");
        }
        give(&a, cache, &got);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_bulk_of_whole_slabs_writes_to_no_object() {
    for random in ["slab_freelist_random=0", "slab_freelist_random=1"] {
        for size in SIZES {
            let mut setup = Setup::with(&[random]);
            setup.fresh = Fresh::Poisoned;
            let a = setup.build();
            let cache = a.create(&CacheArgs::new("test", size)).unwrap();
            let got = take(&a, cache, 3 * cache.geometry.objects as usize);
            for &(slab, _) in &places(cache, &got) {
                assert_untouched(slab, cache.geometry.bytes());
            }
            assert_eq!(a.validate(), Ok(()));
        }
    }
}

#[test]
fn the_rest_of_a_fresh_slab_is_not_touched_either() {
    for random in ["slab_freelist_random=0", "slab_freelist_random=1"] {
        for size in [8, 64, 256] {
            let mut setup = Setup::with(&[random]);
            setup.fresh = Fresh::Poisoned;
            let a = setup.build();
            let cache = a.create(&CacheArgs::new("test", size)).unwrap();
            let first = a.alloc(cache, Gfp::KERNEL);
            // An allocation of one object writes its first word, and nothing beyond. SAFETY: ours.
            unsafe { first.write_bytes(POISON, 8) };
            let more = take(&a, cache, 2);
            for &(slab, _) in &places(cache, &[first, more[0], more[1]]) {
                assert_untouched(slab, cache.geometry.bytes());
            }
            assert_eq!(a.validate(), Ok(()));
        }
    }
}

fn assert_untouched(slab: usize, bytes: usize) {
    assert!(
        support::pattern::is_filled(slab as *const u8, bytes, POISON),
        "somebody wrote to the slab at {slab:#x}"
    );
}

#[test]
fn freed_objects_are_taken_before_fresh_ones() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
    let got = take(&a, cache, 10);
    give(&a, cache, &[got[3], got[7]]);
    let again = take(&a, cache, 4);
    let slots: Vec<usize> = places(cache, &again).iter().map(|p| p.1 / 64).collect();
    assert_eq!(
        (slots[0] + slots[1], slots[0] * slots[1]),
        (10, 21),
        "{slots:?}"
    );
    assert_eq!(slots[2..], [10, 11]);
}

#[test]
fn a_slab_that_became_empty_starts_over() {
    for random in [false, true] {
        let settings = [if random {
            "slab_freelist_random=1"
        } else {
            "slab_freelist_random=0"
        }];
        let a = Setup::with(&settings).build();
        let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
        let mut dice = Dice::new(1);
        let objects = cache.geometry.objects as usize;
        let before = take(&a, cache, objects);
        for used in [objects, objects / 2, 1] {
            // Now some of the slab, the rest of it only freed or never handed out.
            let mut held = before.clone();
            dice.shuffle(&mut held);
            give(&a, cache, &held);
            assert_eq!(a.info(cache).active_slabs, 0);
            assert_eq!(a.info(cache).num_slabs, 1, "kept as a reserve");
            let some = take(&a, cache, used);
            assert_eq!(some, before[..used], "the same order again");
            let rest = take(&a, cache, objects - used);
            assert_eq!(rest, before[used..]);
            assert_eq!(a.validate(), Ok(()));
        }
    }
}

/// Addresses that a constructor was called with, by test: constructors have no argument for it.
static CONSTRUCTED: [Mutex<Vec<usize>>; 4] = [const { Mutex::new(Vec::new()) }; 4];

/// A constructor that notes its calls in list `N` and leaves a mark.
unsafe fn construct<const N: usize>(object: *mut u8) {
    CONSTRUCTED[N].lock().unwrap().push(object as usize);
    // SAFETY: the object is being constructed.
    unsafe { object.write_bytes(0xc0 + N as u8, 40) };
}

fn constructed<const N: usize>() -> BTreeMap<usize, usize> {
    let mut times = BTreeMap::new();
    for &object in CONSTRUCTED[N].lock().unwrap().iter() {
        *times.entry(object).or_insert(0) += 1;
    }
    times
}

fn with_constructor<const N: usize>(settings: &[&str]) -> (Box<Slub>, CacheArgs<'static>) {
    let mut args = CacheArgs::new("test", 40);
    args.ctor = Some(Ctor::plain(construct::<N>));
    (Setup::with(settings).build(), args)
}

fn assert_constructed<const N: usize>(objects: &[*mut u8]) {
    for &object in objects {
        assert!(support::pattern::is_filled(object, 40, 0xc0 + N as u8));
    }
}

#[test]
fn a_constructor_runs_once_for_each_slot_and_never_on_reuse() {
    let (a, args) = with_constructor::<0>(&["slab_freelist_random=0"]);
    once_for_each_slot::<0>(&a, a.create(&args).unwrap());
}

#[test]
fn a_constructor_runs_once_for_each_slot_in_random_order_too() {
    let (a, args) = with_constructor::<1>(&["slab_freelist_random=1"]);
    once_for_each_slot::<1>(&a, a.create(&args).unwrap());
}

fn once_for_each_slot<const N: usize>(a: &Slub, cache: &Cache) {
    // One object of each of the first slabs stays, so that none of these is ever empty. Others may
    // be, and start over.
    let objects = cache.geometry.objects as usize;
    let slab_of = |object: usize| object & !(cache.geometry.bytes() - 1);
    let mut held = take(a, cache, 4 * objects);
    let mut dice = Dice::new(5);
    let mut kept = BTreeMap::new();
    held.retain(|&o| {
        let slab = slab_of(o as usize);
        *kept.entry(slab).or_insert(o) != o
    });
    let stays: BTreeSet<usize> = kept.keys().copied().collect();
    let kept: Vec<*mut u8> = kept.into_values().collect();
    for round in 0..30 {
        dice.shuffle(&mut held);
        let some = held.split_off(dice.below(held.len()));
        if round % 2 == 0 {
            give(a, cache, &some);
        } else {
            // SAFETY: the test's objects, freed once.
            some.iter().for_each(|&o| unsafe { a.free(cache, o) });
        }
        held.extend((0..some.len()).map(|_| a.alloc(cache, Gfp::KERNEL)));
        assert_constructed::<N>(&held);
    }
    let times = constructed::<N>();
    assert!(times.len() >= 4 * objects);
    let of_these = times.iter().filter(|&(&o, _)| stays.contains(&slab_of(o)));
    let of_these: Vec<_> = of_these.map(|(_, &n)| n).collect();
    assert_eq!(of_these, vec![1; 4 * objects]);
    let distinct: BTreeSet<_> = held.iter().chain(&kept).collect();
    assert_eq!(distinct.len(), 4 * objects);
    give(a, cache, &held);
    give(a, cache, &kept);
    assert_all_is_given_back(a);
}

#[test]
fn a_constructor_does_not_run_again_in_a_slab_that_was_empty_but_kept() {
    let (a, args) = with_constructor::<2>(&[]);
    let cache = a.create(&args).unwrap();
    let objects = cache.geometry.objects as usize;
    for _ in 0..3 {
        let got = take(&a, cache, objects);
        assert_constructed::<2>(&got);
        give(&a, cache, &got);
        assert_eq!(a.info(cache).num_slabs, 1, "kept as a reserve");
    }
    let times = constructed::<2>();
    assert_eq!(times.len(), objects);
    assert!(times.values().all(|&n| n == 1), "constructed objects again");
}

#[test]
fn a_constructor_runs_again_when_the_pages_were_given_back() {
    let (a, args) = with_constructor::<3>(&[]);
    let cache = a.create(&args).unwrap();
    let objects = cache.geometry.objects as usize;
    for round in 1..4 {
        let got = take(&a, cache, objects);
        assert_constructed::<3>(&got);
        give(&a, cache, &got);
        assert!(!a.shrink(cache), "the slab went");
        let times = constructed::<3>();
        assert_eq!(times.values().sum::<usize>(), round * objects);
    }
}
