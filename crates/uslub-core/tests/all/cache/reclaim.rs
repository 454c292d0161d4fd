//! Limits of caches, and shrinkers that are asked before an allocation fails.

use std::cell::RefCell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::support;
use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, CreateError};
use uslub_core::cache::shrinker::Shrinker;

fn limited(a: &Slub, limit: usize) -> &Cache {
    let mut args = CacheArgs::new("limited", 512);
    args.limit = Some(limit);
    a.create(&args).unwrap()
}

fn take_all(a: &Slub, cache: &Cache) -> Vec<*mut u8> {
    let objects: Vec<_> = std::iter::repeat_with(|| a.alloc(cache, Gfp::KERNEL))
        .take_while(|object| !object.is_null())
        .collect();
    assert!(a.info(cache).num_slabs <= cache.max_slabs);
    objects
}

#[test]
fn a_cache_never_has_more_slabs_than_its_limit() {
    for limit in [16 << 10, 100_000, 1 << 20] {
        let a = support::allocator(4);
        let cache = limited(&a, limit);
        let mut objects = take_all(&a, cache);
        assert_eq!(
            objects.len(),
            cache.max_slabs * cache.geometry.objects as usize
        );
        assert!(cache.nr_slabs() * cache.geometry.bytes() <= limit);
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
        assert_all_is_given_back(&a);
    }
}

#[test]
fn objects_in_the_sheaves_of_other_cpus_are_fetched_before_an_allocation_fails() {
    let a = support::allocator(4);
    let cache = limited(&a, 64 << 10);
    let objects = take_all(&a, cache);
    for (i, &object) in objects.iter().enumerate() {
        on_cpu(i % 4);
        // SAFETY: the test's object, freed once.
        unsafe { a.free(cache, object) };
    }
    on_cpu(0);
    let mut again = take_all(&a, cache);
    assert_eq!(again.len(), objects.len());
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut again) };
    assert_all_is_given_back(&a);
}

#[test]
fn a_limit_below_one_slab_is_refused() {
    let a = support::allocator(1);
    let mut args = CacheArgs::new("limited", 512);
    for limit in [0, 1, 511, 4095] {
        args.limit = Some(limit);
        assert_eq!(a.create(&args).err(), Some(CreateError::BadLimit));
    }
    assert_eq!(a.caches().count(), 0);
}

/// Objects that a shrinker frees when it is asked.
struct Hoard<'a> {
    a: &'a Slub,
    cache: &'a Cache,
    objects: RefCell<Vec<*mut u8>>,
    asked: AtomicUsize,
    /// Whether it takes an object of its cache when asked.
    greedy: bool,
}

