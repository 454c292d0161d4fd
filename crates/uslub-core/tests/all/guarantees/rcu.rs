//! Frees that wait for a grace period.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::support;
use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Flags};
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};
use uslub_core::stats::StatItem;

/// A grace period that ends when the test says so.
#[derive(Default)]
struct Manual {
    waiting: Mutex<Vec<(usize, RcuCallback)>>,
    synchronized: Mutex<usize>,
}

impl Manual {
    fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    /// Ends the grace periods of all that wait.
    fn end(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        for (head, callback) in waiting {
            // SAFETY: called once, as `call` promised.
            unsafe { callback(head as *mut RcuHead) };
        }
    }
}

// SAFETY: the tests have no readers but themselves.
unsafe impl GracePeriod for Manual {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        self.waiting.lock().unwrap().push((head as usize, callback));
    }

    fn barrier(&self) {
        self.end();
    }

    fn synchronize(&self) {
        *self.synchronized.lock().unwrap() += 1;
    }
}

fn with_grace(setup: Setup) -> (Box<Slub>, &'static Manual) {
    let a = setup.build();
    let grace: &'static Manual = Box::leak(Box::default());
    assert!(a.set_grace_period(grace));
    assert!(!a.set_grace_period(grace), "only once");
    (a, grace)
}

fn setups() -> [Setup; 2] {
    [Slots::Locked, Slots::Restartable].map(|slots| Setup {
        slots,
        ..Setup::default()
    })
}

fn take(a: &Slub, cache: &Cache, n: usize) -> Vec<*mut u8> {
    let objects: Vec<_> = (0..n).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert!(objects.iter().all(|object| !object.is_null()));
    objects
}

#[test]
fn no_object_is_allocated_again_before_its_grace_period() {
    for setup in setups() {
        let (a, grace) = with_grace(setup);
        let cache = a.create(&CacheArgs::new("read", 128)).unwrap();
        let n = 5 * cache.capacity + 3;
        let objects = take(&a, cache, n);
        let old: BTreeSet<_> = objects.iter().map(|&o| o as usize).collect();
        for (i, &object) in objects.iter().enumerate() {
            on_cpu(i % 4);
            support::pattern::fill(object, 128, 0x77);
            // SAFETY: the test's object, freed once.
            unsafe { a.free_rcu(cache, object) };
        }
        assert_eq!(a.stat(cache, StatItem::FreeRcuSheaf), n as u64);
        assert_eq!(a.info(cache).live_objs(), n);
        // Full sheaves wait already; the others when somebody asks for a barrier.
        assert_eq!(grace.waiting(), 4);
        let more = take(&a, cache, 3 * n);
        assert!(more.iter().all(|&o| !old.contains(&(o as usize))));
        assert!(
            objects
                .iter()
                .all(|&o| support::pattern::is_filled(o, 128, 0x77))
        );
        assert_eq!(a.validate(), Ok(()));
        a.rcu_barrier();
        assert_eq!(a.info(cache).live_objs(), 3 * n);
        assert_eq!(a.validate(), Ok(()));
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut more.clone()) };
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_full_sheaf_serves_allocations_as_it_is_after_its_grace_period() {
    let (a, grace) = with_grace(Setup::default());
    let cache = a.create(&CacheArgs::new("read", 128)).unwrap();
    let objects = take(&a, cache, 3 * cache.capacity);
    a.shrink(cache);
    for &object in &objects {
        // SAFETY: the test's object, freed once.
        unsafe { a.free_rcu(cache, object) };
    }
    assert_eq!(grace.waiting(), 2);
    grace.end();
    assert_eq!(cache.barn(0).nr_full(), 2);
    let again = take(&a, cache, cache.capacity);
    assert!(again.iter().all(|o| objects.contains(o)));
    a.rcu_barrier();
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut again.clone()) };
    assert_all_is_given_back(&a);
}

