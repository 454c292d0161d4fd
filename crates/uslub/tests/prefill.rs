//! Allocations that were set aside cannot fail, whatever happens to memory meanwhile.

mod support;

use support::{assert_live, assert_live_raw};
use uslub::{Cache, Gfp, RawCache};

/// All objects that can still be had.
fn exhaust(cache: &RawCache) -> Vec<Option<std::ptr::NonNull<u8>>> {
    let objects: Vec<_> = std::iter::from_fn(|| Some(cache.alloc(Gfp::KERNEL)))
        .take_while(Option::is_some)
        .collect();
    assert!(objects.len() < 10_000, "the limit is no limit");
    objects
}

#[test]
fn promised_allocations_succeed_when_nothing_else_does() {
    let capacity = RawCache::new("usual", 256).unwrap().stats().sheaf_capacity;
    let sizes = [
        1,
        2,
        capacity - 1,
        capacity,
        capacity + 1,
        3 * capacity,
        500,
    ];
    for n in sizes {
        let cache = RawCache::builder("promise", 256)
            .limit(256 << 10)
            .build()
            .unwrap();
        let mut aside = cache.prefill(n, Gfp::KERNEL).expect("within the limit");
        let mut others = exhaust(&cache);
        assert_eq!(cache.alloc(Gfp::KERNEL), None);
        assert!(cache.prefill(n, Gfp::KERNEL).is_err());
        let before = cache.stats();
        let mut promised: Vec<_> = (0..n).map(|_| aside.alloc()).collect();
        assert!(promised.iter().all(Option::is_some), "{n}");
        let after = cache.stats();
        assert_eq!(before.info.num_slabs, after.info.num_slabs);
        for item in ["alloc_slowpath", "alloc_slab", "sheaf_refill"] {
            assert_eq!(before.counter(item), after.counter(item), "{item}");
        }
        // No object is there twice.
        let mut all: Vec<_> = promised.iter().chain(&others).flatten().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), promised.len() + others.len());
        drop(aside);
        // SAFETY: all are ours, freed once.
        unsafe {
            cache.free_bulk(&mut promised);
            cache.free_bulk(&mut others);
        }
        assert_live_raw(&cache, 0);
        assert_eq!(cache.destroy(), Ok(()));
    }
}

#[test]
fn promised_allocations_make_no_system_call() {
    let cache = Cache::<[u64; 32]>::builder("silent")
        .prefault(true)
        .build()
        .unwrap();
    for n in [1, 20, 1000] {
        let mut aside = cache.prefill(n).unwrap();
        // SAFETY: the child makes two calls and ends; it uses what was set aside only.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // In strict mode any system call but read, write and exit is the process's end.
            // SAFETY: the child's one thread ends here, without unwinding or running anything else.
            unsafe {
                libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_STRICT as usize,
                    0usize,
                    0usize,
                    0usize,
                );
                for i in 0..n {
                    let Some(object) = aside.alloc_raw() else {
                        libc::syscall(libc::SYS_exit, 1);
                        continue;
                    };
                    object.write([i as u64; 32]);
                }
                libc::syscall(libc::SYS_exit, 0);
                unreachable!();
            }
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "{n} objects");
    }
    assert_live(&cache, 0);
}

#[test]
fn constructed_objects_can_be_set_aside() {
    let cache = Cache::builder("ready")
        .constructor(|| 42u64)
        .build()
        .unwrap();
    let mut aside = cache.prefill(10).unwrap();
    let objects: Vec<_> = (0..10)
        .map(|_| aside.alloc_constructed().unwrap())
        .collect();
    assert!(objects.iter().all(|object| **object == 42));
    drop((objects, aside));
    assert_live(&cache, 0);
}

#[test]
fn a_context_that_may_not_map_sets_aside_what_there_is() {
    let cache = Cache::<[u8; 128]>::new("frugal").unwrap();
    drop(cache.prefill(40).unwrap());
    let mut aside = cache
        .try_prefill(10, Gfp::NOWAIT)
        .expect("of what went back");
    let objects: Vec<_> = (0..10).map(|n| aside.alloc([n; 128])).collect();
    assert!(aside.try_refill(100_000, Gfp::NOWAIT).is_err());
    drop((objects, aside));
    assert_live(&cache, 0);
}
