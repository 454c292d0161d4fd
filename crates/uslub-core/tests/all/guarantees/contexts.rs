//! Contexts: what an allocation may do is what its flags say, and no more.
//!
//! `GFP_NOSPIN` is for signal handlers, which may have interrupted the holder of any lock: here
//! the test itself holds it, and a wait fails the test.

use std::ptr::null_mut;

use crate::support;
use crate::support::pattern::{fill, is_filled};
use crate::support::{
    Cache, Setup, Slub, assert_all_is_given_back, free_all, never_waiting, on_cpu, used,
};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::CLASS_MAX;
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::Platform;
use uslub_core::stats::StatItem;

const SIZES: [usize; 6] = [8, 100, 4096, CLASS_MAX, 100_000, 3 << 20];

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
        3 => a.meta.raw_locks().for_each(|lock| lock.acquire()),
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
            3 => a.meta.raw_locks().for_each(|lock| lock.release()),
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
