//! Whole slabs that are freed at once, and pages of slabs that are taken ahead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::support::{Cache, Dice, Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::StatItem;

fn setup(settings: &[&str]) -> Box<Slub> {
    let a = Setup::with(settings).build();
    // Straight to and from slabs.
    a.platform.set_percpu_usable(false);
    a
}

fn whole_slab(a: &Slub, cache: &Cache) -> Vec<*mut u8> {
    let mut objects = vec![null_mut(); cache.geometry.objects as usize];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    objects
}

fn free(a: &Slub, cache: &Cache, objects: &mut [*mut u8]) {
    // SAFETY: the test's, freed once.
    unsafe { a.free_bulk(cache, objects) }
}

/// Frees a slab in some order of its objects, and looks whether one was written to.
fn freed_untouched(settings: &[&str], arrange: impl Fn(&mut [*mut u8])) {
    let a = setup(settings);
    let cache = a.create(&CacheArgs::new("test", 96)).unwrap();
    let mut objects = whole_slab(&a, cache);
    for &object in &objects {
        // SAFETY: the test's, 96 bytes.
        unsafe { object.write_bytes(0xa5, 96) };
    }
    arrange(&mut objects);
    free(&a, cache, &mut objects);
    assert_eq!(a.info(cache).active_objs, 0);
    assert_eq!(a.info(cache).num_slabs, 1, "an empty slab is kept");
    for &object in &objects {
        // SAFETY: the slab is there still, and nobody else runs.
        let bytes = unsafe { std::slice::from_raw_parts(object, 96) };
        assert!(bytes.iter().all(|&b| b == 0xa5), "a link was written");
    }
    let mut again = whole_slab(&a, cache);
    again.sort();
    objects.sort();
    assert_eq!(again, objects);
    free(&a, cache, &mut again);
    assert_all_is_given_back(&a);
}

#[test]
fn all_objects_of_a_slab_are_freed_without_touching_one() {
    for settings in [&[][..], &["slab_freelist_random=1"], &["empty_reserve=1"]] {
        freed_untouched(settings, |_| {});
        freed_untouched(settings, |objects| objects.reverse());
        freed_untouched(settings, |objects| {
            let mut dice = Dice::new(7);
            for i in (1..objects.len()).rev() {
                objects.swap(i, dice.below(i + 1));
            }
        });
    }
}

#[test]
fn an_object_that_is_twice_in_the_array_is_found() {
    let a = setup(&[]);
    let cache = a.create(&CacheArgs::new("test", 96)).unwrap();
    let objects = whole_slab(&a, cache);
    for (from, to) in [(0, 1), (5, 0), (7, objects.len() - 1)] {
        let a = setup(&[]);
        let cache = a.create(&CacheArgs::new("test", 96)).unwrap();
        let mut objects = whole_slab(&a, cache);
        objects[to] = objects[from];
        let ended = catch_unwind(AssertUnwindSafe(|| free(&a, cache, &mut objects)));
        let message = *ended.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("double free"), "{message}");
    }
}

#[test]
fn an_interior_pointer_among_them_is_found() {
    let a = setup(&[]);
    let cache = a.create(&CacheArgs::new("test", 96)).unwrap();
    let mut objects = whole_slab(&a, cache);
    objects.iter_mut().for_each(|o| *o = o.wrapping_add(8));
    let ended = catch_unwind(AssertUnwindSafe(|| free(&a, cache, &mut objects)));
    let message = *ended.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("interior"), "{message}");
}

#[test]
fn a_wrong_object_is_found_in_any_order() {
    for (from, by, reason) in [(50, 0, "double free"), (0, 16, "interior")] {
        for wrong in [0, 9, 64, 127] {
            let a = setup(&["slab_freelist_random=1"]);
            let cache = a.create(&CacheArgs::new("test", 32)).unwrap();
            let mut objects = whole_slab(&a, cache);
            assert_eq!(objects.len(), 128);
            // Another one instead, or a place inside of it.
            objects[wrong] = objects[(wrong + from) % 128].wrapping_add(by);
            let ended = catch_unwind(AssertUnwindSafe(|| free(&a, cache, &mut objects)));
            let message = *ended.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(reason), "{message}");
        }
    }
}

#[test]
fn an_object_of_another_slab_makes_none_whole() {
    let a = setup(&["slab_freelist_random=1"]);
    let cache = a.create(&CacheArgs::new("test", 32)).unwrap();
    let mut slabs = [whole_slab(&a, cache), whole_slab(&a, cache)];
    let [one, other] = &mut slabs;
    std::mem::swap(&mut one[40], &mut other[90]);
    for (slab, left) in slabs.iter_mut().zip([128, 0]) {
        free(&a, cache, slab);
        assert_eq!(a.info(cache).active_objs, left);
        assert_eq!(a.validate(), Ok(()));
    }
    assert_all_is_given_back(&a);
}

