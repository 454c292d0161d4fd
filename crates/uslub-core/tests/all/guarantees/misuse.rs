//! Misuse ends the process, with a message that names the cache, the pointer and the reason.
//!
//! What goes into a sheaf is not looked at before it leaves it for its slab; a shrink makes it
//! leave.

use std::ptr::null_mut;

use crate::support;
use crate::support::seen::{assert_names, message};
use crate::support::{Cache, Setup, Slub};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};
use uslub_core::memory::PageIndex;
use uslub_core::platform::PAGE_SIZE;

fn with_cache(work: impl FnOnce(&Slub, &Cache)) {
    let a = support::allocator(2);
    work(&a, a.create(&CacheArgs::new("herbs", 64)).unwrap());
}

fn free(a: &Slub, cache: &Cache, object: *mut u8) {
    // SAFETY: not safe, on purpose: the allocator must see it.
    unsafe { a.free(cache, object) }
}

fn kfree(a: &Slub, object: *mut u8) {
    // SAFETY: as above.
    unsafe { a.kfree(object) }
}

#[test]
fn an_object_that_is_freed_twice_in_a_row_is_seen() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        free(a, cache, object);
        let seen = message(|| {
            free(a, cache, object);
            a.shrink(cache);
        });
        assert_names(&seen, object, &["'herbs'", "double free"]);
    });
}

#[test]
fn an_object_that_is_freed_again_when_its_slab_has_it_is_seen() {
    with_cache(|a, cache| {
        let objects: Vec<_> = (0..10).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        for &object in &objects[..9] {
            free(a, cache, object);
        }
        a.shrink(cache);
        for &object in &objects[..9] {
            let seen = message(|| {
                free(a, cache, object);
                a.shrink(cache);
            });
            assert_names(&seen, object, &["'herbs'", "double free"]);
        }
    });
}

#[test]
fn a_bulk_free_of_an_object_twice_is_seen() {
    with_cache(|a, cache| {
        a.platform.set_percpu_usable(false);
        let mut objects = [null_mut(); 5];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        let twice = objects[1];
        objects[4] = twice;
        // SAFETY: not safe, on purpose.
        let seen = message(|| unsafe { a.free_bulk(cache, &mut objects) });
        assert_names(&seen, twice, &["'herbs'", "double free"]);
    });
}

#[test]
fn a_bulk_of_what_was_never_allocated_is_seen() {
    with_cache(|a, cache| {
        // SAFETY: null is passed over.
        unsafe { a.free_bulk(cache, &mut [null_mut(); 11]) };
        for n in [2, 8, 11] {
            for wrong in [0x10usize, usize::MAX, 1 << 63] {
                let wrong = wrong as *mut u8;
                // SAFETY: not safe, on purpose.
                let seen = message(|| unsafe { a.free_bulk(cache, &mut vec![wrong; n]) });
                assert_names(&seen, wrong, &["'herbs'", "foreign pointer"]);
            }
        }
    });
}

#[test]
fn a_bulk_of_foreign_pointers_is_seen_by_the_cache_of_the_first_page() {
    with_cache(|a, cache| {
        let arena = &a.zone.arena;
        let mut objects = [null_mut(); 100_000];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        assert_eq!(arena.cache_of(PageIndex(0)), Some(cache.id));
        let behind = arena.base() + arena.limit() * PAGE_SIZE;
        for n in [2, 8, 11] {
            for wrong in [0x10, arena.base() - 1, behind, usize::MAX] {
                let wrong = wrong as *mut u8;
                // SAFETY: not safe, on purpose.
                let seen = message(|| unsafe { a.free_bulk(cache, &mut vec![wrong; n]) });
                assert_names(&seen, wrong, &["'herbs'", "foreign pointer"]);
            }
        }
    });
}

#[test]
fn an_object_whose_slab_is_gone_is_seen() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        free(a, cache, object);
        assert!(!a.shrink(cache));
        for again in [
            message(|| kfree(a, object)),
            message(|| {
                free(a, cache, object);
                a.shrink(cache);
            }),
        ] {
            assert_names(&again, object, &["double free", "pages are free"]);
        }
    });
}

