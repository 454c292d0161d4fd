//! What callers do wrong: each is refused, or ends in a message, and nothing is lost.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use support::{assert_fatal, assert_live, assert_live_raw, assert_warned, in_child};
use uslub::debug::DebugFlags;
use uslub::{
    Buckets, Cache, CreateError, FnSource, Gfp, Mempool, MempoolError, Object, RawCache, kfree,
    kmalloc, kmalloc_aligned, krealloc, ksize,
};

const SLAB: usize = 32 << 10;

fn refused(builder: uslub::RawBuilder<'_>, why: CreateError) {
    assert_eq!(builder.build().err(), Some(why));
}

#[test]
fn a_name_has_1_to_31_bytes() {
    refused(RawCache::builder("", 8), CreateError::BadName);
    refused(RawCache::builder(&"n".repeat(32), 8), CreateError::BadName);
    // Bytes count, not letters.
    refused(RawCache::builder(&"ü".repeat(16), 8), CreateError::BadName);
    let longest = "n".repeat(31);
    assert_eq!(RawCache::new(&longest, 8).unwrap().name(), longest);
}

#[test]
fn a_size_is_1_to_65536_bytes() {
    refused(RawCache::builder("bad", 0), CreateError::BadSize);
    refused(RawCache::builder("bad", 65_537), CreateError::BadSize);
    refused(RawCache::builder("bad", usize::MAX), CreateError::BadSize);
    refused(
        RawCache::builder("bad", usize::MAX).sheaf_capacity(1..=4),
        CreateError::BadSize,
    );
    assert_eq!(
        Cache::<[u8; 65_537]>::new("bad").err(),
        Some(CreateError::BadSize)
    );
    assert_eq!(Cache::<()>::new("bad").err(), Some(CreateError::ZeroSized));
    let largest = RawCache::new("largest", 65_536).unwrap();
    let object = largest.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: ours, freed once.
    unsafe {
        object.write_bytes(1, 65_536);
        largest.free(object.as_ptr());
    }
}

