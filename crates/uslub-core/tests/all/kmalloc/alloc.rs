//! Objects of any size: their alignment, and the caches that serve them.

use crate::support;
use crate::support::pattern::{fill, is_filled};
use crate::support::{Setup, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::{NR_CLASSES, class_of, class_size};

#[test]
fn an_aligned_object_asked_for_zeroed_is_zero() {
    for (bytes, align) in [(200, 64), (5000, 4096), (100_000, 4096), (100_000, 65536)] {
        let a = support::allocator(1);
        for round in 0..3 {
            let object = a.kmalloc_aligned(bytes, align, Gfp::KERNEL | Gfp::ZERO);
            assert!(
                is_filled(object, bytes, 0),
                "{bytes} at {align}, round {round}"
            );
            fill(object, bytes, 0xee);
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
    }
}

#[test]
fn objects_are_aligned_as_was_asked() {
    let a = support::allocator(1);
    let mut held = Vec::new();
    for shift in 0..24 {
        let align = 1usize << shift;
        for bytes in [0, 1, 24, 100, 1000, 5000, 40_000, 2 << 20] {
            for _ in 0..3 {
                let object = a.kmalloc_aligned(bytes, align, Gfp::KERNEL);
                assert!(
                    (object as usize).is_multiple_of(align),
                    "{bytes} at {align}"
                );
                assert!(a.ksize(object) >= bytes);
                fill(object, bytes, shift as u8);
                held.push((object, bytes, shift as u8));
            }
        }
    }
    for (object, bytes, byte) in held {
        assert!(is_filled(object, bytes, byte));
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
    }
    assert_all_is_given_back(&a);
}

#[test]
fn every_class_keeps_its_natural_alignment() {
    let a = support::allocator(1);
    for class in 1..=NR_CLASSES {
        let bytes = class_size(class);
        let natural = (1usize << bytes.trailing_zeros()).min(4096);
        for _ in 0..5 {
            let object = a.kmalloc(bytes, Gfp::KERNEL);
            assert!((object as usize).is_multiple_of(natural), "{bytes}");
            assert_eq!(a.ksize(object), bytes);
        }
    }
}

#[test]
fn a_cache_that_was_created_first_never_serves_kmalloc() {
    let setup = Setup::default();
    let a = setup.bare();
    // SAFETY: nobody else has it yet.
    assert!(unsafe { a.init(setup.reserve, setup.tunables) });
    let cache = a.create(&CacheArgs::new("mine", 4)).unwrap();
    let object = a.kmalloc(1, Gfp::KERNEL);
    assert_ne!(
        cache.id,
        class_of(1),
        "a user's cache has a size class's place"
    );
    assert!(a.ksize(object) >= 8);
    assert_eq!(a.info(cache).num_slabs, 0);
}
