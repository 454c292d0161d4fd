//! What caches do for those who use them well.

mod support;

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::thread;

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box as BoxIn;
use allocator_api2::vec::Vec as VecIn;
use support::{assert_live, assert_live_raw};
use uslub::{
    Buckets, Cache, CacheSource, Element, Gfp, Mempool, Object, Prefilled, RawCache, Uslub, kfree,
    kmalloc, slabinfo,
};

#[test]
fn objects_own_their_values() {
    let token = Arc::new(());
    let cache = Cache::new("owned").unwrap();
    let held: Vec<_> = (0..10)
        .map(|_| cache.alloc(token.clone()).unwrap())
        .collect();
    assert_eq!(Arc::strong_count(&token), 11);
    let mut held = held.into_iter();
    drop(held.next());
    let inner = Object::into_inner(held.next().unwrap());
    let bare = Object::into_raw(held.next().unwrap());
    cache.free_all(held);
    assert_eq!(Arc::strong_count(&token), 3);
    drop(inner);
    // SAFETY: as it was given up.
    drop(unsafe { Object::from_raw(bare, &cache) });
    assert_eq!(Arc::strong_count(&token), 1);
    assert_live(&cache, 0);
}

#[test]
fn a_constructor_runs_once_an_object() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let cache = Cache::builder("once")
        .constructor(|| {
            MADE.fetch_add(1, SeqCst);
            Mutex::new(0u64)
        })
        .build()
        .unwrap();
    for _ in 0..10_000 {
        *cache.alloc_constructed().unwrap().lock().unwrap() += 1;
    }
    assert!(MADE.load(SeqCst) < 1000);
    // What is moved out is made anew in its place. (A thread that moves to another CPU in between
    // gets another object, and so do all while another test empties sheaves: it tries again.)
    let made_anew = || {
        let object = cache.alloc_constructed().unwrap();
        *object.lock().unwrap() = 77;
        let address = Object::as_ptr(&object);
        assert_eq!(Object::into_inner(object).into_inner().unwrap(), 77);
        let again = cache.alloc_constructed().unwrap();
        let same = Object::as_ptr(&again) == address;
        assert!(!same || *again.lock().unwrap() == 0);
        same
    };
    let try_again = || std::thread::sleep(std::time::Duration::from_millis(1));
    assert!((0..1000).any(|_| made_anew() || {
        try_again();
        false
    }));
}

#[test]
fn a_constructor_does_not_run_where_nothing_may_be_waited_for() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let cache = Cache::builder("nospin")
        .constructor(|| MADE.fetch_add(1, SeqCst))
        .build()
        .unwrap();
    drop(cache.alloc_constructed().unwrap());
    let made = MADE.load(SeqCst);
    let held: Vec<_> =
        std::iter::from_fn(|| cache.try_alloc_constructed(Gfp::NOSPIN).ok()).collect();
    assert!(!held.is_empty() && held.len() <= made);
    assert_eq!(MADE.load(SeqCst), made);
    assert!(cache.alloc_constructed().is_ok());
}

#[test]
fn contexts_differ_in_what_they_may_do() {
    let cache = Cache::<[u8; 512]>::new("contexts").unwrap();
    drop(cache.alloc([0; 512]).unwrap());
    let first = cache.try_alloc([1; 512], Gfp::NOSPIN).unwrap();
    let second = cache.try_alloc([2; 512], Gfp::NOWAIT).unwrap();
    assert_eq!((first[0], second[0]), (1, 2));
    // SAFETY: freed once.
    unsafe { cache.free_raw_with(Object::into_raw(first), Gfp::NOSPIN) };
    drop(second);
    assert_live(&cache, 0);
}

#[test]
fn caches_share_slabs_if_they_are_told_to() {
    let one = RawCache::builder("one", 776).merge(true).build().unwrap();
    let two = RawCache::builder("two", 776).merge(true).build().unwrap();
    let apart = RawCache::new("apart", 776).unwrap();
    assert_eq!(
        (one.name(), two.name(), apart.name()),
        ("one", "one", "apart")
    );
    assert_eq!(one.stats().aliases, 1);
    let object = two.alloc(Gfp::KERNEL).unwrap();
    drop(one);
    assert_eq!(two.stats().aliases, 0);
    // SAFETY: freed once.
    unsafe { two.free(object.as_ptr()) };
    assert_eq!(two.destroy(), Ok(()));
}