#[test]
fn an_alignment_is_a_power_of_two_up_to_a_page() {
    for align in [0, 3, 24, 4097, 8192, usize::MAX, 1 << 63] {
        refused(
            RawCache::builder("bad", 8).align(align),
            CreateError::BadAlign,
        );
        assert_eq!(
            Cache::<u64>::builder("bad").align(align).build().err(),
            Some(CreateError::BadAlign)
        );
    }
    #[repr(align(8192))]
    struct Wide(#[allow(dead_code)] u8);
    assert_eq!(Cache::<Wide>::new("bad").err(), Some(CreateError::BadAlign));
    // Less than the type needs is no error, and not what it gets.
    let cache = Cache::<u64>::builder("fine").align(1).build().unwrap();
    assert_eq!(cache.as_raw().align(), 8);
}

#[test]
fn a_sheaf_capacity_is_a_range_that_can_be_met() {
    for (least, most) in [(0, 4), (9, 4), (100_000, 200_000)] {
        refused(
            RawCache::builder("bad", 8).sheaf_capacity(least..=most),
            CreateError::BadCapacity,
        );
    }
    let capacity = |range| {
        let cache = RawCache::builder("fine", 64).sheaf_capacity(range).build();
        let stats = cache.unwrap().stats();
        (stats.sheaf_capacity, stats.sheaf_capacity_max)
    };
    assert_eq!(capacity(1..=2), (1, 2));
    assert_eq!(capacity(7..=7), (7, 7));
    let (least, most) = capacity(100..=usize::MAX);
    assert!(least == 100 && most > 400 && most < 512, "{most}");
}

#[test]
fn a_limit_is_at_least_a_slab() {
    for limit in [0, 1, 4095] {
        refused(
            RawCache::builder("bad", 64).limit(limit),
            CreateError::BadLimit,
        );
    }
}

#[test]
fn a_constructor_is_for_types_without_drop() {
    let builder = Cache::builder("bad").constructor(String::new);
    assert_eq!(builder.build().err(), Some(CreateError::NeedsDrop));
}

#[test]
fn the_closure_of_a_refused_constructor_is_dropped() {
    let token = Arc::new(());
    let held = token.clone();
    let builder = RawCache::builder("", 8).constructor(move |_| drop(held.clone()));
    assert_eq!(Arc::strong_count(&token), 2);
    assert!(builder.build().is_err());
    assert_eq!(Arc::strong_count(&token), 1);
    // And that of a cache when the cache goes.
    let held = token.clone();
    let cache = RawCache::builder("good", 8)
        .constructor(move |_| drop(held.clone()))
        .build();
    assert_eq!(Arc::strong_count(&token), 2);
    drop(cache);
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn constructed_objects_are_not_zeroed() {
    let Some(output) = in_child("constructed_objects_are_not_zeroed") else {
        // SAFETY: memory for a number.
        let construct = |object: *mut u8| unsafe { object.cast::<u64>().write(7) };
        let cache = RawCache::builder("seven", 8)
            .constructor(construct)
            .build()
            .unwrap();
        assert_eq!(cache.alloc_zeroed(Gfp::KERNEL), None);
        assert_eq!(cache.alloc(Gfp::KERNEL | Gfp::ZERO), None);
        assert!(
            cache
                .alloc_bulk(&mut [None; 4], Gfp::KERNEL | Gfp::ZERO)
                .is_err()
        );
        let typed = Cache::builder("eight")
            .constructor(|| 8u64)
            .build()
            .unwrap();
        assert!(
            typed
                .try_alloc_constructed(Gfp::KERNEL | Gfp::ZERO)
                .is_err()
        );
        assert_eq!(*typed.alloc_constructed().unwrap(), 8);
        assert_live_raw(&cache, 0);
        assert_live(&typed, 0);
        return;
    };
    assert_warned(&output, &["seven", "constructor"]);
}

#[test]
#[should_panic(expected = "no constructor")]
fn constructed_objects_come_from_constructors() {
    let _ = Cache::<u64>::new("plain").unwrap().alloc_constructed();
}

#[test]
fn destroying_twice_ends_the_process() {
    let Some(output) = in_child("destroying_twice_ends_the_process") else {
        let raw = RawCache::new("twice", 64).unwrap().into_raw();
        // SAFETY: not the second time, which is what is tested.
        unsafe {
            RawCache::from_raw(raw).destroy().unwrap();
            let _ = RawCache::from_raw(raw).destroy();
        }
        return;
    };
    assert_fatal(&output, &["cache 'twice'", "destroyed already"]);
}

#[test]
fn use_after_destruction_ends_the_process() {
    let Some(output) = in_child("use_after_destruction_ends_the_process") else {
        let raw = RawCache::new("gone", 64).unwrap().into_raw();
        // SAFETY: not the second time, which is what is tested.
        unsafe {
            RawCache::from_raw(raw).destroy().unwrap();
            let _ = RawCache::from_raw(raw).alloc(Gfp::KERNEL);
        }
        return;
    };
    assert_fatal(&output, &["cache 'gone'", "after its end"]);
}

#[test]
fn an_object_of_another_cache_leaks_with_a_warning() {
    let Some(output) = in_child("an_object_of_another_cache_leaks_with_a_warning") else {
        let (mine, other) = (
            RawCache::new("mine", 64).unwrap(),
            RawCache::new("other", 64).unwrap(),
        );
        let object = other.alloc(Gfp::KERNEL).unwrap();
        let bulk = other.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: not of this cache, which is what is tested.
        unsafe {
            mine.free(object.as_ptr());
            mine.free_bulk(&mut [Some(bulk)]);
        }
        assert_live_raw(&mine, 0);
        assert_live_raw(&other, 2);
        for _ in 0..1000 {
            let next = other.alloc(Gfp::KERNEL).unwrap();
            assert!(next != object && next != bulk, "it was freed after all");
        }
        return;
    };
    assert_warned(
        &output,
        &["cache 'mine'", "belongs to cache 'other'", "not freed"],
    );
    // And when the caches went:
    assert_warned(
        &output,
        &["cache 'other'", "dropped with 1002 objects in use"],
    );
}

#[test]
fn null_is_nothing_to_free() {
    let cache = RawCache::new("null", 64).unwrap();
    // SAFETY: null is ignored.
    unsafe {
        cache.free(null_mut());
        cache.free_rcu(null_mut());
        cache.free_bulk(&mut [None; 3]);
        kfree(null_mut());
        uslub::kfree_rcu(null_mut());
    }
    assert_eq!(ksize(null_mut()), 0);
    // SAFETY: null is allocated anew.
    let object = unsafe { krealloc(null_mut(), 10, Gfp::KERNEL) }.unwrap();
    // SAFETY: freed once.
    unsafe { kfree(object.as_ptr()) };
}

#[test]
fn a_foreign_pointer_ends_the_process() {
    let Some(output) = in_child("a_foreign_pointer_ends_the_process") else {
        let cache = RawCache::new("foreign", 64).unwrap();
        let mut foreign = 0u64;
        // SAFETY: no object, which is what is tested.
        return unsafe { cache.free((&raw mut foreign).cast()) };
    };
    assert_fatal(&output, &["cache 'foreign'", "foreign pointer"]);
}

#[test]
fn a_foreign_pointer_ends_the_process_before_anything_was_allocated() {
    let Some(output) = in_child("a_foreign_pointer_ends_the_process_before_anything_was_allocated")
    else {
        let mut foreign = 0u64;
        // SAFETY: no object, which is what is tested.
        return unsafe { kfree((&raw mut foreign).cast()) };
    };
    assert_fatal(&output, &["foreign pointer"]);
}

#[test]
fn an_interior_pointer_ends_the_process() {
    let Some(output) = in_child("an_interior_pointer_ends_the_process") else {
        let cache = RawCache::new("inside", 64).unwrap();
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: within the object.
        let inside = unsafe { object.add(8) };
        // SAFETY: no object, which is what is tested.
        unsafe { cache.free(inside.as_ptr()) };
        cache.shrink();
        return;
    };
    assert_fatal(&output, &["cache 'inside'", "interior pointer"]);
}

#[test]
fn a_double_free_ends_the_process() {
    let Some(output) = in_child("a_double_free_ends_the_process") else {
        let cache = Cache::<u64>::new("double").unwrap();
        let object = cache.alloc_raw(Gfp::KERNEL).unwrap();
        // SAFETY: not the second time, which is what is tested.
        unsafe {
            cache.free_raw(object);
            cache.free_raw(object);
        }
        cache.shrink();
        return;
    };
    assert_fatal(&output, &["cache 'double'", "double free"]);
}

#[test]
fn a_bulk_of_none_is_had_and_one_of_too_many_is_not() {
    let cache = Cache::<[u8; 1000]>::builder("bulk")
        .limit(4 * SLAB)
        .build()
        .unwrap();
    assert!(cache.alloc_bulk(&mut [], Gfp::KERNEL).is_ok());
    let mut objects = vec![Some(NonNull::dangling()); 1000];
    assert!(cache.alloc_bulk(&mut objects, Gfp::KERNEL).is_err());
    assert!(objects.iter().all(Option::is_none));
    assert_live(&cache, 0);
    // All that the limit allows can be had.
    let most = 4 * SLAB / 1000 - 4;
    assert!(cache.alloc_bulk(&mut objects[..most], Gfp::KERNEL).is_ok());
    assert_live(&cache, most);
    // SAFETY: all are ours.
    unsafe { cache.free_bulk(&mut objects) };
    assert_live(&cache, 0);
}

#[test]
fn objects_of_another_cache_are_not_freed_with_ones_own() {
    let (a, b) = (Cache::new("a").unwrap(), Cache::new("b").unwrap());
    let object = a.alloc(1u64).unwrap();
    let freed = catch_unwind(AssertUnwindSafe(|| b.free_all([object])));
    assert!(freed.is_err());
    // It was dropped as what it is.
    assert_live(&a, 0);
    assert_live(&b, 0);
}

#[test]
fn more_can_be_set_aside_than_a_sheaf_holds() {
    let cache = Cache::new("aside").unwrap();
    let capacity = cache.stats().sheaf_capacity;
    let mut aside = cache.prefill(10 * capacity).unwrap();
    assert_eq!(aside.remaining(), 10 * capacity);
    let objects: Vec<_> = (0..10 * capacity as u64).map(|n| aside.alloc(n)).collect();
    assert!(aside.try_alloc(0).is_err());
    assert!(objects.iter().map(|o| **o).eq(0..10 * capacity as u64));
    assert_eq!(cache.stats().counter("sheaf_prefill_oversize"), Some(1));
    drop((objects, aside));
    assert_live(&cache, 0);
    // None at all is no error either, and too many are.
    let mut none = cache.prefill(0).unwrap();
    assert!(none.try_alloc(1).is_err());
    assert!(cache.prefill(usize::MAX).is_err());
    assert!(cache.prefill(usize::MAX / 8).is_err());
}

#[test]
#[should_panic(expected = "more objects than were set aside")]
fn more_cannot_be_taken_than_was_set_aside() {
    let cache = Cache::new("aside").unwrap();
    let mut aside = cache.prefill(1).unwrap();
    for n in 0..=1000u64 {
        drop(aside.alloc(n));
    }
}

#[test]
fn a_refill_that_fails_half_way_leaks_nothing() {
    let cache = Cache::<[u8; 512]>::builder("half")
        .limit(2 * SLAB)
        .build()
        .unwrap();
    for (first, more) in [(1, 500), (4, 1000), (100, 10_000)] {
        let mut aside = cache.prefill(first).unwrap();
        let before = aside.remaining();
        let one = aside.alloc([1; 512]);
        assert!(aside.refill(more).is_err());
        assert!(aside.remaining() >= before - 1);
        for _ in 0..before - 1 {
            drop(aside.alloc([2; 512]));
        }
        drop((one, aside));
        assert_live(&cache, 0);
    }
}

#[test]
fn there_are_256_shrinkers_at_most() {
    let Some(output) = in_child("there_are_256_shrinkers_at_most") else {
        let mut all: Vec<_> = (0..256).map(|_| uslub::shrinker(|_| 0).unwrap()).collect();
        assert_eq!(
            uslub::shrinker(|_| 0).err(),
            Some(CreateError::TooManyShrinkers)
        );
        all.pop();
        assert!(uslub::shrinker(|_| 0).is_ok());
        return;
    };
    assert!(output.status.success());
}

#[test]
#[should_panic(expected = "has a constructor")]
fn a_pool_has_no_constructor() {
    let cache = Cache::builder("built")
        .constructor(|| 1u64)
        .build()
        .unwrap();
    let _ = Mempool::new(&cache, 1);
}

#[test]
fn a_pool_refuses_what_it_cannot_keep() {
    let cache = Cache::<u64>::new("pooled").unwrap();
    let pool = Mempool::new(&cache, 4).unwrap();
    assert_eq!(
        pool.alloc_bulk(Gfp::KERNEL, &mut [None; 5]),
        Err(MempoolError::TooMany)
    );
    assert_eq!(
        pool.alloc_bulk(Gfp::KERNEL | Gfp::ZERO, &mut [None; 2]),
        Err(MempoolError::Zero)
    );
    assert!(pool.try_alloc(1, Gfp::NOWAIT | Gfp::ZERO).is_err());
    assert!(matches!(
        Mempool::new(&cache, usize::MAX),
        Err(MempoolError::NoMemory)
    ));
    let limited = Cache::<[u8; 1024]>::builder("limited")
        .limit(SLAB)
        .build()
        .unwrap();
    assert!(matches!(
        Mempool::new(&limited, 100),
        Err(MempoolError::NoMemory)
    ));
    assert_live(&limited, 0);
}

#[test]
fn a_pool_is_resized_under_those_who_wait() {
    let left = AtomicUsize::new(2);
    let source = FnSource::new(
        |gfp| match left.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)) {
            Ok(_) => kmalloc(64, gfp).map_or(null_mut(), NonNull::as_ptr),
            Err(_) => null_mut(),
        },
        // SAFETY: an element, freed once.
        |element| unsafe { kfree(element) },
    );
    // SAFETY: elements have 64 bytes.
    let pool = unsafe { Mempool::<u64, _>::from_source(2, source) }.unwrap();
    let held = [pool.alloc(1), pool.alloc(2)];
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for n in 0..4 {
            let (pool, sender) = (&pool, sender.clone());
            scope.spawn(move || {
                drop(pool.alloc(n));
                sender.send(()).unwrap();
            });
        }
        thread::sleep(Duration::from_millis(50));
        assert!(receiver.try_recv().is_err(), "they wait");
        // Larger without memory: refused, and nothing changes. Smaller: at once, and they still
        // wait.
        assert_eq!(pool.resize(5), Err(MempoolError::NoMemory));
        assert_eq!(pool.min_nr(), 2);
        pool.resize(1).unwrap();
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
        // Larger, with memory again: they are served long before anybody frees or time is up.
        left.store(3, SeqCst);
        pool.resize(4).unwrap();
        for _ in 0..4 {
            receiver
                .recv_timeout(Duration::from_secs(3))
                .expect("woken");
        }
    });
    drop(held);
    assert_eq!(pool.curr_nr(), 4);
}