#[test]
fn an_object_that_is_freed_again_when_its_slab_has_started_over_is_seen() {
    with_cache(|a, cache| {
        a.platform.set_percpu_usable(false);
        let mut objects = [null_mut(); 20];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        let last = objects[19];
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects.to_vec()) };
        assert_eq!(a.info(cache).num_slabs, 1, "kept as a reserve");
        // The slab hands out its first slots again; the twentieth is not handed out yet.
        let mut again = [null_mut(); 3];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut again));
        let seen = message(|| free(a, cache, last));
        assert_names(&seen, last, &["'herbs'", "double free"]);
    });
}

#[test]
fn validate_sees_an_object_that_is_in_a_sheaf_twice() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        free(a, cache, object);
        assert_eq!(a.validate(), Ok(()));
        a.alloc(cache, Gfp::KERNEL);
        a.alloc(cache, Gfp::KERNEL);
        free(a, cache, object);
        // Its mark is gone, so the free itself sees nothing.
        // SAFETY: a write after free, on purpose.
        unsafe { object.cast::<u64>().write(0) };
        free(a, cache, object);
        assert!(a.validate().is_err(), "one slot is in two places");
    });
}

#[test]
fn validate_sees_a_slot_in_a_sheaf_that_was_never_handed_out() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        let end = (object as usize & !(cache.geometry.bytes() - 1)) + cache.geometry.bytes();
        free(a, cache, (end - 64) as *mut u8);
        assert!(a.validate().is_err(), "one slot is in two places");
    });
}

#[test]
fn more_frees_than_objects_in_use_are_seen_without_hardening() {
    let a = Setup::with(&["slab_freelist_hardened=0", "sheaf_capacity=60"]).build();
    let cache = a.create(&CacheArgs::new("herbs", 64)).unwrap();
    let objects: Vec<_> = (0..3).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    a.platform.set_percpu_usable(false);
    let seen = message(|| {
        // Into the one slab, which has 60 objects in use: 3 here, 57 in the sheaf.
        for _ in 0..61 {
            free(&a, cache, objects[0]);
        }
    });
    assert_names(&seen, objects[0], &["'herbs'", "double free"]);
}

#[test]
fn an_object_of_another_cache_is_seen() {
    with_cache(|a, cache| {
        let other = a.create(&CacheArgs::new("spices", 64)).unwrap();
        let object = a.alloc(other, Gfp::KERNEL);
        free(a, cache, object);
        let seen = a.platform.warnings();
        assert_eq!(seen.len(), 1);
        assert_names(&seen[0], object, &["'herbs'", "'spices'", "not freed"]);
        a.shrink(cache);
        // It leaks; its own cache still takes it back.
        assert_eq!(a.info(other).live_objs(), 1);
        free(a, other, object);
        assert_eq!(a.info(other).live_objs(), 0);
        assert_eq!(a.validate(), Ok(()));
    });
}

#[test]
fn an_object_of_another_cache_is_seen_behind_one_of_this() {
    with_cache(|a, cache| {
        let other = a.create(&CacheArgs::new("spices", 64)).unwrap();
        let own = [a.alloc(cache, Gfp::KERNEL), a.alloc(cache, Gfp::KERNEL)];
        let object = a.alloc(other, Gfp::KERNEL);
        // SAFETY: not safe, on purpose: the allocator must see it.
        unsafe { a.free_bulk(cache, &mut [own[0], object, own[1], null_mut()]) };
        let seen = a.platform.warnings();
        assert_eq!(seen.len(), 1);
        assert_names(&seen[0], object, &["'herbs'", "'spices'", "not freed"]);
        assert_eq!(a.info(cache).live_objs(), 0);
        assert_eq!(a.info(other).live_objs(), 1);
        assert_eq!(a.validate(), Ok(()));
    });
}