#[test]
fn objects_of_any_size_can_wait() {
    for setup in setups() {
        let (a, grace) = with_grace(setup);
        let sizes = [
            0,
            8,
            100,
            CLASS_MAX,
            CLASS_MAX + 1,
            LARGE_MAX,
            LARGE_MAX + 1,
        ];
        let objects = sizes.map(|bytes| a.kmalloc(bytes, Gfp::KERNEL));
        for (&object, bytes) in objects.iter().zip(sizes) {
            support::pattern::fill(object, bytes, 0x77);
            // SAFETY: the test's object, freed once.
            unsafe { a.kfree_rcu(object) };
        }
        // SAFETY: null is ignored.
        unsafe { a.kfree_rcu(std::ptr::null_mut()) };
        assert!(grace.waiting() >= 3);
        for (&object, bytes) in objects.iter().zip(sizes) {
            assert!(support::pattern::is_filled(object, bytes, 0x77));
        }
        a.rcu_barrier();
        assert_all_is_given_back(&a);
    }
}

#[test]
fn without_a_sheaf_an_object_waits_alone() {
    let (a, grace) = with_grace(Setup::default());
    let cache = a.create(&CacheArgs::new("read", 128)).unwrap();
    let object = a.alloc(cache, Gfp::KERNEL);
    a.platform.set_percpu_usable(false);
    // SAFETY: the test's object, freed once.
    unsafe { a.free_rcu(cache, object) };
    assert_eq!(grace.waiting(), 1);
    assert_eq!(a.stat(cache, StatItem::FreeRcuSheafFail), 1);
    assert_eq!(a.info(cache).live_objs(), 1);
    a.rcu_barrier();
    assert_eq!(*grace.synchronized.lock().unwrap(), 0);
    assert_eq!(a.info(cache).live_objs(), 0);
    a.platform.set_percpu_usable(true);
    assert_all_is_given_back(&a);
}

#[test]
fn destruction_waits_for_what_waits() {
    for setup in setups() {
        let (a, grace) = with_grace(setup);
        let cache = a.create(&CacheArgs::new("read", 128)).unwrap();
        for object in take(&a, cache, 100) {
            // SAFETY: the test's object, freed once.
            unsafe { a.free_rcu(cache, object) };
        }
        // SAFETY: nobody uses the cache any more.
        assert_eq!(unsafe { a.destroy(cache, |_| ()) }, 0);
        assert_eq!(grace.waiting(), 0);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn the_slabs_of_a_typesafe_cache_serve_nothing_else_before_a_grace_period() {
    for setup in setups() {
        let (a, grace) = with_grace(setup);
        let mut args = CacheArgs::new("typesafe", 128);
        args.flags |= Flags::TYPESAFE_BY_RCU;
        let cache = a.create(&args).unwrap();
        let objects = take(&a, cache, 1000);
        for &object in &objects {
            support::pattern::fill(object, 128, 0x77);
        }
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects.clone()) };
        // At once it may be the same type again, and what readers see stays as it was.
        assert!(objects.contains(&a.alloc(cache, Gfp::KERNEL)));
        assert!(
            objects
                .iter()
                .all(|&o| support::pattern::is_filled(o, 128, 0x77))
        );
        a.shrink(cache);
        assert!(grace.waiting() > 10);
        assert!(cache.nr_slabs() > 10);
        assert_eq!(a.validate(), Ok(()), "slabs that wait are in order");
        assert_eq!(a.info(cache).live_objs(), 1, "they have no live objects");
        a.zone.purge(&a.platform);
        assert!(
            objects
                .iter()
                .all(|&o| support::pattern::is_filled(o, 128, 0x77))
        );
        grace.end();
        assert_eq!(cache.nr_slabs(), 1);
        assert_eq!(a.validate(), Ok(()));
        // SAFETY: nobody uses the cache any more, but for the one object that leaks here.
        assert_eq!(unsafe { a.destroy(cache, |_| ()) }, 1);
    }
}

#[test]
fn what_readers_may_still_see_is_not_written_to_for_another_cpu() {
    let (a, grace) = with_grace(Setup::default());
    for flags in [Flags::empty(), Flags::TYPESAFE_BY_RCU] {
        let mut args = CacheArgs::new("handed over", 56);
        args.flags |= flags;
        let cache = a.create(&args).unwrap();
        for _ in 0..4 {
            on_cpu(0);
            let objects = take(&a, cache, 800);
            on_cpu(1);
            for object in objects {
                // SAFETY: the test's, freed once.
                unsafe { a.free(cache, object) };
            }
        }
        let offered = !a.platform.take_offered().is_empty();
        assert_eq!(offered, flags.is_empty());
    }
    a.shrink_all();
    a.caches().for_each(|cache| _ = a.shrink(cache));
    grace.end();
    assert_all_is_given_back(&a);
}
