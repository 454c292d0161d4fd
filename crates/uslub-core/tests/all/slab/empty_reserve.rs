//! How much memory the reserve of empty slabs may keep.

use std::ptr::null_mut;

use crate::support::{Dice, Setup, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

/// Slabs that are kept in any case.
const KEPT: usize = 5;
/// Slabs whose pages may have been taken ahead, at most.
const AHEAD: usize = 63;

/// The bound while a load is on: half of the most slabs that were in use, and what was taken ahead.
#[test]
fn no_more_empty_slabs_than_half_of_those_that_were_in_use_and_few_soon_after_the_load() {
    for settings in [
        &["empty_reserve=1"][..],
        &["empty_reserve=1", "sheaf_spill=1", "sheaf_capacity=8"],
    ] {
        let a = Setup::with(settings).build();
        let cache = a.create(&CacheArgs::new("load", 512)).unwrap();
        let mut dice = Dice::new(11);
        let mut held: Vec<Vec<*mut u8>> = Vec::new();
        let (mut now, mut most) = (1, 0);
        for phase in 0..40 {
            // Loads come and go: up to 1,500 batches of 8 objects, or few.
            let wanted = [1500, 40, 700, 5][phase % 4];
            for _ in 0..600 {
                if held.len() < wanted {
                    let mut batch = vec![null_mut(); 8];
                    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut batch));
                    held.push(batch);
                } else {
                    let mut batch = held.swap_remove(dice.below(held.len()));
                    // SAFETY: the test's, freed once.
                    unsafe { a.free_bulk(cache, &mut batch) };
                }
                let info = a.info(cache);
                most = most.max(info.active_slabs);
                let empty = info.num_slabs - info.active_slabs;
                assert!(
                    empty <= (most / 2).max(KEPT) + AHEAD,
                    "{empty} empty slabs, {most} were in use at most"
                );
            }
            now += 3;
            a.platform.set_clock(now);
        }
        for mut batch in held {
            // SAFETY: the test's, freed once.
            unsafe { a.free_bulk(cache, &mut batch) };
        }
        for _ in 0..100 {
            now += 10;
            a.platform.set_clock(now);
            a.tick(now);
        }
        let info = a.info(cache);
        assert!(info.num_slabs - info.active_slabs <= KEPT, "{info:?}");
        assert_all_is_given_back(&a);
    }
}

/// An empty slab at hand is taken without the list lock; it must not count as empty after that.
#[test]
fn a_slab_that_was_taken_without_the_lock_is_no_longer_counted_as_empty() {
    let a = Setup::with(&["empty_reserve=1", "sheaf_capacity=1"]).build();
    let cache = a.create(&CacheArgs::new("hand", 512)).unwrap();
    let objects = cache.geometry.objects as usize;
    let (mut slab, mut slabs) = (vec![null_mut(); objects], vec![null_mut(); 4 * objects]);
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut slabs));
    // SAFETY: the test's, freed once.
    unsafe { a.free_bulk(cache, &mut slabs) };
    a.flush(cache);
    let node = cache.nodes().next().unwrap();
    let mut singles = Vec::new();
    while node.nr_partial() > 0 {
        singles.push(a.alloc(cache, Gfp::KERNEL));
    }
    let before = node.nr_empty();
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut slab));
    assert_eq!(node.nr_empty(), before - 1);
    assert_eq!(a.validate(), Ok(()));
    // SAFETY: the test's, freed once.
    unsafe {
        a.free_bulk(cache, &mut slab);
        a.free_bulk(cache, &mut singles);
    }
    assert_all_is_given_back(&a);
}
