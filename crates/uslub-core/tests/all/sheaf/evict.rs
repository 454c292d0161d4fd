//! Sheaves that are full: what leaves them leaves slab by slab.

use std::ptr::null_mut;

use crate::support::{Cache, Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::class_of;
use uslub_core::stats::StatItem;

fn whole_slab(a: &Slub, cache: &Cache) -> Vec<*mut u8> {
    let mut objects = vec![null_mut(); cache.geometry.objects as usize];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    objects
}

fn free(a: &Slub, cache: &Cache, objects: &mut [*mut u8]) {
    // SAFETY: the test's, freed once.
    unsafe { a.free_bulk(cache, objects) }
}

/// Allocates many objects, and frees them in their order by so many at once; returns updates of
/// slabs that this took, and how many it may take.
fn updates_for_a_stream(size: usize, first: usize, chunk: usize) -> (u64, u64) {
    let a = Setup::with(&[]).build();
    let cache = a.create(&CacheArgs::new("test", size)).unwrap();
    let slabs = 400;
    let mut objects = vec![null_mut(); slabs * cache.geometry.objects as usize];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    objects.sort();
    // Others first, so that what sheaves and barn hold are no neighbours of what follows.
    let (scattered, stream) = objects.split_at_mut(100 * cache.geometry.objects as usize);
    for step in 0..7 {
        for object in scattered.iter_mut().skip(step).step_by(7) {
            // SAFETY: the test's, freed once.
            unsafe { a.free(cache, *object) };
        }
    }
    let (begin, rest) = stream.split_at_mut(first);
    free(&a, cache, begin);
    let before = a.stat(cache, StatItem::FreeDetached);
    for chunk in rest.chunks_mut(chunk) {
        free(&a, cache, chunk);
    }
    let updates = a.stat(cache, StatItem::FreeDetached) - before;
    assert_eq!(a.validate(), Ok(()));
    assert_eq!(a.info(cache).live_objs(), 0);
    assert_all_is_given_back(&a);
    // One a slab, two for one slab in four, and one for each object that the CPU's two sheaves held
    // before.
    (updates, 300 + 75 + 2 * cache.capacity as u64)
}

#[test]
fn neighbours_that_are_freed_in_turn_leave_as_whole_slabs_wherever_they_begin() {
    for size in [16, 64, 96, 256, 512] {
        for (first, chunk) in [(0, 32), (1, 32), (5, 1), (0, 2), (11, 7), (3, 100)] {
            let (updates, most) = updates_for_a_stream(size, first, chunk);
            assert!(updates <= most, "{size} {first} {chunk}: {updates}");
        }
    }
}

/// A bulk that finds a sheaf's last objects begins in one slab and ends in the next. Neither slab
/// lies in one piece in what is freed then, and both leave whole.
#[test]
fn small_bulks_share_refills_and_their_slabs_leave_whole() {
    for size in [64, 256] {
        for chunk in [2, 3, 5, 7, 12, 15] {
            let a = Setup::with(&[]).build();
            let cache = a.create(&CacheArgs::new("test", size)).unwrap();
            let slabs = 300;
            let bulks = slabs * cache.geometry.objects as usize / chunk;
            let mut objects = vec![null_mut(); bulks * chunk];
            for bulk in objects.chunks_mut(chunk) {
                assert!(a.alloc_bulk(cache, Gfp::KERNEL, bulk));
            }
            let locks = a.stat(cache, StatItem::ListLock) as usize;
            let refills = objects.len() / cache.capacity + 1;
            assert!(
                locks <= 2 * refills,
                "{size} {chunk}: {locks} locks, {refills} refills"
            );
            let mut all = objects.clone();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), objects.len());
            for bulk in objects.chunks_mut(chunk) {
                free(&a, cache, bulk);
            }
            let updates = a.stat(cache, StatItem::FreeDetached);
            let most = slabs + slabs / 2 + 2 * cache.capacity;
            assert!(updates <= most as u64, "{size} {chunk}: {updates} updates");
            assert_eq!(a.validate(), Ok(()));
            assert_eq!(a.info(cache).live_objs(), 0);
            assert_all_is_given_back(&a);
        }
    }
}

