//! What a free itself sees: slots and marks (`cache::mark`). And that no live object is refused.

use std::ptr::null_mut;

use crate::support;
use crate::support::seen::{assert_names, message};
use crate::support::{Cache, Setup, Slub, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor, Flags};

const SIZE: usize = 64;

fn with_cache(work: impl Fn(&Slub, &Cache)) {
    unsafe fn construct(object: *mut u8) {
        support::pattern::fill(object, SIZE, 0xcc);
    }
    let mut made = CacheArgs::new("herbs", SIZE);
    made.ctor = Some(Ctor::plain(construct));
    let mut typesafe = CacheArgs::new("herbs", SIZE);
    typesafe.flags = Flags::TYPESAFE_BY_RCU;
    for args in [CacheArgs::new("herbs", SIZE), made, typesafe] {
        let a = support::allocator(2);
        work(&a, a.create(&args).unwrap());
    }
}

fn free(a: &Slub, cache: &Cache, object: *mut u8) {
    // SAFETY: not always safe, on purpose: this is what is tested.
    unsafe { a.free(cache, object) }
}

#[test]
fn a_double_free_in_the_main_sheaf_is_seen_at_once() {
    for others in [0, 1, 5] {
        with_cache(|a, cache| {
            let object = a.alloc(cache, Gfp::KERNEL);
            let more: Vec<_> = (0..others).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
            free(a, cache, object);
            more.iter().for_each(|&o| free(a, cache, o));
            let seen = message(|| free(a, cache, object));
            assert_names(&seen, object, &["'herbs'", "double free"]);
        });
    }
}

#[test]
fn a_double_free_in_spare_barn_or_slab_is_seen_at_once() {
    // Not of constructed and type-safe objects: in the slab the link is where their mark was.
    let a = support::allocator(2);
    let cache = a.create(&CacheArgs::new("herbs", SIZE)).unwrap();
    let objects: Vec<_> = (0..900).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    objects.iter().for_each(|&o| free(&a, cache, o));
    for &object in &objects {
        let seen = message(|| free(&a, cache, object));
        assert_names(&seen, object, &["'herbs'", "double free"]);
    }
}

#[test]
fn an_interior_pointer_is_seen_at_once() {
    with_cache(|a, cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        for inside in [1, 8, 16, 63].map(|by| object.wrapping_add(by)) {
            let seen = message(|| free(a, cache, inside));
            assert_names(&seen, inside, &["'herbs'", "interior pointer"]);
        }
        free(a, cache, object);
    });
}

#[test]
fn an_object_that_holds_a_copy_of_a_mark_may_be_freed() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("herbs", SIZE)).unwrap();
    for _ in 0..3000 {
        let (one, other) = (a.alloc(cache, Gfp::KERNEL), a.alloc(cache, Gfp::KERNEL));
        free(&a, cache, one);
        // SAFETY: a read after free, on purpose; the other object is the test's.
        unsafe { other.cast::<u64>().write(one.cast::<u64>().read()) };
        free(&a, cache, other);
    }
    support::assert_all_is_given_back(&a);
}

#[test]
fn objects_of_bulks_that_nobody_wrote_to_may_be_freed_one_by_one() {
    let a = Setup::with(&["sheaf_capacity=60"]).build();
    let cache = a.create(&CacheArgs::new("herbs", SIZE)).unwrap();
    for round in 0..100 {
        on_cpu(round % 2);
        let mut objects = [null_mut(); 50];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        objects.rotate_left(round % 50);
        objects.iter().for_each(|&o| free(&a, cache, o));
    }
    support::assert_all_is_given_back(&a);
}

#[test]
fn marks_leave_a_constructed_object_alone() {
    let a = support::allocator(1);
    unsafe fn construct(object: *mut u8) {
        support::pattern::fill(object, SIZE, 0xcc);
    }
    let mut args = CacheArgs::new("herbs", SIZE);
    args.ctor = Some(Ctor::plain(construct));
    let cache = a.create(&args).unwrap();
    for _ in 0..100 {
        let object = a.alloc(cache, Gfp::KERNEL);
        assert!(support::pattern::is_filled(object, SIZE, 0xcc));
        free(&a, cache, object);
        assert!(support::pattern::is_filled(object, SIZE, 0xcc));
    }
    support::assert_all_is_given_back(&a);
}

#[test]
fn a_wrong_size_is_seen_and_each_right_one_passes() {
    let a = support::allocator(1);
    for bytes in [1, 8, 9, 100, 500, 4096, 8192, 8193, 100_000, 1 << 20] {
        for align in [1, 64, 4096, 65536] {
            let mut object = a.kmalloc_aligned(bytes, align, Gfp::KERNEL);
            a.check_size("free_sized of", object, bytes, align);
            let seen = message(|| a.check_size("free_sized of", object, 4 << 20, align));
            assert_names(&seen, object, &["wrong size"]);
            for less in [bytes, bytes.div_ceil(2)] {
                // SAFETY: the test's.
                let resized = unsafe { a.krealloc(object, less, Gfp::KERNEL) };
                a.check_size("free_sized of", resized, less, 1);
                object = resized;
            }
            // SAFETY: the test's.
            unsafe { a.kfree(object) };
        }
    }
    let object = a.kmalloc(400, Gfp::KERNEL);
    let seen = message(|| a.check_size("free_sized of", object, 8, 1));
    assert_names(&seen, object, &["'kmalloc-400'", "wrong size", "says 8"]);
    a.kept_larger();
    a.check_size("free_sized of", object, 8, 1);
    // SAFETY: the test's.
    unsafe { a.kfree(object) };
    support::assert_all_is_given_back(&a);
}

#[test]
fn a_layout_of_more_bytes_than_the_object_has_is_seen() {
    let a = support::allocator(1);
    for (bytes, wrong) in [(100, 5000), (8, 1 << 20), (20_000, 40_000)] {
        let object = a.kmalloc(bytes, Gfp::KERNEL);
        // SAFETY: not safe, on purpose: this is what is tested.
        let seen = message(|| unsafe { a.kfree_sized(object, wrong) });
        assert_names(&seen, object, &["wrong size"]);
        // SAFETY: the test's.
        unsafe { a.kfree_sized(object, bytes) };
    }
    support::assert_all_is_given_back(&a);
}