unsafe fn scan(hoard: *const (), count: usize) -> usize {
    // SAFETY: registered with a hoard that outlives the registration; these tests have one thread.
    let hoard = unsafe { &*hoard.cast::<Hoard<'_>>() };
    // SeqCst, here and below: nothing here is measured.
    hoard.asked.fetch_add(1, SeqCst);
    if hoard.greedy {
        assert!(hoard.a.alloc(hoard.cache, Gfp::KERNEL).is_null());
    }
    let mut objects = hoard.objects.borrow_mut();
    let keep = objects.len().saturating_sub(count);
    let mut freed = objects.split_off(keep);
    // SAFETY: the hoard's objects, freed once.
    unsafe { hoard.a.free_bulk(hoard.cache, &mut freed) };
    freed.len()
}

#[test]
fn a_shrinker_frees_and_the_allocation_succeeds() {
    for greedy in [false, true] {
        let a = support::allocator(2);
        let cache = limited(&a, 64 << 10);
        let hoard = Hoard {
            a: &a,
            cache,
            objects: RefCell::new(take_all(&a, cache)),
            asked: AtomicUsize::new(0),
            greedy,
        };
        let total = hoard.objects.borrow().len();
        let shrinker = Shrinker {
            scan,
            data: (&raw const hoard).cast(),
        };
        // SAFETY: the hoard outlives the registration.
        let id = unsafe { a.register_shrinker(Some(cache), shrinker) }.unwrap();
        // Not where the system may not be asked, or nothing may be waited for.
        assert!(a.alloc(cache, Gfp::NOWAIT).is_null());
        assert!(a.alloc(cache, Gfp::NOSPIN).is_null());
        assert_eq!(hoard.asked.load(SeqCst), 0);
        let mut objects = take_all(&a, cache);
        assert_eq!(objects.len(), total);
        assert!(hoard.objects.borrow().is_empty() && hoard.asked.load(SeqCst) > 0);
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
        // Another cache's failure is not this shrinker's business.
        let other = limited(&a, 16 << 10);
        let asked = hoard.asked.load(SeqCst);
        let mut objects = take_all(&a, other);
        assert_eq!(hoard.asked.load(SeqCst), asked);
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(other, &mut objects) };
        a.unregister_shrinker(id);
        let mut objects = take_all(&a, cache);
        assert_eq!(hoard.asked.load(SeqCst), asked);
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_shrinker_of_all_caches_is_asked_when_pages_run_out() {
    let a = support::allocator(1);
    let cache = a.create(&CacheArgs::new("plain", 512)).unwrap();
    let other = a.create(&CacheArgs::new("other", 1024)).unwrap();
    let objects: Vec<_> = (0..100).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    let hoard = Hoard {
        a: &a,
        cache,
        objects: RefCell::new(objects),
        asked: AtomicUsize::new(0),
        greedy: false,
    };
    let shrinker = Shrinker {
        scan,
        data: (&raw const hoard).cast(),
    };
    // SAFETY: the hoard outlives the registration.
    let id = unsafe { a.register_shrinker(None, shrinker) }.unwrap();
    a.platform.fail(0, usize::MAX);
    let mut objects = take_all(&a, other);
    a.platform.heal();
    assert!(hoard.objects.borrow().is_empty());
    a.unregister_shrinker(id);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(other, &mut objects) };
    assert_all_is_given_back(&a);
}

/// A count of calls after which the test gives up: the allocator tries again for ever.
const TRIES_MAX: usize = 100;

#[test]
fn memory_ends_where_other_cpus_keep_their_objects() {
    let setup = Setup {
        slots: Slots::WithoutFence,
        ..Setup::default()
    };
    let a = setup.build();
    let kept = a.create(&CacheArgs::new("kept", 64)).unwrap();
    let other = a.create(&CacheArgs::new("other", 1024)).unwrap();
    on_cpu(1);
    // SAFETY: the test's object, freed once.
    unsafe { a.free(kept, a.alloc(kept, Gfp::KERNEL)) };
    on_cpu(0);
    assert!(a.info(kept).cached_objs > 0);
    let asked = AtomicUsize::new(0);
    unsafe fn count(asked: *const (), _: usize) -> usize {
        // SAFETY: the counter of the test. SeqCst: the test does not measure time.
        let tries = unsafe { (*asked.cast::<AtomicUsize>()).fetch_add(1, SeqCst) };
        if tries > TRIES_MAX {
            std::process::abort();
        }
        0
    }
    let shrinker = Shrinker {
        scan: count,
        data: (&raw const asked).cast(),
    };
    // SAFETY: the counter outlives the registration.
    let id = unsafe { a.register_shrinker(None, shrinker) }.unwrap();
    a.platform.fail(0, usize::MAX);
    let mut objects = take_all(&a, other);
    assert!(a.prefill(other, Gfp::KERNEL, 8).is_none());
    assert!(!a.alloc_bulk(other, Gfp::KERNEL, &mut [std::ptr::null_mut(); 8]));
    a.platform.heal();
    a.unregister_shrinker(id);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(other, &mut objects) };
}

#[test]
fn an_allocation_that_must_not_fail_waits_for_somebody_to_free() {
    let a = support::allocator(2);
    let cache = limited(&a, 16 << 10);
    let mut objects = take_all(&a, cache);
    let last = objects.pop().unwrap() as usize;
    std::thread::scope(|scope| {
        let a = &a;
        let waiter = scope.spawn(move || {
            on_cpu(1);
            a.alloc(cache, Gfp::KERNEL | Gfp::NOFAIL) as usize
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiter.is_finished());
        // SAFETY: the test's object, freed once.
        unsafe { a.free(cache, last as *mut u8) };
        assert_eq!(waiter.join().unwrap(), last);
    });
    objects.push(last as *mut u8);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut objects) };
    assert_all_is_given_back(&a);
}