#[test]
fn buckets_have_a_prefix_that_fits() {
    assert_eq!(Buckets::new("").err(), Some(CreateError::BadName));
    assert_eq!(
        Buckets::new(&"p".repeat(27)).err(),
        Some(CreateError::BadName)
    );
    let longest = Buckets::new(&"p".repeat(26)).unwrap();
    for bytes in [0, 1, 1000, 8192, 8193, 1 << 20] {
        let object = longest.alloc(bytes, Gfp::KERNEL).unwrap();
        // SAFETY: ours, freed once.
        unsafe { longest.free(object.as_ptr()) };
    }
    assert_eq!(longest.alloc(usize::MAX, Gfp::KERNEL), None);
    let leaked = longest.alloc(10, Gfp::KERNEL).unwrap();
    let report = longest.destroy().unwrap_err();
    assert_eq!(report.addresses(), [leaked.as_ptr() as usize]);
}

#[test]
fn sizes_that_no_machine_has_are_refused() {
    assert_eq!(kmalloc(usize::MAX, Gfp::KERNEL), None);
    assert_eq!(kmalloc(1 << 60, Gfp::KERNEL), None);
    assert_eq!(kmalloc_aligned(8, 1 << 62, Gfp::KERNEL), None);
    let object = kmalloc(8, Gfp::KERNEL).unwrap();
    // SAFETY: live; it stays so when there is no memory.
    unsafe {
        object.cast::<u64>().write(3);
        assert_eq!(krealloc(object.as_ptr(), usize::MAX, Gfp::KERNEL), None);
        assert_eq!(object.cast::<u64>().read(), 3);
        kfree(object.as_ptr());
    }
}