#[test]
fn constructed_objects_stay_constructed() {
    unsafe fn construct(_: *const (), object: *mut u8) -> bool {
        // SAFETY: an object of 96 bytes.
        unsafe { object.write_bytes(0x5c, 96) };
        true
    }
    let a = setup(&[]);
    let mut args = CacheArgs::new("test", 96);
    args.ctor = Some(uslub_core::args::Ctor {
        call: construct,
        data: std::ptr::null(),
    });
    let cache = a.create(&args).unwrap();
    let mut objects = whole_slab(&a, cache);
    free(&a, cache, &mut objects);
    let mut again = whole_slab(&a, cache);
    for &object in &again {
        // SAFETY: the test's.
        assert_eq!(unsafe { object.add(64).read() }, 0x5c);
    }
    free(&a, cache, &mut again);
    assert_all_is_given_back(&a);
}

#[test]
fn pages_taken_ahead_count_as_empty_slabs_and_go_with_a_shrink() {
    let a = setup(&[]);
    let cache = a.create(&CacheArgs::new("test", 256)).unwrap();
    let mut slabs: Vec<_> = (0..777).map(|_| whole_slab(&a, cache)).collect();
    let info = a.info(cache);
    assert_eq!(info.active_slabs, 777);
    let ahead = info.num_slabs - 777;
    assert!((1..16).contains(&ahead), "{ahead}");
    assert_eq!(a.stat(cache, StatItem::AllocSlab), info.num_slabs as u64);
    assert_eq!(a.validate(), Ok(()));
    a.shrink(cache);
    let info = a.info(cache);
    assert_eq!((info.num_slabs, info.active_slabs), (777, 777));
    assert_eq!(a.stat(cache, StatItem::FreeSlab), ahead as u64);
    slabs.extend((0..777).map(|_| whole_slab(&a, cache)));
    for slab in &mut slabs {
        free(&a, cache, slab);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn a_cache_with_a_limit_takes_nothing_ahead() {
    let a = setup(&[]);
    let mut args = CacheArgs::new("test", 256);
    args.limit = Some(600 * 4096);
    let cache = a.create(&args).unwrap();
    let most = cache.max_slabs;
    let mut slabs: Vec<_> = (0..most).map(|_| whole_slab(&a, cache)).collect();
    assert_eq!(a.info(cache).num_slabs, most);
    assert!(a.alloc(cache, Gfp::NOWAIT).is_null());
    for slab in &mut slabs {
        free(&a, cache, slab);
    }
    assert_all_is_given_back(&a);
}

/// Slabs of another cache in such a bulk stay what they are: each of their objects is named, and
/// none is freed.
#[test]
fn whole_slabs_of_another_cache_are_not_freed() {
    for checked in [true, false] {
        let a = Setup::with(&[]).build();
        let [cache, other] =
            ["herbs", "spices"].map(|name| a.create(&CacheArgs::new(name, 64)).unwrap());
        let mut others = whole_slab(&a, other);
        let mut objects =
            vec![null_mut(); 4 * cache.capacity + 4 * cache.geometry.objects as usize];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        objects.sort();
        let (front, live) = (&others[..], a.info(other).live_objs());
        let mut all = [front, &objects, front].concat();
        // SAFETY: not safe, on purpose.
        unsafe {
            match checked {
                true => a.free_bulk(cache, &mut all),
                false => a.free_bulk_unchecked(cache, &mut all),
            }
        }
        let warnings = a.platform.warnings();
        assert_eq!(warnings.len(), 2 * others.len(), "{checked}");
        assert!(warnings.iter().all(|w| w.contains("'spices'")));
        assert_eq!(a.info(cache).live_objs(), 0);
        assert_eq!(a.info(other).live_objs(), live);
        assert_eq!(a.validate(), Ok(()));
        free(&a, other, &mut others);
        assert_all_is_given_back(&a);
    }
}

/// All objects of a slab are freed one by one, and then all of them again: when the second row
/// leaves the sheaves, its slab is free.
#[test]
fn a_slab_that_is_freed_twice_is_found() {
    for size in [16, 64, 256] {
        let a = Setup::with(&[]).build();
        let cache = a.create(&CacheArgs::new("test", size)).unwrap();
        let slab = cache.geometry.objects as usize;
        let mut objects = vec![null_mut(); 400 * slab];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        objects.sort();
        let (twice, others) = objects.split_at(20 * slab);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            for &object in twice.iter().chain(twice).chain(others) {
                // SAFETY: not safe, on purpose.
                unsafe { a.free(cache, object) };
            }
            a.shrink(cache);
        }));
        let message = *ended.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("double free"), "{message}");
    }
}
