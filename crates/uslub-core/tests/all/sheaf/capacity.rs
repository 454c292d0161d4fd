//! Sheaves that grow where a CPU keeps missing, and shrink where it is idle.

use crate::support;
use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::class_of;
use uslub_core::stats::StatItem;

/// Objects that sheaves may grow to.
const MOST: usize = 250;

fn machine(settings: &[&str]) -> Box<Slub> {
    let mut setup = Setup::with(&["sheaf_capacity=4", "sheaf_capacity_max=250"]);
    for setting in settings {
        setup.tunables.set(setting).unwrap();
    }
    setup.slots = Slots::Restartable;
    setup.build()
}

fn cache(a: &Slub) -> &Cache {
    a.create(&CacheArgs::new("elastic", 64)).unwrap()
}

/// Allocates and frees `n` objects at a time on a CPU: its sheaves miss as long as they are
/// smaller.
fn burst(a: &Slub, cache: &Cache, cpu: usize, n: usize) {
    on_cpu(cpu);
    let mut objects: Vec<_> = (0..n).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert!(objects.iter().all(|object| !object.is_null()));
    // SAFETY: the test's objects, freed once.
    objects
        .drain(..)
        .for_each(|object| unsafe { a.free(cache, object) });
}

/// The largest capacity of the sheaves that lie in a CPU's slots.
fn capacity_on(a: &Slub, cache: &Cache, cpu: usize) -> usize {
    on_cpu(cpu);
    // As many as fit in the main sheaf and the spare.
    let (main, spare) = support::capacities_on(a, cache, cpu);
    main.max(spare)
}

