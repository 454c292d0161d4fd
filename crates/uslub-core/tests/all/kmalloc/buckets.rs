//! Sets of size classes of one's own.

use std::collections::BTreeSet;

use crate::support;
use uslub_core::Gfp;
use uslub_core::args::CreateError;
use uslub_core::kmalloc::buckets::{Buckets, PREFIX_MAX};
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};

#[test]
fn buckets_keep_their_objects_apart_and_are_named() {
    let a = support::allocator(1);
    let buckets = Buckets::new("input").unwrap();
    let mut objects = vec![];
    for bytes in [
        0,
        1,
        8,
        9,
        100,
        128,
        1000,
        1024,
        CLASS_MAX,
        CLASS_MAX + 1,
        LARGE_MAX + 1,
    ] {
        for align in [1, 8, 64, 4096, 8192] {
            let object = buckets.alloc_aligned(&a, bytes, align, Gfp::KERNEL | Gfp::ZERO);
            assert!((object as usize).is_multiple_of(align) && !object.is_null());
            assert!(a.ksize(object) >= bytes);
            assert!(support::pattern::is_filled(object, bytes, 0));
            objects.push(object);
        }
        let object = buckets.alloc(&a, bytes, Gfp::KERNEL);
        assert!(!object.is_null());
        objects.push(object);
    }
    let names: BTreeSet<_> = buckets.caches().map(|c| c.name().to_owned()).collect();
    for name in ["input-8", "input-112", "input-1k", "input-8k"] {
        assert!(names.contains(name), "{name} is not in {names:?}");
    }
    assert!(a.caches().all(|cache| cache.name().starts_with("input-")));
    let kept = objects.pop().unwrap();
    let small = buckets.alloc(&a, 100, Gfp::KERNEL);
    for object in objects {
        // SAFETY: the test's object, freed once.
        unsafe { a.kfree(object) };
    }
    let mut leaked = vec![];
    // SAFETY: nobody uses the set any more, but for the object that leaks.
    let count = unsafe { buckets.destroy(&a, |object| leaked.push(object)) };
    assert_eq!(count, 1);
    assert_eq!(leaked, [small]);
    // SAFETY: the test's objects, freed once.
    unsafe {
        a.kfree(small);
        a.kfree(kept);
    }
}

#[test]
fn a_prefix_that_does_not_fit_is_refused() {
    let long = "p".repeat(PREFIX_MAX + 1);
    for prefix in ["", long.as_str()] {
        let refused = Buckets::<support::Virtual>::new(prefix).err();
        assert_eq!(refused, Some(CreateError::BadName));
    }
    let a = support::allocator(1);
    let buckets = Buckets::new(&long[1..]).unwrap();
    for bytes in [8, 112, 1024, 7168, CLASS_MAX] {
        let object = buckets.alloc(&a, bytes, Gfp::KERNEL);
        assert!(!object.is_null());
        // SAFETY: the test's object, freed once.
        unsafe { a.kfree(object) };
    }
    assert!(
        buckets.alloc(&a, 640, Gfp::NOWAIT).is_null(),
        "a cache cannot be made there"
    );
}