#[test]
fn objects_on_pages_that_were_given_back_are_seen_in_a_bulk() {
    with_cache(|a, cache| {
        let other = a.create(&CacheArgs::new("spices", 64)).unwrap();
        let mut objects = [null_mut(); 1000];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        let (kept, freed) = objects.split_at_mut(100);
        // SAFETY: ours, freed once.
        unsafe { a.free_bulk(cache, &mut freed.to_vec()) };
        a.shrink(cache);
        let mut others = [null_mut(); 1000];
        assert!(a.alloc_bulk(other, Gfp::KERNEL, &mut others));
        let recycled = others.iter().copied().filter(|o| freed.contains(o));
        let recycled: Vec<_> = recycled.collect();
        assert!(
            recycled.len() > 800,
            "{} of the objects are where there were others",
            recycled.len()
        );
        // Of several slabs: the span is not asked of one's.
        let wrong: Vec<_> = recycled.into_iter().step_by(20).take(40).collect();
        // SAFETY: not safe, on purpose: the allocator must see it.
        unsafe { a.free_bulk(cache, &mut wrong.clone()) };
        let seen = a.platform.warnings();
        assert_eq!(seen.len(), 40);
        for (seen, object) in seen.iter().zip(&wrong) {
            assert_names(seen, *object, &["'herbs'", "'spices'", "not freed"]);
        }
        // SAFETY: ours, freed once.
        unsafe {
            a.free_bulk(other, &mut others);
            a.free_bulk(cache, kept);
        }
        assert_eq!(a.validate(), Ok(()));
    });
}

#[test]
fn wrong_pointers_are_seen_at_once_where_there_are_no_sheaves() {
    with_cache(|a, cache| {
        a.platform.set_percpu_usable(false);
        let object = a.alloc(cache, Gfp::KERNEL);
        let mut here = [0u64; 16];
        for (pointer, reason) in [
            (object.wrapping_add(8), "interior pointer"),
            (a.kmalloc(CLASS_MAX + 1, Gfp::KERNEL), "never allocated"),
            (a.kmalloc(LARGE_MAX + 1, Gfp::KERNEL), "foreign pointer"),
            (here.as_mut_ptr().cast(), "foreign pointer"),
            (object.wrapping_add(1 << 20), "never allocated"),
        ] {
            let seen = message(|| free(a, cache, pointer));
            assert_names(&seen, pointer, &["'herbs'", reason]);
        }
        free(a, cache, object);
        let seen = message(|| free(a, cache, object));
        assert_names(&seen, object, &["'herbs'", "double free"]);
    });
}

#[test]
fn a_large_object_given_to_a_cache_is_seen() {
    with_cache(|a, cache| {
        let object = a.kmalloc(CLASS_MAX + 1, Gfp::KERNEL);
        let seen = message(|| {
            free(a, cache, object);
            a.shrink(cache);
        });
        assert_names(&seen, object, &["'herbs'"]);
    });
}

#[test]
fn a_pointer_into_an_object_is_seen() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        for (by, offset) in [(kfree as fn(&Slub, *mut u8), 8), (kfree, 63), (kfree, 1)] {
            let inside = object.wrapping_add(offset);
            let seen = message(|| {
                by(a, inside);
                a.shrink(cache);
            });
            assert_names(&seen, inside, &["'herbs'", "interior pointer"]);
        }
    });
}

#[test]
fn a_pointer_into_an_object_of_a_bulk_is_seen() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        for offset in [1, 8, 63] {
            let inside = object.wrapping_add(offset);
            let seen = message(|| {
                // SAFETY: not safe, on purpose: this is what is tested.
                unsafe { a.free_bulk(cache, &mut [inside]) };
                a.shrink(cache);
            });
            assert_names(&seen, inside, &["'herbs'", "interior pointer"]);
        }
    });
}

#[test]
fn an_object_that_is_freed_again_without_its_mark_is_seen() {
    with_cache(|a, cache| {
        let objects: Vec<_> = (0..10).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        for &object in &objects[..9] {
            free(a, cache, object);
        }
        a.shrink(cache);
        for &object in &objects[..9] {
            // SAFETY: a write after free, on purpose.
            unsafe { object.cast::<u64>().write(0) };
            let seen = message(|| {
                free(a, cache, object);
                a.shrink(cache);
            });
            assert_names(&seen, object, &["'herbs'", "double free"]);
        }
    });
}

