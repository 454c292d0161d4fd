//! Slabs of any order that a cache may ask for.

use std::ptr::null_mut;

use crate::support;
use crate::support::pattern::{fill, is_filled};
use crate::support::{assert_all_is_given_back, free_all};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

/// Uses a cache of 48 KiB objects whose slabs may have so large an order.
fn with_order(order: u32) {
    let a = support::allocator(4);
    let mut args = CacheArgs::new("test", 48 << 10);
    args.max_order = Some(order);
    let Ok(cache) = a.create(&args) else {
        return;
    };
    a.platform.set_percpu_usable(false);
    let mut objects = [null_mut(); 15];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
    for (i, &object) in objects.iter().enumerate() {
        fill(object, 48 << 10, i as u8);
    }
    for (i, &object) in objects.iter().enumerate() {
        assert!(is_filled(object, 48 << 10, i as u8));
    }
    for object in objects {
        assert_eq!(a.validate(), Ok(()), "order {order}");
        free_all(&a, cache, vec![object]);
    }
    a.platform.set_percpu_usable(true);
    assert_all_is_given_back(&a);
}

#[test]
fn a_cache_that_asks_for_too_large_slabs_gets_slabs_that_work() {
    for order in [6, 7, 8, 9] {
        with_order(order);
    }
}

#[test]
fn a_cache_that_asks_for_absurd_slabs_gets_slabs_that_work() {
    for order in [10, 12, 63, u32::MAX] {
        with_order(order);
    }
}
