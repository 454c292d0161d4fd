//! Prefilled sheaves: what is promised can be taken, whatever happens meanwhile.

use std::collections::BTreeSet;

use crate::support;
use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, never_waiting, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor};
use uslub_core::prefill::Prefilled;
use uslub_core::stats::StatItem;

const SIZE: usize = 192;

fn cache(a: &Slub) -> &Cache {
    a.create(&CacheArgs::new("promised", SIZE)).unwrap()
}

/// Takes everything out of a prefilled sheaf, where nobody may wait and the system gives nothing.
fn take_all(a: &Slub, cache: &Cache, prefilled: &mut Prefilled) -> Vec<*mut u8> {
    a.platform.fail(0, usize::MAX);
    let before = a.platform.calls().asking();
    let mut objects = vec![];
    never_waiting(|| {
        loop {
            let object = a.alloc_from(cache, Gfp::NOSPIN | Gfp::ZERO, prefilled);
            if object.is_null() {
                break;
            }
            assert!(support::pattern::is_filled(object, SIZE, 0));
            support::pattern::fill(object, SIZE, 0x5a);
            objects.push(object);
        }
    });
    assert_eq!(a.platform.calls().asking(), before);
    a.platform.heal();
    let different: BTreeSet<_> = objects.iter().collect();
    assert_eq!(different.len(), objects.len());
    objects
}

#[test]
fn all_that_was_promised_can_be_taken_below_at_and_above_capacity() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let a = Setup {
            slots,
            ..Setup::default()
        }
        .build();
        let cache = cache(&a);
        let capacity = cache.capacity;
        for n in [1, capacity - 1, capacity, capacity + 1, 10 * capacity, 5000] {
            let mut prefilled = a.prefill(cache, Gfp::KERNEL, n).unwrap();
            assert!(prefilled.size() >= n && prefilled.size() <= n.max(capacity));
            let promised = prefilled.size();
            let mut objects = take_all(&a, cache, &mut prefilled);
            assert_eq!(objects.len(), promised);
            a.return_prefilled(cache, Gfp::KERNEL, prefilled);
            // SAFETY: the test's objects, freed once.
            unsafe { a.free_bulk(cache, &mut objects) };
            assert_eq!(a.validate(), Ok(()));
        }
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_constructed_object_stays_constructed_though_it_is_asked_for_zeroed() {
    unsafe fn construct(object: *mut u8) {
        support::pattern::fill(object, SIZE, 0xcc);
    }
    let a = support::allocator(1);
    let mut args = CacheArgs::new("constructed", SIZE);
    args.ctor = Some(Ctor::plain(construct));
    let cache = a.create(&args).unwrap();
    let mut prefilled = a.prefill(cache, Gfp::KERNEL | Gfp::ZERO, 3).unwrap();
    let object = a.alloc_from(cache, Gfp::KERNEL | Gfp::ZERO, &mut prefilled);
    assert!(support::pattern::is_filled(object, SIZE, 0xcc));
    assert_eq!(a.platform.warnings().len(), 1);
    a.return_prefilled(cache, Gfp::KERNEL, prefilled);
    // SAFETY: the test's object, freed once.
    unsafe { a.free(cache, object) };
    assert_all_is_given_back(&a);
}

#[test]
fn a_raw_word_stays_the_same_while_objects_are_taken() {
    let a = support::allocator(1);
    let cache = cache(&a);
    for n in [3, 500] {
        let mut prefilled = a.prefill(cache, Gfp::KERNEL, n).unwrap();
        let promised = prefilled.size();
        let raw = prefilled.into_raw();
        let mut objects = vec![];
        for left in (0..promised).rev() {
            // SAFETY: the word of the last `into_raw`.
            prefilled = unsafe { Prefilled::from_raw(raw) };
            objects.push(a.alloc_from(cache, Gfp::KERNEL, &mut prefilled));
            assert_eq!(prefilled.size(), left);
            assert_eq!(prefilled.into_raw(), raw);
        }
        // SAFETY: as above; the objects are the test's.
        unsafe {
            a.return_prefilled(cache, Gfp::KERNEL, Prefilled::from_raw(raw));
            a.free_bulk(cache, &mut objects);
        }
    }
    assert_all_is_given_back(&a);
}

