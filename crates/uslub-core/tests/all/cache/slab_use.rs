//! How full the slab of an object is.

use std::collections::BTreeMap;

use crate::support;
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::cache::info::SlabUse;

#[test]
fn the_use_of_slabs_is_what_the_program_and_the_sheaves_hold() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("used", 200)).unwrap();
    let (slots, bytes) = (cache.geometry.objects as usize, cache.geometry.bytes());
    let slab_of = |object: *mut u8| object as usize / bytes;
    let mut held: Vec<_> = (0..40 * slots)
        .map(|_| a.alloc(cache, Gfp::KERNEL))
        .collect();
    let uses: BTreeMap<_, _> = (held.iter())
        .map(|&object| (slab_of(object), a.slab_use(object).unwrap()))
        .collect();
    assert!(uses.values().all(|slab| slab.slots == slots));
    let used: usize = uses.values().map(|slab| slab.used).sum();
    // A slab may have objects in sheaves only.
    let active = a.info(cache).active_objs;
    assert!(used <= active && used >= held.len(), "{used} of {active}");

    // One object of the n-th slab in n stays; sheaves hold nothing after the flush.
    let mut kept: BTreeMap<usize, Vec<*mut u8>> = BTreeMap::new();
    for (i, object) in held.drain(..).enumerate() {
        if i % 7 == 0 {
            kept.entry(slab_of(object)).or_default().push(object);
        } else {
            // SAFETY: the test's object, freed once.
            unsafe { a.free(cache, object) };
        }
    }
    a.shrink(cache);
    for objects in kept.values() {
        let used = objects.len();
        for &object in objects {
            assert_eq!(a.slab_use(object), Some(SlabUse { used, slots }));
            // SAFETY: inside the object.
            let inside = unsafe { object.add(199) };
            assert_eq!(a.slab_use(inside), Some(SlabUse { used, slots }));
        }
    }
    for object in kept.into_values().flatten() {
        // SAFETY: the test's object, freed once.
        unsafe { a.free(cache, object) };
    }
}

#[test]
fn objects_with_pages_of_their_own_are_alone_and_other_addresses_have_no_slab() {
    let a = support::allocator(1);
    let alone = Some(SlabUse { used: 1, slots: 1 });
    for bytes in [20_000, 3 << 20] {
        let object = a.kmalloc(bytes, Gfp::KERNEL);
        assert_eq!(a.slab_use(object), alone);
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
        assert_eq!(a.slab_use(object), None, "{bytes} bytes, freed");
    }
    let local = 7;
    assert_eq!(a.slab_use((&raw const local).cast()), None);
    assert_eq!(a.slab_use(std::ptr::null()), None);
}