#[test]
fn a_pointer_behind_the_last_slot_is_seen() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("herbs", 96)).unwrap();
    let object = a.alloc(cache, Gfp::KERNEL);
    let end =
        (object as usize & !(cache.geometry.bytes() - 1)) + cache.geometry.objects as usize * 96;
    assert!(!end.is_multiple_of(4096), "there is a rest");
    let seen = message(|| {
        kfree(&a, end as *mut u8);
        a.shrink(cache);
    });
    assert_names(&seen, end as *mut u8, &["'herbs'", "interior pointer"]);
}

#[test]
fn a_pointer_into_a_large_object_is_seen() {
    let a = support::allocator(1);
    let object = a.kmalloc(CLASS_MAX + 1, Gfp::KERNEL);
    for offset in [1, 16, 4096, 8192 + 16] {
        let inside = object.wrapping_add(offset);
        let seen = message(|| kfree(&a, inside));
        assert_names(&seen, inside, &["free", "interior pointer"]);
    }
    kfree(&a, object);
    support::assert_all_is_given_back(&a);
}

#[test]
fn a_pointer_into_a_huge_object_is_seen() {
    let a = support::allocator(1);
    let object = a.kmalloc(LARGE_MAX + 1, Gfp::KERNEL);
    for offset in [1, 16, 4096, LARGE_MAX] {
        let inside = object.wrapping_add(offset);
        let seen = message(|| kfree(&a, inside));
        assert_names(&seen, inside, &["free", "interior pointer"]);
    }
    kfree(&a, object);
    support::assert_all_is_given_back(&a);
}

#[test]
fn a_large_or_huge_object_that_is_freed_twice_is_seen() {
    for bytes in [CLASS_MAX + 1, LARGE_MAX, LARGE_MAX + 1, 64 << 20] {
        let a = support::allocator(1);
        let object = a.kmalloc(bytes, Gfp::KERNEL);
        kfree(&a, object);
        let seen = message(|| kfree(&a, object));
        assert_names(&seen, object, &["free", "double free"]);
        a.trim();
        let seen = message(|| kfree(&a, object));
        assert_names(&seen, object, &["free", "double free"]);
        support::assert_all_is_given_back(&a);
    }
}

#[test]
fn a_foreign_pointer_is_seen() {
    with_cache(|a, cache| {
        let mut here = [0u64; 16];
        let foreign = here.as_mut_ptr().cast::<u8>();
        for address in [foreign, 16 as *mut u8, usize::MAX as *mut u8] {
            let seen = message(|| kfree(a, address));
            assert_names(&seen, address, &["free", "foreign pointer"]);
            let seen = message(|| {
                free(a, cache, address);
                a.shrink(cache);
            });
            assert_names(&seen, address, &["'herbs'", "foreign pointer"]);
        }
        // A page of the range that nobody ever had.
        let object = a.alloc(cache, Gfp::KERNEL);
        let never = object.wrapping_add(1 << 20);
        let seen = message(|| kfree(a, never));
        assert_names(&seen, never, &["free", "never allocated"]);
    });
}

#[test]
fn the_null_pointer_may_be_freed() {
    let a = support::allocator(1);
    kfree(&a, null_mut());
    assert_eq!(a.ksize(null_mut()), 0);
    support::assert_all_is_given_back(&a);
}

#[test]
fn sizes_and_resizes_of_wrong_pointers_are_seen() {
    let a = support::allocator(1);
    let small = a.kmalloc(100, Gfp::KERNEL);
    let large = a.kmalloc(CLASS_MAX + 1, Gfp::KERNEL);
    let huge = a.kmalloc(LARGE_MAX + 1, Gfp::KERNEL);
    let mut here = [0u64; 16];
    for (pointer, reason) in [
        (small.wrapping_add(16), "interior pointer"),
        (large.wrapping_add(4096), "interior pointer"),
        (huge.wrapping_add(4096), "interior pointer"),
        (here.as_mut_ptr().cast(), "foreign pointer"),
    ] {
        let seen = message(|| {
            a.ksize(pointer);
        });
        assert_names(&seen, pointer, &[reason, "size of"]);
        let seen = message(|| {
            // SAFETY: not safe, on purpose.
            unsafe { a.krealloc(pointer, 50, Gfp::KERNEL) };
        });
        assert_names(&seen, pointer, &[reason, "realloc of"]);
    }
}