#[test]
fn where_the_sheaf_comes_from_and_goes_to_is_counted() {
    let a = support::allocator(1);
    let cache = cache(&a);
    let count = |item| a.stat(cache, item);
    let first = a.prefill(cache, Gfp::KERNEL, 1).unwrap();
    assert_eq!(count(StatItem::SheafPrefillSlow), 1);
    // Nobody has a spare yet.
    a.return_prefilled(cache, Gfp::KERNEL, first);
    assert_eq!(count(StatItem::SheafReturnFast), 1);
    let again = a.prefill(cache, Gfp::KERNEL, 1).unwrap();
    assert_eq!(count(StatItem::SheafPrefillFast), 1);
    let other = a.prefill(cache, Gfp::KERNEL, 1).unwrap();
    a.return_prefilled(cache, Gfp::KERNEL, again);
    a.return_prefilled(cache, Gfp::KERNEL, other);
    assert_eq!(count(StatItem::SheafReturnSlow), 1);
    let large = a.prefill(cache, Gfp::KERNEL, cache.capacity + 1).unwrap();
    assert_eq!(count(StatItem::SheafPrefillOversize), 1);
    a.return_prefilled(cache, Gfp::KERNEL, large);
    assert_all_is_given_back(&a);
}

#[test]
fn a_prefill_that_fails_takes_nothing() {
    let a = support::allocator(1);
    let mut args = CacheArgs::new("limited", SIZE);
    args.limit = Some(16 << 10);
    let cache = a.create(&args).unwrap();
    let fits = cache.max_slabs * cache.geometry.objects as usize;
    for n in [fits + 1, 10 * fits, usize::MAX / 16, usize::MAX] {
        assert!(a.prefill(cache, Gfp::KERNEL, n).is_none());
        assert_eq!(a.info(cache).live_objs(), 0);
        assert_eq!(a.validate(), Ok(()));
    }
    let all = a.prefill(cache, Gfp::KERNEL, fits).unwrap();
    assert_eq!(all.size(), fits);
    // Below capacity too, when nothing is left.
    assert!(a.prefill(cache, Gfp::KERNEL, 1).is_none());
    a.return_prefilled(cache, Gfp::KERNEL, all);
    assert_all_is_given_back(&a);
}

#[test]
fn a_refill_adds_and_a_failed_one_loses_nothing() {
    let a = support::allocator(2);
    let mut args = CacheArgs::new("limited", SIZE);
    args.limit = Some(128 << 10);
    let cache = a.create(&args).unwrap();
    let fits = cache.max_slabs * cache.geometry.objects as usize;
    let mut prefilled = a.prefill(cache, Gfp::KERNEL, 2).unwrap();
    let mut objects = take_all(&a, cache, &mut prefilled);
    for n in [1, cache.capacity, cache.capacity + 1, 3 * cache.capacity] {
        on_cpu(n % 2);
        assert!(a.refill_prefilled(cache, Gfp::KERNEL, &mut prefilled, n));
        assert!(prefilled.size() >= n);
        // Enough is there: nothing changes.
        let before = prefilled.size();
        assert!(a.refill_prefilled(cache, Gfp::KERNEL, &mut prefilled, 1));
        assert_eq!(prefilled.size(), before);
        objects.extend(take_all(&a, cache, &mut prefilled));
    }
    let before = prefilled.size();
    assert!(!a.refill_prefilled(cache, Gfp::KERNEL, &mut prefilled, fits));
    assert!(prefilled.size() >= before);
    assert_eq!(a.validate(), Ok(()));
    assert_eq!(a.info(cache).live_objs(), objects.len() + prefilled.size());
    a.return_prefilled(cache, Gfp::KERNEL, prefilled);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut objects) };
    assert_all_is_given_back(&a);
}

#[test]
fn a_constructor_that_always_fails_ends_a_prefill() {
    unsafe fn fails(_: *const (), _: *mut u8) -> bool {
        false
    }
    let a = support::allocator(1);
    let mut args = CacheArgs::new("failing", 64);
    args.ctor = Some(Ctor {
        call: fails,
        data: std::ptr::null(),
    });
    let cache = a.create(&args).unwrap();
    assert!(a.prefill(cache, Gfp::KERNEL, 8).is_none());
}
