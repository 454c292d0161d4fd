//! Bulks between an array and the sheaves of a CPU.

use crate::support::Setup;
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::StatItem;

/// What comes and goes at once, as many as a sheaf holds, finds a sheaf with room on its CPU,
/// though none was ever placed there by a single call: the barn is asked once.
#[test]
fn a_bulk_of_a_sheaf_goes_to_the_barn_once() {
    let a = Setup::with(&["sheaf_capacity=32"]).build();
    let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
    let mut objects = [std::ptr::null_mut(); 32];
    for _ in 0..50 {
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        // SAFETY: the cache's, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
    }
    assert_eq!(a.stat(cache, StatItem::BarnPut), 1);
    assert_eq!(a.stat(cache, StatItem::BarnGet), 1);
    assert_eq!(a.info(cache).live_objs(), 0);
    assert_eq!(a.validate(), Ok(()));
}
