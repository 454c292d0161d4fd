//! The most memory that a cache, or large objects, took at once.

use crate::support;
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::platform::PAGE_SIZE;

#[test]
fn a_cache_keeps_the_most_slabs_that_it_had() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("peaked", 512)).unwrap();
    assert_eq!(a.info(cache).peak_slabs, 0, "no slab yet");
    let mut most = 0;
    for number in [200, 50, 3000, 10] {
        let mut held = Vec::new();
        for _ in 0..number {
            held.push(a.alloc(cache, Gfp::KERNEL));
            most = most.max(a.info(cache).num_slabs);
        }
        assert_eq!(a.info(cache).peak_slabs, most, "{number} objects");
        for object in held {
            // SAFETY: the test's object, freed once.
            unsafe { a.free(cache, object) };
        }
        a.shrink(cache);
        assert!(a.info(cache).num_slabs < most);
        assert_eq!(a.info(cache).peak_slabs, most, "frees change no peak");
    }
    assert!(most * cache.geometry.objects as usize >= 3000);
}

#[test]
fn large_objects_keep_the_most_bytes_that_they_had() {
    let a = support::allocator(1);
    assert_eq!((a.peak_large_bytes(), a.large_objs()), (0, 0));
    let (run, mapping) = (40 * PAGE_SIZE, 3 << 20);
    let mut held: Vec<_> = (0..5).map(|_| a.kmalloc(run, Gfp::KERNEL)).collect();
    assert_eq!((a.peak_large_bytes(), a.large_objs()), (5 * run, 5));
    held.push(a.kmalloc(mapping, Gfp::KERNEL));
    let most = 5 * run + mapping;
    assert_eq!((a.peak_large_bytes(), a.large_objs()), (most, 6));
    for object in held {
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
        assert_eq!(a.peak_large_bytes(), most);
    }
    let small = a.kmalloc(run, Gfp::KERNEL);
    assert_eq!((a.peak_large_bytes(), a.large_objs()), (most, 1));
    // SAFETY: live, freed once.
    unsafe { a.kfree(small) };
}
