//! Contexts: what an allocation may do is what its flags say, and no more.
//!
//! `GFP_NOSPIN` is for signal handlers, which may have interrupted the holder of any lock: here
//! the test itself holds it, and a wait fails the test.

mod support;

use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;

use support::pattern::{fill, is_filled};
use support::{Cache, Setup, Slub, assert_all_is_given_back, never_waiting, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::{CLASS_MAX, NR_CLASSES, class_of, class_size};
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::Platform;
use uslub_core::stats::StatItem;

const SIZES: [usize; 6] = [8, 100, 4096, CLASS_MAX, 100_000, 3 << 20];

fn free_all(a: &Slub, cache: &Cache, objects: Vec<*mut u8>) {
    for object in objects.into_iter().filter(|o| !o.is_null()) {
        // SAFETY: live, freed once.
        unsafe { a.free(cache, object) };
    }
}

/// A cache with sheaves of four and a full barn, slabs of all kinds, and some objects held.
fn used(settings: &[&str]) -> (Box<Slub>, Vec<*mut u8>) {
    let a = Setup::with(settings).build();
    let mut args = CacheArgs::new("test", 64);
    args.sheaf_capacity = Some(4);
    let cache = a.create(&args).unwrap();
    let held: Vec<_> = (0..400).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    for &object in held.iter().skip(1).step_by(2) {
        // SAFETY: live, freed once.
        unsafe { a.free(cache, object) };
    }
    (a, held.into_iter().step_by(2).collect())
}

/// Takes one kind of lock.
fn lock(a: &Slub, cache: &Cache, which: usize) {
    match which {
        0 => cache.barn(0).raw_lock().acquire(),
        1 => cache.node(0).lists.raw().acquire(),
        2 => a
            .zone
            .raw_locks()
            .into_iter()
            .for_each(|lock| lock.acquire()),
        3 => a.meta.raw_lock().acquire(),
        4 => a.mapped.raw_lock().acquire(),
        _ => a.for_each_lock(|lock| lock.acquire()),
    }
}

fn unlock(a: &Slub, cache: &Cache, which: usize) {
    // SAFETY: this thread took it.
    unsafe {
        match which {
            0 => cache.barn(0).raw_lock().release(),
            1 => cache.node(0).lists.raw().release(),
            2 => a
                .zone
                .raw_locks()
                .into_iter()
                .for_each(|lock| lock.release()),
            3 => a.meta.raw_lock().release(),
            4 => a.mapped.raw_lock().release(),
            _ => a.for_each_lock(|lock| lock.release()),
        }
    }
}

/// Allocates under each lock in turn, on this CPU and on one that has no sheaves, until the sheaves
/// run dry.
fn nospin_under(which: usize, settings: &[&str]) {
    for cpu in [0, 1] {
        for bulk in [false, true] {
            let (a, mut held) = used(settings);
            let cache = a.caches().next().unwrap();
            on_cpu(cpu);
            lock(&a, cache, which);
            never_waiting(|| {
                for n in 1..100 {
                    let mut some = vec![null_mut(); n];
                    if !bulk {
                        held.push(a.alloc(cache, Gfp::NOSPIN));
                    } else if a.alloc_bulk(cache, Gfp::NOSPIN, &mut some) {
                        held.extend(some);
                    }
                }
            });
            unlock(&a, cache, which);
            held.retain(|o| !o.is_null());
            assert_eq!(a.info(cache).live_objs(), held.len());
            assert_eq!(a.validate(), Ok(()));
            free_all(&a, cache, held);
            assert_all_is_given_back(&a);
        }
    }
}

#[test]
fn nospin_allocates_without_waiting_for_the_barn() {
    nospin_under(0, &[]);
    nospin_under(0, &["max_empty_sheaves=0"]);
}

#[test]
fn nospin_allocates_without_waiting_for_a_partial_list() {
    nospin_under(1, &[]);
}

#[test]
fn nospin_allocates_without_waiting_for_pages() {
    nospin_under(2, &[]);
}

#[test]
fn nospin_allocates_without_waiting_for_records() {
    nospin_under(3, &[]);
    nospin_under(3, &["max_empty_sheaves=0"]);
}

#[test]
fn nospin_allocates_without_waiting_when_everything_is_locked() {
    nospin_under(4, &[]);
    nospin_under(5, &[]);
}

#[test]
fn nospin_without_sheaves_waits_for_nothing() {
    for which in 0..6 {
        let (a, mut held) = used(&[]);
        let cache = a.caches().next().unwrap();
        a.platform.set_percpu_usable(false);
        lock(&a, cache, which);
        never_waiting(|| held.extend((0..300).map(|_| a.alloc(cache, Gfp::NOSPIN))));
        unlock(&a, cache, which);
        a.platform.set_percpu_usable(true);
        held.retain(|o| !o.is_null());
        assert_eq!(a.info(cache).live_objs(), held.len());
        free_all(&a, cache, held);
        assert_all_is_given_back(&a);
    }
}

/// Whole batches of them, and any rest.
#[test]
fn what_nospin_frees_set_aside_is_drained_whatever_its_number() {
    for n in 1..=9 {
        let a = support::allocator(1);
        let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
        // Of full slabs: their first frees need the list lock.
        let mut held = vec![null_mut(); 9 * cache.geometry.objects as usize];
        a.platform.set_percpu_usable(false);
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut held));
        let objects = cache.geometry.objects as usize;
        let freed: Vec<_> = (0..n).map(|slab| held[slab * objects]).collect();
        held.retain(|object| !freed.contains(object));
        lock(&a, cache, 1);
        never_waiting(|| {
            for &object in &freed {
                // SAFETY: the test's object, freed once.
                unsafe { a.free_with(cache, object, Gfp::NOSPIN) };
            }
        });
        unlock(&a, cache, 1);
        a.flush(cache);
        assert_eq!(a.info(cache).live_objs(), held.len(), "{n} were set aside");
        assert_eq!(a.validate(), Ok(()));
        free_all(&a, cache, held);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_nospin_bulk_that_fails_puts_its_objects_back_without_waiting() {
    for which in 0..6 {
        let a = support::allocator(1);
        let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
        // All slabs are full, and some of their objects are in a sheaf.
        let mut held = vec![null_mut(); 3 * cache.geometry.objects as usize];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut held));
        free_all(&a, cache, held.split_off(100));
        let live = a.info(cache).live_objs();
        lock(&a, cache, which);
        let mut more = vec![null_mut(); 40_000];
        let got = never_waiting(|| a.alloc_bulk(cache, Gfp::NOSPIN, &mut more));
        unlock(&a, cache, which);
        assert!(!got, "2.5 MB are not there without asking the system");
        assert_eq!(a.info(cache).live_objs(), live);
        assert_eq!(a.validate(), Ok(()));
        free_all(&a, cache, held);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn nospin_kmalloc_waits_for_nothing() {
    for which in 0..6 {
        let (a, held) = used(&[]);
        let cache = a.caches().next().unwrap();
        let warm: Vec<_> = SIZES.map(|bytes| a.kmalloc(bytes, Gfp::KERNEL)).to_vec();
        lock(&a, cache, which);
        let got: Vec<_> = never_waiting(|| {
            (0..120)
                .map(|i| a.kmalloc(SIZES[i % SIZES.len()], Gfp::NOSPIN))
                .collect()
        });
        unlock(&a, cache, which);
        for object in warm.into_iter().chain(got) {
            // SAFETY: live or null, freed once.
            unsafe { a.kfree(object) };
        }
        free_all(&a, cache, held);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn nospin_krealloc_waits_for_nothing() {
    for which in 0..6 {
        for (old, new) in [
            (100, 50),
            (100, 5000),
            (100_000, 120_000),
            (3 << 20, 4 << 20),
        ] {
            let (a, held) = used(&[]);
            let cache = a.caches().next().unwrap();
            let object = a.kmalloc(old, Gfp::KERNEL);
            lock(&a, cache, which);
            // SAFETY: live.
            let moved = never_waiting(|| unsafe { a.krealloc(object, new, Gfp::NOSPIN) });
            unlock(&a, cache, which);
            // SAFETY: live, freed once.
            unsafe { a.kfree(if moved.is_null() { object } else { moved }) };
            free_all(&a, cache, held);
            assert_all_is_given_back(&a);
        }
    }
}

#[test]
fn nowait_never_asks_the_system_for_memory() {
    let (a, held) = used(&[]);
    let cache = a.caches().next().unwrap();
    let before = a.platform.calls().asking();
    let mut got = Vec::new();
    for cpu in 0..4 {
        // CPUs that were never used have no region, and get none now.
        on_cpu(cpu);
        got.extend((0..200).map(|_| a.alloc(cache, Gfp::NOWAIT)));
    }
    let mut bulk = [null_mut(); 100];
    if a.alloc_bulk(cache, Gfp::NOWAIT, &mut bulk) {
        got.extend(bulk);
    }
    let sizes: Vec<_> = (SIZES.iter())
        .map(|&bytes| a.kmalloc(bytes, Gfp::NOWAIT))
        .collect();
    assert_eq!(a.platform.calls().asking(), before);
    assert!(!got[0].is_null(), "what is there is given");
    for object in sizes {
        // SAFETY: live or null, freed once.
        unsafe { a.kfree(object) };
    }
    free_all(&a, cache, held);
    free_all(&a, cache, got);
    assert_all_is_given_back(&a);
}

#[test]
fn nowait_krealloc_never_asks_the_system_for_memory() {
    for (old, new) in [
        (100, 5000),
        (100, 100_000),
        (100_000, 3 << 20),
        (3 << 20, 5 << 20),
    ] {
        let a = support::allocator(1);
        let object = a.kmalloc(old, Gfp::KERNEL);
        fill(object, old, 9);
        let before = a.platform.calls().asking();
        // SAFETY: live.
        let moved = unsafe { a.krealloc(object, new, Gfp::NOWAIT) };
        assert_eq!(a.platform.calls().asking(), before, "{old} to {new}");
        let object = if moved.is_null() { object } else { moved };
        assert!(is_filled(object, old, 9));
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_refill_depends_on_waiting_for_locks_and_not_on_asking_for_memory() {
    let (a, held) = used(&[]);
    let cache = a.caches().next().unwrap();
    let (refilled, slow) = (
        a.stat(cache, StatItem::SheafRefill),
        a.stat(cache, StatItem::AllocSlowpath),
    );
    let got: Vec<_> = (0..100).map(|_| a.alloc(cache, Gfp::NOWAIT)).collect();
    assert!(got.iter().all(|o| !o.is_null()));
    assert!(a.stat(cache, StatItem::SheafRefill) > refilled);
    assert_eq!(a.stat(cache, StatItem::AllocSlowpath), slow);
    free_all(&a, cache, held);
    free_all(&a, cache, got);
    assert_all_is_given_back(&a);
}

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

#[test]
fn an_aligned_object_asked_for_zeroed_is_zero() {
    for (bytes, align) in [(200, 64), (5000, 4096), (100_000, 4096), (100_000, 65536)] {
        let a = support::allocator(1);
        for round in 0..3 {
            let object = a.kmalloc_aligned(bytes, align, Gfp::KERNEL | Gfp::ZERO);
            assert!(
                is_filled(object, bytes, 0),
                "{bytes} at {align}, round {round}"
            );
            fill(object, bytes, 0xee);
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
    }
}

#[test]
fn objects_are_aligned_as_was_asked() {
    let a = support::allocator(1);
    let mut held = Vec::new();
    for shift in 0..24 {
        let align = 1usize << shift;
        for bytes in [0, 1, 24, 100, 1000, 5000, 40_000, 2 << 20] {
            for _ in 0..3 {
                let object = a.kmalloc_aligned(bytes, align, Gfp::KERNEL);
                assert!(
                    (object as usize).is_multiple_of(align),
                    "{bytes} at {align}"
                );
                assert!(a.ksize(object) >= bytes);
                fill(object, bytes, shift as u8);
                held.push((object, bytes, shift as u8));
            }
        }
    }
    for (object, bytes, byte) in held {
        assert!(is_filled(object, bytes, byte));
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
    }
    assert_all_is_given_back(&a);
}

#[test]
fn every_class_keeps_its_natural_alignment() {
    let a = support::allocator(1);
    for class in 1..=NR_CLASSES {
        let bytes = class_size(class);
        let natural = (1usize << bytes.trailing_zeros()).min(4096);
        for _ in 0..5 {
            let object = a.kmalloc(bytes, Gfp::KERNEL);
            assert!((object as usize).is_multiple_of(natural), "{bytes}");
            assert_eq!(a.ksize(object), bytes);
        }
    }
}

#[test]
fn a_cache_that_was_created_first_never_serves_kmalloc() {
    let setup = Setup::default();
    let a = setup.bare();
    // SAFETY: nobody else has it yet.
    assert!(unsafe { a.init(setup.reserve, setup.tunables) });
    let cache = a.create(&CacheArgs::new("mine", 4)).unwrap();
    let object = a.kmalloc(1, Gfp::KERNEL);
    assert_ne!(
        cache.id,
        class_of(1),
        "a user's cache has a size class's place"
    );
    assert!(a.ksize(object) >= 8);
    assert_eq!(a.info(cache).num_slabs, 0);
}

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

#[test]
fn a_refused_cache_costs_no_memory() {
    let a = support::allocator(1);
    a.create(&CacheArgs::new("test", 8)).unwrap();
    let before = a.metadata_bytes();
    let mut bad_align = CacheArgs::new("test", 8);
    bad_align.align = 3;
    for args in [CacheArgs::new("", 8), CacheArgs::new("test", 0), bad_align] {
        assert!(a.create(&args).is_err());
        assert_eq!(a.metadata_bytes(), before, "{args:?}");
    }
}

#[test]
fn after_a_fork_parent_and_child_find_every_lock_free() {
    for child in [false, true] {
        let (a, held) = used(&[]);
        let cache = a.caches().next().unwrap();
        a.lock_for_fork();
        // SAFETY: this thread took the locks, and there is no other.
        unsafe {
            if child {
                a.reset_after_fork();
            } else {
                a.unlock_after_fork();
            }
        }
        never_waiting(|| {
            let more: Vec<_> = (0..500).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
            let large = [100_000, 3 << 20].map(|bytes| a.kmalloc(bytes, Gfp::KERNEL));
            free_all(&a, cache, more);
            for object in large {
                // SAFETY: live, freed once.
                unsafe { a.kfree(object) };
            }
            free_all(&a, cache, held);
            a.create(&CacheArgs::new("another", 8)).unwrap();
            assert_all_is_given_back(&a);
        });
    }
}

#[test]
fn after_a_fork_the_child_finds_no_cpu_stopped() {
    let setup = Setup {
        slots: support::Slots::Restartable,
        ..Setup::default()
    };
    let a = setup.build();
    let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
    let held: Vec<_> = (0..100).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    // A thread that the child does not have was draining this CPU.
    assert!(a.table.stop(&a.platform, 0).is_some());
    let slow = a.stat(cache, StatItem::AllocSlowpath);
    free_all(&a, cache, vec![a.alloc(cache, Gfp::KERNEL)]);
    assert_eq!(
        a.stat(cache, StatItem::AllocSlowpath),
        slow + 1,
        "left alone"
    );
    a.lock_for_fork();
    // SAFETY: this thread took the locks, and there is no other.
    unsafe { a.reset_after_fork() };
    free_all(&a, cache, vec![a.alloc(cache, Gfp::KERNEL)]);
    assert_eq!(
        a.stat(cache, StatItem::AllocSlowpath),
        slow + 1,
        "in use again"
    );
    free_all(&a, cache, held);
    assert_all_is_given_back(&a);
}

#[test]
fn after_a_fork_the_child_finds_no_slot_locked() {
    let (a, held) = used(&[]);
    let cache = a.caches().next().unwrap();
    let region = a.table.region(0).unwrap();
    for slot in [cache.id.main(), cache.id.spare()] {
        // A thread that the child does not have was in the middle of an operation. Relaxed: one
        // thread.
        region.word(slot).fetch_or(1, Relaxed);
    }
    a.lock_for_fork();
    // SAFETY: this thread took the locks, and there is no other.
    unsafe { a.reset_after_fork() };
    let slow = a.stat(cache, StatItem::AllocSlowpath);
    let more: Vec<_> = (0..20).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert_eq!(
        a.stat(cache, StatItem::AllocSlowpath),
        slow,
        "sheaves are used again"
    );
    free_all(&a, cache, more);
    free_all(&a, cache, held);
    assert_all_is_given_back(&a);
}

#[test]
fn a_shrink_waits_for_a_slot_that_is_locked_for_a_moment() {
    let (a, held) = used(&[]);
    let cache = a.caches().next().unwrap();
    let word = a.table.region(0).unwrap().word(cache.id.main());
    // Relaxed, here and below: only a bit that another thread holds and gives back.
    word.fetch_or(1, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As a thread that is preempted in the middle of an operation.
            std::thread::sleep(std::time::Duration::from_millis(20));
            word.fetch_and(!1, Relaxed);
        });
        a.shrink(cache);
    });
    assert_eq!(a.info(cache).cached_objs, 0, "a sheaf was left behind");
    free_all(&a, cache, held);
    assert_all_is_given_back(&a);
}

#[test]
fn decay_rides_on_no_free_that_may_not_enter_the_kernel() {
    const DECAY: u64 = 1000;
    for (free_gfp, rides) in [(Gfp::KERNEL, true), (Gfp::NOWAIT, false)] {
        let a = Setup::with(&[&format!("decay_ms={DECAY}")]).build();
        let mut args = CacheArgs::new("leaves", 1000);
        args.free_gfp = free_gfp;
        let cache = a.create(&args).unwrap();
        let mut leaves = vec![null_mut(); 2000];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut leaves));
        // A block of its own.
        let run = a.zone.alloc(&a.platform, BLOCK_PAGES, 1, Gfp::KERNEL);
        (a.zone).free(&a.platform, run.unwrap().page, BLOCK_PAGES, DECAY);
        a.platform.advance(2 * DECAY);
        a.platform.take_purged();
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut leaves) };
        assert_ne!(a.platform.take_purged().is_empty(), rides);
        a.zone.decay(&a.platform, a.platform.now_ms(), DECAY);
        assert!(rides || !a.platform.take_purged().is_empty());
        assert_all_is_given_back(&a);
    }
}
