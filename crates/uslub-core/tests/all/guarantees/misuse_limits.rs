//! Misuse that is seen late or not at all. `docs/security.md` says so of each; here is that it is
//! so, and that what is not seen harms nobody but those who share the memory.

use std::collections::HashSet;
use std::ptr::null_mut;

use crate::support;
use crate::support::seen::{assert_names, message};
use crate::support::{Cache, Slub};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};

const SIZE: usize = 64;

fn with_cache(work: impl FnOnce(&Slub, &Cache)) {
    let a = support::allocator(2);
    work(&a, a.create(&CacheArgs::new("herbs", SIZE)).unwrap());
}

fn free(a: &Slub, cache: &Cache, object: *mut u8) {
    // SAFETY: not always safe, on purpose: this is what is tested.
    unsafe { a.free(cache, object) }
}

fn free_all(a: &Slub, cache: &Cache, objects: &[*mut u8]) {
    objects.iter().for_each(|&object| free(a, cache, object));
}

fn kfree(a: &Slub, object: *mut u8) {
    // SAFETY: as above.
    unsafe { a.kfree(object) }
}

/// Writes `bytes` bytes, although the memory is not the caller's any more, or never was.
fn scribble(at: *mut u8, bytes: usize) {
    // SAFETY: a wrong write, on purpose; the memory is the allocator's and mapped.
    unsafe { at.write_bytes(0x41, bytes) }
}

/// Objects that follow each other in one slab, without sheaves.
fn neighbours(a: &Slub, cache: &Cache) -> [*mut u8; 8] {
    a.platform.set_percpu_usable(false);
    let mut objects = [null_mut(); 8];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    assert!(objects.windows(2).all(|o| o[0].wrapping_add(SIZE) == o[1]));
    objects
}

#[test]
fn an_object_freed_twice_without_its_mark_is_seen_at_the_flush() {
    with_cache(|a, cache| {
        let (one, other) = (a.alloc(cache, Gfp::KERNEL), a.alloc(cache, Gfp::KERNEL));
        for object in [one, other, one] {
            free(a, cache, object);
            scribble(object, 8);
        }
        assert!(a.validate().is_err(), "one slot is in two places");
        let seen = message(|| {
            a.shrink(cache);
        });
        assert_names(&seen, one, &["'herbs'", "double free"]);
    });
}

#[test]
fn an_object_freed_twice_may_have_two_owners_until_both_have_freed_it() {
    with_cache(|a, cache| {
        let (one, other) = (a.alloc(cache, Gfp::KERNEL), a.alloc(cache, Gfp::KERNEL));
        for object in [one, other, one] {
            free(a, cache, object);
            scribble(object, 8);
        }
        let again = [(); 3].map(|()| a.alloc(cache, Gfp::KERNEL));
        assert_eq!(HashSet::from(again).len(), 2, "two owners, and nobody saw");
        let seen = message(|| {
            free_all(a, cache, &again);
            a.shrink(cache);
        });
        assert_names(&seen, one, &["'herbs'", "double free"]);
    });
}

#[test]
fn a_stale_free_is_seen_when_the_new_owner_frees_too() {
    with_cache(|a, cache| {
        let stale = a.alloc(cache, Gfp::KERNEL);
        free(a, cache, stale);
        let owned = a.alloc(cache, Gfp::KERNEL);
        assert_eq!(owned, stale, "the newest object is handed out first");
        free(a, cache, stale);
        assert_eq!(a.validate(), Ok(()), "it looks like any free");
        let seen = message(|| {
            free(a, cache, owned);
            a.shrink(cache);
        });
        assert_names(&seen, owned, &["'herbs'", "double free"]);
    });
}

#[test]
fn a_write_after_free_beside_the_link_is_not_seen() {
    with_cache(|a, cache| {
        let objects = neighbours(a, cache);
        let link = cache.links.offset as usize;
        free_all(a, cache, &objects);
        for object in objects {
            scribble(object, link);
            scribble(object.wrapping_add(link + 8), SIZE - link - 8);
        }
        let again = [(); 8].map(|()| a.alloc(cache, Gfp::KERNEL));
        free_all(a, cache, &again);
        support::assert_all_is_given_back(a);
    });
}

#[test]
fn a_write_after_free_is_not_seen_while_the_object_is_in_a_sheaf() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        free(a, cache, object);
        scribble(object, SIZE);
        assert_eq!(a.alloc(cache, Gfp::KERNEL), object);
        free(a, cache, object);
        support::assert_all_is_given_back(a);
    });
}

#[test]
fn a_write_over_the_end_into_an_object_in_use_is_not_seen() {
    with_cache(|a, cache| {
        let objects = neighbours(a, cache);
        scribble(objects[2].wrapping_add(SIZE), SIZE);
        assert_eq!(a.validate(), Ok(()));
        free_all(a, cache, &objects);
        support::assert_all_is_given_back(a);
    });
}

#[test]
fn a_write_over_the_end_into_the_link_of_a_free_object_is_seen_when_the_slab_is_used() {
    with_cache(|a, cache| {
        let objects = neighbours(a, cache);
        free(a, cache, objects[3]);
        scribble(objects[2].wrapping_add(SIZE), SIZE);
        let seen = message(|| {
            a.alloc(cache, Gfp::KERNEL);
        });
        assert_names(&seen, objects[3], &["'herbs'", "overwritten"]);
    });
}

#[test]
fn a_write_before_an_object_is_seen_as_one_over_the_end() {
    with_cache(|a, cache| {
        let objects = neighbours(a, cache);
        free(a, cache, objects[3]);
        scribble(objects[4].wrapping_sub(SIZE), SIZE);
        let seen = message(|| {
            a.alloc(cache, Gfp::KERNEL);
        });
        assert_names(&seen, objects[3], &["'herbs'", "overwritten"]);
    });
}

