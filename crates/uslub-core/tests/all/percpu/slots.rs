//! Slots in the hands of others: a CPU that is stopped, a word that is locked.

use std::sync::atomic::Ordering::Relaxed;

use crate::support;
use crate::support::{Setup, assert_all_is_given_back, free_all, used};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::StatItem;

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