#[test]
#[should_panic(expected = "power of two")]
fn an_alignment_of_kmalloc_is_a_power_of_two() {
    let _ = kmalloc_aligned(8, 24, Gfp::KERNEL);
}

#[test]
fn waiting_for_oneself_is_refused() {
    let Some(output) = in_child("waiting_for_oneself_is_refused") else {
        let cache = Cache::new("pinned").unwrap();
        Object::free_rcu(cache.alloc(1u64).unwrap());
        let builder = Cache::<u64>::builder("debugged").debug(DebugFlags::DEFAULT);
        let debugged = builder.build().unwrap();
        Object::free_rcu(debugged.alloc(1u64).unwrap());
        let plain = Cache::<u64>::new("plain").unwrap();
        let guard = crossbeam_epoch::pin();
        assert!(catch_unwind(uslub::rcu_barrier).is_err());
        // A cache that has nothing to do with readers goes.
        assert!(plain.destroy().is_ok());
        drop(cache);
        drop(debugged);
        drop(guard);
        let other = Cache::new("again").unwrap();
        Object::free_rcu(other.alloc(1u64).unwrap());
        let guard = crossbeam_epoch::pin();
        assert!(catch_unwind(AssertUnwindSafe(|| other.destroy())).is_err());
        drop(guard);
        uslub::rcu_barrier();
        return;
    };
    assert_warned(&output, &["cache 'pinned'", "read-side section", "kept"]);
    assert_warned(&output, &["cache 'debugged'", "read-side section", "kept"]);
}

#[test]
fn leaked_objects_are_named_and_kept() {
    let cache = Cache::new("leaks").unwrap();
    let mut leaked: Vec<_> = (0..3u64)
        .map(|n| Object::leak(cache.alloc(n).unwrap()) as *mut u64 as usize)
        .collect();
    leaked.sort_unstable();
    let mut report = cache.destroy().unwrap_err().addresses().to_vec();
    report.sort_unstable();
    assert_eq!(report, leaked);
    for address in leaked {
        // SAFETY: leaked memory is kept for ever.
        assert!(unsafe { *(address as *const u64) } < 3);
    }
}