#[test]
fn a_cpu_that_keeps_missing_gets_larger_sheaves_and_others_do_not() {
    let a = machine(&[]);
    let cache = cache(&a);
    burst(&a, cache, 1, 3);
    let small = capacity_on(&a, cache, 1);
    assert_eq!(small, 4);
    for _ in 0..100 {
        burst(&a, cache, 0, 2000);
    }
    assert_eq!(capacity_on(&a, cache, 0), MOST);
    assert!(a.stat(cache, StatItem::SheafGrow) >= 4);
    burst(&a, cache, 1, 3);
    assert_eq!(capacity_on(&a, cache, 1), small);
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn what_a_cpu_does_not_use_shrinks_and_is_flushed() {
    let a = machine(&[]);
    let cache = cache(&a);
    for _ in 0..100 {
        burst(&a, cache, 0, 2000);
    }
    assert!(a.info(cache).cached_objs > 100);
    // The other CPU goes on; looks ride on its fresh slabs.
    let mut held = vec![];
    for _ in 0..40 {
        a.platform.advance(11);
        on_cpu(1);
        held.extend((0..200).map(|_| a.alloc(cache, Gfp::KERNEL)));
    }
    assert_eq!(support::sheaves_on(&a, cache, 0), (None, None));
    assert!(a.stat(cache, StatItem::SheafShrink) >= 1);
    // SAFETY: the test's objects, freed once.
    held.drain(..)
        .for_each(|object| unsafe { a.free(cache, object) });
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

/// Forty objects fit into the main sheaf and the spare, so the barn is never visited; but a larger
/// sheaf spares the exchange.
#[test]
fn a_cpu_that_exchanges_main_and_spare_again_and_again_gets_larger_sheaves() {
    let a = machine(&["sheaf_capacity=28"]);
    let cache = cache(&a);
    for _ in 0..8 {
        burst(&a, cache, 0, 40);
    }
    assert_eq!(capacity_on(&a, cache, 0), 28);
    let visits = a.stat(cache, StatItem::BarnGet) + a.stat(cache, StatItem::BarnGetFail);
    for _ in 0..200 {
        burst(&a, cache, 0, 40);
    }
    let (main, spare) = support::capacities_on(&a, cache, 0);
    assert_eq!((main, spare), (60, 60));
    assert_eq!(
        a.stat(cache, StatItem::BarnGet) + a.stat(cache, StatItem::BarnGetFail),
        visits
    );
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn sheaves_of_small_classes_of_kmalloc_grow_unless_their_capacity_is_set() {
    // Whole slabs of 64 KiB or 500 objects; else 8 KiB, or what is set.
    for (setting, size, grows, capacity) in [
        ("sheaf_capacity_max=0", 64, true, 448),
        ("sheaf_capacity_max=0", 256, true, 256),
        ("sheaf_capacity_max=0", 512, true, 128),
        ("sheaf_capacity_max=0", 1024, false, 8),
        ("sheaf_capacity=32", 256, false, 32),
    ] {
        let mut setup = Setup::with(&[setting]);
        setup.slots = Slots::Restartable;
        let a = setup.build();
        on_cpu(0);
        for _ in 0..100 {
            let objects: Vec<_> = (0..1000).map(|_| a.kmalloc(size, Gfp::KERNEL)).collect();
            assert!(objects.iter().all(|object| !object.is_null()));
            for object in objects {
                // SAFETY: the test's, freed once.
                unsafe { a.kfree(object) };
            }
        }
        let mut caches = a.caches();
        let cache = caches.find(|cache| cache.size as usize == size).unwrap();
        let most = capacity_on(&a, cache, 0);
        assert_eq!(
            a.stat(cache, StatItem::SheafGrow) > 0,
            grows,
            "{setting}, {size} bytes"
        );
        assert_eq!(most, capacity, "{setting}, {size} bytes");
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn sheaves_stop_growing_above_the_budget() {
    let a = machine(&["sheaf_budget_mb=0"]);
    let cache = cache(&a);
    for _ in 0..100 {
        burst(&a, cache, 0, 2000);
    }
    assert_eq!(capacity_on(&a, cache, 0), 4);
    assert_eq!(a.stat(cache, StatItem::SheafGrow), 0);
    // At most: two sheaves a CPU and a full barn, of the least capacity, and one on its way.
    let bound = (2 + cache.max_full + cache.max_empty + 1) * 4 * 64;
    assert!(a.sheaf_bytes() <= bound, "{} > {bound}", a.sheaf_bytes());
    assert_all_is_given_back(&a);
}

#[test]
fn the_nearer_the_budget_the_smaller_all_sheaves_are() {
    let a = machine(&["sheaf_budget_mb=4"]);
    // Each wants the largest sheaves, and all of them together twice the budget.
    let caches: Vec<_> = (25..33)
        .map(|n| a.create(&CacheArgs::new("elastic", 16 * n)).unwrap())
        .collect();
    for _ in 0..100 {
        burst(&a, caches[0], 0, 2000);
    }
    assert_eq!(capacity_on(&a, caches[0], 0), MOST);
    for _ in 0..100 {
        (caches.iter()).for_each(|cache| burst(&a, cache, 0, 2000));
    }
    assert!(a.sheaf_bytes() <= 4 << 20, "{}", a.sheaf_bytes());
    for cache in caches {
        let capacity = capacity_on(&a, cache, 0);
        assert!((28..MOST).contains(&capacity), "{capacity}");
    }
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn large_objects_keep_small_sheaves() {
    let a = machine(&[]);
    let cache = a.create(&CacheArgs::new("large", 32 << 10)).unwrap();
    for _ in 0..50 {
        burst(&a, cache, 0, 100);
    }
    assert!(capacity_on(&a, cache, 0) <= 8);
    assert_all_is_given_back(&a);
}

#[test]
fn the_bytes_that_sheaves_can_hold_are_counted_exactly() {
    let a = machine(&[]);
    let cache = cache(&a);
    for round in 0..200 {
        burst(&a, cache, round % 4, 1 + round * 13 % 1500);
        a.platform.advance((round % 30) as u64);
    }
    assert!(a.sheaf_bytes() > 0);
    a.shrink(cache);
    // SAFETY: nobody uses the cache any more.
    assert_eq!(unsafe { a.destroy(cache, |_| ()) }, 0);
    assert_eq!(a.sheaf_bytes(), 0);
}

/// The class for 256 bytes.
fn class(a: &Slub) -> &Cache {
    a.caches().find(|cache| cache.size == 256).unwrap()
}

/// One CPU frees the many objects that another allocates; returns how many of them came from slabs.
fn hand_over(a: &Slub, times: usize) -> u64 {
    let refilled = || {
        let mut class = a.caches().filter(|cache| cache.size == 256);
        class
            .next()
            .map_or(0, |class| a.stat(class, StatItem::SheafRefill))
    };
    let before = refilled();
    for _ in 0..times {
        on_cpu(0);
        let objects: Vec<_> = (0..3000).map(|_| a.kmalloc(256, Gfp::KERNEL)).collect();
        assert!(objects.iter().all(|object| !object.is_null()));
        on_cpu(1);
        // SAFETY: the test's objects, freed once.
        objects
            .iter()
            .for_each(|&object| unsafe { a.kfree(object) });
    }
    refilled() - before
}

#[test]
fn a_barn_that_is_too_full_and_then_too_empty_widens_and_narrows_again() {
    let a = Setup::with(&[]).build();
    // Twelve sheaves at a time, and eight find room at first.
    hand_over(&a, 20);
    let (class, barn) = (class(&a), class(&a).barn(0));
    assert_eq!((class.max_full, class.max_full_grown), (8, 20));
    assert!(
        (4..=12).contains(&barn.extra_capacity()),
        "{}",
        barn.extra_capacity()
    );
    assert!(
        hand_over(&a, 20) <= 20 * 240,
        "what goes to slabs is the odd sheaf"
    );
    assert!(barn.nr_full() > 8);
    // Looks ride on fresh slabs of others. The class is in use, but needs a sheaf at most.
    let mut held = vec![];
    for _ in 0..40 {
        a.platform.advance(11);
        held.extend((0..200).map(|_| a.kmalloc(64, Gfp::KERNEL)));
        held.push(a.kmalloc(256, Gfp::KERNEL));
    }
    assert_eq!(barn.extra_capacity(), 0);
    assert!(barn.nr_full() <= 1, "{}", barn.nr_full());
    // SAFETY: the test's objects, freed once.
    held.iter().for_each(|&object| unsafe { a.kfree(object) });
    hand_over(&a, 20);
    assert!(barn.extra_capacity() > 0);
    a.shrink(class);
    assert_eq!((barn.extra_capacity(), barn.nr_full()), (0, 0));
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn a_barn_stays_as_it_is_where_its_size_is_given_or_the_budget_is_used_up() {
    for settings in [&["max_full_sheaves=8"], &["sheaf_budget_mb=0"]] {
        let a = Setup::with(settings).build();
        hand_over(&a, 20);
        let barn = class(&a).barn(0);
        assert!(hand_over(&a, 20) > 20 * 240, "{settings:?}");
        assert_eq!(barn.extra_capacity(), 0, "{settings:?}");
        assert!(barn.nr_full() <= 8, "{settings:?}");
        assert_all_is_given_back(&a);
    }
}

/// Objects that all came from one CPU and went back on the same never find the barn too full and
/// too empty in turn.
#[test]
fn a_barn_does_not_widen_for_those_who_only_free_or_only_allocate() {
    let a = Setup::with(&[]).build();
    on_cpu(0);
    let objects: Vec<_> = (0..30_000).map(|_| a.kmalloc(256, Gfp::KERNEL)).collect();
    let barn = class(&a).barn(0);
    assert_eq!(barn.extra_capacity(), 0);
    // SAFETY: the test's objects, freed once.
    objects
        .iter()
        .for_each(|&object| unsafe { a.kfree(object) });
    assert_eq!((barn.extra_capacity(), barn.nr_full()), (0, 8));
    assert_all_is_given_back(&a);
}

/// What lies at the same place of two pages makes a processor wait: the newest objects of the first
/// sheaves do not.
#[test]
fn the_first_sheaves_of_classes_are_not_equally_full() {
    let mut setup = Setup::with(&[]);
    setup.slots = Slots::Restartable;
    let a = setup.build();
    on_cpu(0);
    let sizes = [16, 32, 64, 128, 256, 512];
    let objects = sizes.map(|size| a.kmalloc(size, Gfp::KERNEL));
    let mut rooms = sizes.map(|size| {
        let cache = a.cache(class_of(size)).unwrap();
        let (main, _) = support::sheaves_on(&a, cache, 0);
        support::capacities_on(&a, cache, 0).0 - main.unwrap()
    });
    rooms.sort_unstable();
    assert!(rooms.is_sorted_by(|a, b| a < b), "{rooms:?}");
    // SAFETY: the test's, freed once.
    (objects.into_iter()).for_each(|object| unsafe { a.kfree(object) });
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}