/// A bulk that the CPU's sheaves have no room for frees its whole slabs, if they are large, and
/// leaves the sheaves as they are; one that fits stays in them, as does one of small slabs.
#[test]
fn large_slabs_leave_before_the_sheaves_are_full() {
    for (size, at_once) in [(16, true), (32, true), (48, true), (64, true), (256, false)] {
        for checked in [true, false] {
            let a = Setup::with(&[]).build();
            let cache = a.create(&CacheArgs::new("test", size)).unwrap();
            let slab = cache.geometry.objects as usize;
            let slabs = 2 * cache.capacity / slab + 3;
            let mut objects = vec![null_mut(); slabs * slab];
            assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
            objects.sort();
            let free = |objects: &mut [*mut u8]| {
                // SAFETY: the cache's, freed once.
                unsafe {
                    match checked {
                        true => a.free_bulk(cache, objects),
                        false => a.free_bulk_unchecked(cache, objects),
                    }
                }
                let updates = a.stat(cache, StatItem::FreeDetached) as usize;
                (updates, a.stat(cache, StatItem::FreeFastpath) as usize)
            };
            // The first sheaves are made for what fits into them.
            let (few, many) = objects.split_at_mut(slab.min(2 * cache.capacity));
            assert_eq!(free(few), (0, few.len()), "{size} {checked}");
            if !at_once {
                let (_, parked) = free(many);
                assert!(parked > few.len() + slab, "{size} {checked}: {parked}");
                continue;
            }
            // Of the slab of which a part is in the sheaves another is left over.
            let begun = few.len().div_ceil(slab) * slab - few.len();
            let whole = (many.len() - begun) / slab;
            let (begun, many) = many.split_at_mut(begun);
            assert_eq!(free(many), (whole, few.len()), "{size} {checked}");
            let (_, parked) = free(begun);
            assert_eq!(parked, few.len() + begun.len(), "{size} {checked}");
            assert_eq!(a.validate(), Ok(()));
            assert_eq!(a.info(cache).live_objs(), 0);
            assert_all_is_given_back(&a);
        }
    }
}

/// A bulk of one that finds no room makes some, as a single free does; else each of those behind it
/// would go to its slab alone.
#[test]
fn bulks_of_one_leave_slab_by_slab() {
    for size in [64, 256] {
        for checked in [true, false] {
            let a = Setup::with(&[]).build();
            let cache = a.create(&CacheArgs::new("test", size)).unwrap();
            let slabs = 300;
            let mut objects = vec![null_mut(); slabs * cache.geometry.objects as usize];
            assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
            for one in objects.chunks_mut(1) {
                // SAFETY: the cache's, freed once.
                unsafe {
                    match checked {
                        true => a.free_bulk(cache, one),
                        false => a.free_bulk_unchecked(cache, one),
                    }
                }
            }
            let updates = a.stat(cache, StatItem::FreeDetached);
            let most = slabs + slabs / 2 + 2 * cache.capacity;
            assert!(
                updates <= most as u64,
                "{size} {checked}: {updates} updates"
            );
            assert_eq!(a.validate(), Ok(()));
            assert_eq!(a.info(cache).live_objs(), 0);
        }
    }
}

/// Sheaves of a size class hold whole slabs, or the other way round, or slabs have a few objects:
/// what is freed one by one, in the order in which it was allocated, leaves slab by slab, each by
/// one update.
#[test]
fn what_is_freed_in_order_leaves_slab_by_slab() {
    for bytes in [16, 32, 48, 64, 80, 128, 256] {
        let a = Setup::with(&[]).build();
        let mut objects = vec![a.kmalloc(bytes, Gfp::KERNEL)];
        let cache = a.cache(class_of(bytes)).unwrap();
        let slab = cache.geometry.objects as usize;
        for capacity in [cache.capacity, cache.capacity_max] {
            let slab_multiple_sheaves =
                capacity.is_multiple_of(slab) || slab.is_multiple_of(capacity);
            assert!(
                slab_multiple_sheaves || slab <= 16,
                "{bytes}: {slab} in a slab, {capacity} in a sheaf"
            );
        }
        // While sheaves grow, a few slabs leave in two parts.
        let slabs = 200;
        objects.resize_with(slabs * slab, || a.kmalloc(bytes, Gfp::KERNEL));
        for &object in &objects {
            // SAFETY: the test's, freed once.
            unsafe { a.kfree(object) };
        }
        a.shrink_all();
        let updates = a.stat(cache, StatItem::FreeDetached);
        let most = slabs + slabs / 8;
        assert!(
            updates <= most as u64,
            "{bytes}: {updates} updates, {slabs} slabs"
        );
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

/// The sheaves of a CPU hold more than is looked at together: slabs leave whole wherever they
/// begin, and where none is whole the oldest objects leave, each slab's by one update.
#[test]
fn what_the_largest_sheaves_hold_leaves_by_few_updates() {
    // So many objects of each of the first slabs are freed last.
    for (size, first, kept, most) in [(16, 1, 100, 44), (64, 40, 16, 100)] {
        let a = Setup::with(&["sheaf_capacity=500", "max_full_sheaves=1"]).build();
        let cache = a.create(&CacheArgs::new("test", size)).unwrap();
        let mut slabs: Vec<_> = (0..40).map(|_| whole_slab(&a, cache)).collect();
        let mut last = Vec::new();
        for slab in &mut slabs[..first] {
            last.extend(slab.drain(..kept));
        }
        slabs.push(last);
        for object in slabs.into_iter().flatten() {
            // SAFETY: the test's, freed once.
            unsafe { a.free(cache, object) };
        }
        let flushed = a.stat(cache, StatItem::SheafFlush);
        assert!(flushed > 0, "{size}: nothing was flushed");
        a.shrink_all();
        let updates = a.stat(cache, StatItem::FreeDetached);
        assert!(updates <= most, "{size}: {updates} updates for 40 slabs");
        assert_eq!(a.validate(), Ok(()));
        assert_eq!(a.info(cache).live_objs(), 0);
        assert_all_is_given_back(&a);
    }
}