#[test]
fn the_size_of_a_freed_object_is_told_as_if_it_lived() {
    let a = support::allocator(1);
    let small = a.kmalloc(100, Gfp::KERNEL);
    kfree(&a, small);
    assert_eq!(a.ksize(small), 112);
    // Larger ones are known by name.
    for bytes in [CLASS_MAX + 1, LARGE_MAX + 1] {
        let object = a.kmalloc(bytes, Gfp::KERNEL);
        kfree(&a, object);
        let seen = message(|| {
            a.ksize(object);
        });
        assert_names(&seen, object, &["size of", "double free"]);
    }
    support::assert_all_is_given_back(&a);
}

#[test]
fn the_size_of_what_a_slab_leaves_unused_at_its_end_is_told_as_of_an_object() {
    let a = support::allocator(1);
    for bytes in [8, 16, 32] {
        let object = a.kmalloc(bytes, Gfp::KERNEL);
        let slab = object.wrapping_sub(object as usize % 4096);
        assert_eq!(a.ksize(slab.wrapping_add(4096 - 96)), bytes);
        assert_eq!(a.ksize(slab.wrapping_add(4096 - bytes)), bytes);
        let before = slab.wrapping_add(4096 - 96 - bytes / 2);
        let seen = message(|| {
            a.ksize(before);
        });
        assert_names(&seen, before, &["size of", "interior pointer"]);
        kfree(&a, object);
    }
    support::assert_all_is_given_back(&a);
}

#[test]
fn a_realloc_of_a_freed_object_is_seen_at_the_flush_where_it_moves() {
    let a = support::allocator(1);
    let object = a.kmalloc(100, Gfp::KERNEL);
    kfree(&a, object);
    // SAFETY: not safe, on purpose.
    let same = unsafe { a.krealloc(object, 110, Gfp::KERNEL) };
    assert_eq!(same, object, "it stays where it is, and nobody saw");
    let seen = message(|| {
        // SAFETY: as above.
        unsafe { a.krealloc(object, 1000, Gfp::KERNEL) };
        a.shrink_all();
    });
    assert_names(&seen, object, &["'kmalloc-112'", "double free"]);
}

#[test]
fn an_object_of_another_allocator_is_foreign() {
    let (mine, other) = (support::allocator(1), support::allocator(1));
    for bytes in [8, 100, CLASS_MAX + 1, LARGE_MAX + 1] {
        let object = other.kmalloc(bytes, Gfp::KERNEL);
        let seen = message(|| kfree(&mine, object));
        assert_names(&seen, object, &["foreign pointer"]);
        kfree(&other, object);
    }
    support::assert_all_is_given_back(&other);
}

/// What is freed in the name of another cache, without a look, is seen when its sheaf is flushed.
fn is_seen_at_the_flush(free: impl Fn(&Slub, &Cache, *mut u8)) {
    with_cache(|a, cache| {
        let other = a.create(&CacheArgs::new("spices", SIZE)).unwrap();
        let wrong = a.alloc(other, Gfp::KERNEL);
        // So that there is a sheaf with room.
        let held = a.alloc(cache, Gfp::KERNEL);
        free(a, cache, wrong);
        assert!(a.platform.warnings().is_empty(), "nobody looked");
        let seen = message(|| {
            a.shrink(cache);
        });
        assert_names(&seen, wrong, &["'herbs'", "'spices'"]);
        assert!(!held.is_null());
    });
}

#[test]
fn an_unchecked_bulk_is_checked_at_the_flush() {
    // SAFETY: not safe, on purpose.
    is_seen_at_the_flush(|a, cache, wrong| unsafe { a.free_bulk_unchecked(cache, &mut [wrong]) });
}

#[test]
fn an_object_known_by_its_type_is_checked_at_the_flush() {
    // SAFETY: not safe, on purpose.
    is_seen_at_the_flush(|a, cache, wrong| assert!(unsafe { a.free_own_fast(cache, wrong) }));
}

#[test]
fn what_an_unchecked_bulk_has_no_sheaves_for_is_checked_at_once() {
    with_cache(|a, cache| {
        let other = a.create(&CacheArgs::new("spices", SIZE)).unwrap();
        let wrong = a.alloc(other, Gfp::KERNEL);
        // More than sheaves and barn have room for.
        let mut objects = vec![null_mut(); 8192];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        objects.push(wrong);
        // SAFETY: not safe, on purpose.
        unsafe { a.free_bulk_unchecked(cache, &mut objects) };
        let seen = a.platform.warnings();
        assert_eq!(seen.len(), 1);
        assert_names(&seen[0], wrong, &["'herbs'", "'spices'", "not freed"]);
        // All others are, and it is still what it was.
        free(a, other, wrong);
        support::assert_all_is_given_back(a);
    });
}

#[test]
fn a_prefilled_sheaf_of_another_cache_is_seen_when_its_objects_are_freed() {
    with_cache(|a, cache| {
        let other = a.create(&CacheArgs::new("spices", SIZE)).unwrap();
        let mut prefilled = a.prefill(cache, Gfp::KERNEL, 4).unwrap();
        // Taken in the name of the other cache: they are what they are.
        let object = a.alloc_from(other, Gfp::KERNEL, &mut prefilled);
        free(a, other, object);
        let seen = a.platform.warnings();
        assert_eq!(seen.len(), 1);
        assert_names(&seen[0], object, &["'herbs'", "'spices'", "not freed"]);
        free(a, cache, object);
        a.return_prefilled(cache, Gfp::KERNEL, prefilled);
        support::assert_all_is_given_back(a);
    });
}