#[test]
fn objects_are_aligned_as_they_should_be() {
    #[repr(align(128))]
    struct Wide(#[allow(dead_code)] u8);
    let wide = Cache::new("wide").unwrap();
    let lines = Cache::builder("lines").hwcache_align().build().unwrap();
    let pages = Cache::builder("pages").align(4096).build().unwrap();
    fn is_aligned<T>(object: Object<'_, T>, align: usize) {
        assert!((Object::leak(object) as *mut T as usize).is_multiple_of(align));
    }
    for _ in 0..100 {
        is_aligned(wide.alloc(Wide(1)).unwrap(), 128);
        is_aligned(lines.alloc([0u8; 40]).unwrap(), 64);
        is_aligned(pages.alloc(1u8).unwrap(), 4096);
    }
    for raw in [wide.destroy(), lines.destroy(), pages.destroy()] {
        assert_eq!(raw.unwrap_err().addresses().len(), 100);
    }
}

#[test]
fn boxes_and_vectors_live_in_caches_and_buckets() {
    let cache = Cache::<[u64; 16]>::new("boxes").unwrap();
    let boxed = BoxIn::new_in([7u64; 16], &cache);
    let small = BoxIn::new_in(1u8, &cache);
    assert_eq!((boxed[3], *small), (7, 1));
    assert_live(&cache, 2);
    let nothing = BoxIn::new_in((), &cache);
    drop((boxed, small, nothing));
    assert_live(&cache, 0);
    // A vector grows within its object, and no further.
    let mut vector = VecIn::new_in(&cache);
    vector.try_reserve_exact(10).unwrap();
    vector.try_reserve_exact(16).unwrap();
    vector.extend(0..16u64);
    assert!(vector.try_reserve(1).is_err());
    assert_eq!((vector.len(), vector[15]), (16, 15));
    vector.truncate(1);
    vector.shrink_to_fit();
    drop(vector);
    assert!(BoxIn::try_new_in([0u64; 17], &cache).is_err());
    #[repr(align(64))]
    struct Aligned(#[allow(dead_code)] u8);
    assert!(BoxIn::try_new_in(Aligned(0), &cache).is_err());
    assert_live(&cache, 0);

    let buckets = Buckets::new("bucket").unwrap();
    let mut vector = VecIn::new_in(&buckets);
    vector.extend(0..100_000u32);
    let aligned = BoxIn::new_in(Aligned(1), &buckets);
    assert!(
        slabinfo()
            .rows()
            .iter()
            .any(|row| row.name().starts_with("bucket-"))
    );
    drop((vector, aligned));
    assert_eq!(buckets.destroy(), Ok(()));

    let mut vector = VecIn::new_in(Uslub);
    vector.extend(0..100_000u32);
    vector.shrink_to_fit();
    assert!(vector.iter().copied().eq(0..100_000));
}

#[test]
fn objects_that_must_stay_what_they_are_serve_no_collections() {
    let constructed = Cache::builder("ctor").constructor(|| 1u64).build().unwrap();
    let typesafe = Cache::<u64>::builder("typesafe")
        .typesafe_by_rcu()
        .build()
        .unwrap();
    assert!(BoxIn::try_new_in(2u64, &constructed).is_err());
    assert!(BoxIn::try_new_in(2u64, &typesafe).is_err());
    assert!(
        (&constructed)
            .allocate_zeroed(std::alloc::Layout::new::<u64>())
            .is_err()
    );
}

#[test]
fn handles_go_where_their_values_may_go() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    type Unshared = Cell<u8>;
    send::<Cache<*const u8>>();
    sync::<Cache<*const u8>>();
    send::<Object<'_, Unshared>>();
    sync::<Object<'_, u8>>();
    send::<Prefilled<'_, u8>>();
    send::<Mempool<u8, CacheSource<'_, u8>>>();
    sync::<Mempool<u8, CacheSource<'_, u8>>>();
    send::<Element<'_, u8, CacheSource<'_, u8>>>();
    sync::<Buckets>();
}

#[test]
fn the_table_reads_like_slabinfo() {
    let cache = Cache::<[u8; 100]>::new("a table\trow").unwrap();
    let object = cache.alloc([0; 100]).unwrap();
    let text = slabinfo().to_string();
    assert!(text.starts_with("slabinfo - version: 2.1\n# name            <active_objs>"));
    let row = text
        .lines()
        .find(|line| line.starts_with("a_table_row "))
        .unwrap();
    assert_eq!(row.split_whitespace().count(), 16);
    drop(object);
}

#[test]
fn counters_have_the_kernels_names() {
    let cache = Cache::<u64>::new("counters").unwrap();
    let objects: Vec<_> = (0..1000).map(|n| cache.alloc(n).unwrap()).collect();
    drop(objects);
    let stats = cache.stats();
    assert_eq!((stats.info.allocs, stats.info.frees), (1000, 1000));
    assert_eq!(stats.counter("no_such_counter"), None);
    assert!(
        stats
            .counters()
            .any(|(name, n)| name == "alloc_fastpath" && n > 900)
    );
    cache.flush();
    assert_eq!(cache.stats().info.cached_objs, 0);
    assert!(cache.stats().counter("sheaf_flush").unwrap() > 0);
    assert!(!cache.shrink());
}

#[test]
fn threads_share_a_cache() {
    let cache = RawCache::new("shared", 200).unwrap();
    thread::scope(|scope| {
        for me in 0..4u8 {
            let cache = &cache;
            scope.spawn(move || {
                for _ in 0..500 {
                    let mut batch = [None; 33];
                    cache.alloc_bulk(&mut batch, Gfp::KERNEL).unwrap();
                    for object in batch.iter().flatten() {
                        // SAFETY: ours.
                        unsafe { object.write_bytes(me, 200) };
                    }
                    thread::yield_now();
                    for object in batch.iter().flatten() {
                        // SAFETY: ours.
                        assert_eq!(unsafe { object.cast::<[u8; 200]>().read() }, [me; 200]);
                    }
                    // SAFETY: ours, freed once.
                    unsafe { cache.free_bulk(&mut batch) };
                }
            });
        }
    });
    assert_live_raw(&cache, 0);
}

#[test]
fn kmalloc_may_be_called_where_nothing_may_be_waited_for() {
    let warm = kmalloc(64, Gfp::KERNEL).unwrap();
    // SAFETY: freed once.
    unsafe { kfree(warm.as_ptr()) };
    let object = kmalloc(64, Gfp::NOSPIN).unwrap();
    // SAFETY: freed once.
    unsafe { uslub::kfree_with(object.as_ptr(), Gfp::NOSPIN) };
}
