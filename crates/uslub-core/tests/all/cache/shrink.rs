//! Caches that nobody uses: what they give back while others work.

use crate::support;
use crate::support::on_cpu;
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

const CPUS: usize = 3;

#[test]
fn a_cache_that_nobody_uses_loses_its_sheaves_when_others_need_slabs() {
    let a = support::allocator(CPUS);
    let used = a.create(&CacheArgs::new("used", 64)).unwrap();
    let idle = a.create(&CacheArgs::new("idle", 64)).unwrap();
    let hungry = a.create(&CacheArgs::new("hungry", 4096)).unwrap();
    let churn = |cache| {
        let object = a.alloc(cache, Gfp::KERNEL);
        // SAFETY: the test's object, freed once.
        unsafe { a.free(cache, object) };
    };
    for cpu in 0..CPUS {
        on_cpu(cpu);
        churn(idle);
    }
    on_cpu(0);
    let idle_before = a.info(idle).cached_objs;
    assert!(idle_before > 0);
    let mut slabs = 0;
    for _ in 0..10 {
        churn(used);
        a.platform.advance(20);
        for _ in 0..40 {
            a.alloc(hungry, Gfp::KERNEL);
        }
        assert!(
            a.info(hungry).num_slabs > slabs,
            "it needs a slab every time"
        );
        slabs = a.info(hungry).num_slabs;
        assert!(a.info(used).cached_objs > 0);
    }
    assert_eq!(a.info(idle).cached_objs, 0);
    assert_eq!(a.validate(), Ok(()));
    assert_eq!(a.info(hungry).live_objs(), 400);
}
