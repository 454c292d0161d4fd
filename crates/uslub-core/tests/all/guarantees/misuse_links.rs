//! Links of free objects that were overwritten, and what only looks like one.

use std::ptr::null_mut;

use crate::support;
use crate::support::seen::{assert_names, message};
use crate::support::{Cache, Setup, Slub};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

fn with_cache(work: impl FnOnce(&Slub, &Cache)) {
    let a = support::allocator(2);
    work(&a, a.create(&CacheArgs::new("herbs", 64)).unwrap());
}

/// Two free objects in a slab's list, and a third behind them, of a cache.
fn free_objects(a: &Slub, cache: &Cache) -> Vec<*mut u8> {
    a.platform.set_percpu_usable(false);
    let mut objects = [null_mut(); 8];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    let mut freed = objects[..3].to_vec();
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut freed) };
    objects[..3].to_vec()
}

/// Writes over the link of a free object.
fn overwrite(cache: &Cache, object: *mut u8, word: u64) {
    let link = object
        .wrapping_add(cache.links.offset as usize)
        .cast::<u64>();
    // SAFETY: a write after free, on purpose; the memory is the allocator's and mapped.
    unsafe { link.write_unaligned(word) }
}

#[test]
fn a_link_that_was_overwritten_is_seen_when_the_slab_is_used() {
    for word in [0, 0x4141_4141_4141_4141, u64::MAX, 64, 0x7fff_ffff_f000] {
        for which in 0..3 {
            with_cache(|a, cache| {
                let freed = free_objects(a, cache);
                overwrite(cache, freed[which], word);
                let seen = message(|| {
                    let mut objects = [null_mut(); 4];
                    a.alloc_bulk(cache, Gfp::KERNEL, &mut objects);
                });
                assert_names(&seen, freed[which], &["'herbs'", "overwritten"]);
            });
        }
    }
}

#[test]
fn a_link_that_was_overwritten_is_seen_when_a_sheaf_is_refilled() {
    with_cache(|a, cache| {
        let freed = free_objects(a, cache);
        overwrite(cache, freed[1], 0xdead_beef);
        a.platform.set_percpu_usable(true);
        let seen = message(|| {
            a.alloc(cache, Gfp::KERNEL);
        });
        assert_names(&seen, freed[1], &["'herbs'", "overwritten"]);
    });
}

#[test]
fn a_plain_link_out_of_its_slab_is_seen_without_hardening() {
    let a = Setup::with(&["slab_freelist_hardened=0"]).build();
    let cache = a.create(&CacheArgs::new("herbs", 64)).unwrap();
    let freed = free_objects(&a, cache);
    for word in [freed[0] as u64 + 8, freed[0] as u64 + (1 << 20), 1] {
        overwrite(cache, freed[0], word);
        assert!(a.validate().is_err(), "{word:#x}");
    }
    let seen = message(|| {
        let mut objects = [null_mut(); 4];
        a.alloc_bulk(cache, Gfp::KERNEL, &mut objects);
    });
    assert_names(&seen, freed[0], &["'herbs'", "overwritten"]);
}

#[test]
fn a_list_that_was_cut_short_is_seen() {
    // Of a list of which all is taken, and of one whose rest goes back.
    for wanted in [4, 2] {
        cut_a_list_short(wanted);
    }
}

/// Takes `wanted` objects from a slab whose freelist ends behind the second.
fn cut_a_list_short(wanted: usize) {
    // The link that says "the last" where it is not: only one who knows the random word can write
    // it.
    with_cache(|a, cache| {
        let freed = free_objects(a, cache);
        let page = a.zone.arena.page_of(freed[1] as usize).unwrap();
        let links = cache.links_of(cache.slab_of(&a.zone.arena, page));
        // SAFETY: a write after free, on purpose.
        unsafe { links.set(freed[1], null_mut()) };
        assert!(a.validate().is_err());
        let seen = message(|| {
            let mut objects = vec![null_mut(); wanted];
            a.alloc_bulk(cache, Gfp::KERNEL, &mut objects);
        });
        assert!(
            seen.contains("'herbs'") && seen.contains("shorter"),
            "{seen}"
        );
    });
}

#[test]
fn an_object_that_holds_what_looks_like_a_link_may_be_freed() {
    with_cache(|a, cache| {
        // As after a slab started over: old links are still in the objects.
        let mut dice = support::Dice::new(1);
        a.platform.set_percpu_usable(false);
        for _ in 0..50 {
            let mut objects = vec![null_mut(); cache.geometry.objects as usize];
            assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
            dice.shuffle(&mut objects);
            while !objects.is_empty() {
                let mut some = objects.split_off(objects.len() - 1 - dice.below(objects.len()));
                // SAFETY: the test's objects, freed once.
                unsafe { a.free_bulk(cache, &mut some) };
            }
        }
        support::assert_all_is_given_back(a);
    });
}
