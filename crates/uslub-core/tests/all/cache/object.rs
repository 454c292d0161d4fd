//! Objects that are asked for zeroed.

use std::ptr::null_mut;

use crate::support;
use crate::support::free_all;
use crate::support::pattern::{fill, is_filled};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

#[test]
fn an_object_asked_for_zeroed_is_zero() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("test", 200)).unwrap();
    let gfp = Gfp::KERNEL | Gfp::ZERO;
    for round in 0..3 {
        let object = a.alloc(cache, gfp);
        assert!(is_filled(object, 200, 0), "round {round}");
        fill(object, 200, 0xee);
        free_all(&a, cache, vec![object]);
    }
}

#[test]
fn objects_asked_for_zeroed_in_bulk_are_zero() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("test", 200)).unwrap();
    for round in 0..3 {
        let mut objects = [null_mut(); 30];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL | Gfp::ZERO, &mut objects));
        for &object in &objects {
            assert!(is_filled(object, 200, 0), "round {round}");
            fill(object, 200, 0xee);
        }
        free_all(&a, cache, objects.to_vec());
    }
}
