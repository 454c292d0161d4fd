//! Bulks of objects that are not there yet: what they take, and what they count.

use std::ptr::null_mut;

use crate::support::{Setup, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::StatItem;

/// A bulk finds what is listed, and what is in a sheaf, before it takes a new slab; where there is
/// nothing it says what it missed.
#[test]
fn a_bulk_takes_new_slabs_only_where_nothing_else_is_left() {
    let a = Setup::with(&["slab_min_objects=64", "sheaf_capacity=32"]).build();
    let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
    let stats = || {
        let items = [
            StatItem::AllocSlab,
            StatItem::AllocSlowpath,
            StatItem::AllocFastpath,
            StatItem::BarnGetFail,
        ];
        items.map(|item| a.stat(cache, item))
    };
    assert_eq!(cache.geometry.objects, 64);
    let bulk = |count| {
        let mut objects = vec![null_mut(); count];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        objects
    };
    let mut held = bulk(160);
    assert_eq!(stats(), [3, 160, 0, 1]);
    assert_eq!(cache.node(0).nr_partial(), 1, "half a slab is left");
    held.extend(bulk(32));
    assert_eq!(stats(), [3, 192, 0, 2]);
    assert_eq!(cache.node(0).nr_partial(), 0);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut held.split_off(172)) };
    held.extend(bulk(40));
    assert_eq!(stats()[..3], [4, 212, 20]);
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), 212, "no object is handed out twice");
    // What is given back comes before a new slab.
    // SAFETY: as above.
    unsafe { a.free_bulk(cache, &mut held) };
    let slabs = stats()[0];
    bulk(64);
    assert_eq!(stats()[0], slabs);
    assert_eq!(a.validate(), Ok(()));
}

/// What a bulk of new slabs counts does not depend on how many there are, although all of one slab
/// are counted at once.
#[test]
fn a_bulk_of_new_slabs_counts_each_object_and_one_miss() {
    for count in [40, 64, 65, 128, 160] {
        let a = Setup::with(&["slab_min_objects=64", "sheaf_capacity=32"]).build();
        let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
        let mut objects = vec![null_mut(); count];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        let items = [
            (StatItem::AllocSlowpath, count as u64),
            (StatItem::AllocFastpath, 0),
            (StatItem::BarnGetFail, 1),
            (StatItem::OrderFallback, 0),
        ];
        for (item, n) in items {
            assert_eq!(a.stat(cache, item), n, "{item:?} of {count}");
        }
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
        assert_all_is_given_back(&a);
    }
}
