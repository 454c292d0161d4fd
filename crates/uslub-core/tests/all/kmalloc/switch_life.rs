//! Switched size classes in the life of a process: threads, CPUs that come later, forks, and a
//! process that began with `slab_debug`.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use super::switch::*;
use crate::support::{Dice, Setup, Slots, hop, on_cpu};
use uslub_core::Gfp;
use uslub_core::debug::options::SlabDebug;
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::platform::PAGE_SIZE;

#[test]
fn threads_that_allocate_meanwhile_lose_nothing() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let a = repairing(slots);
        a.platform.disturb(50);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 0..3 {
                let (a, done) = (&a, &done);
                scope.spawn(move || {
                    match seed {
                        0 => on_cpu(1),
                        _ => hop(seed as u64),
                    }
                    let mut dice = Dice::new(seed as u64);
                    let mut held: Vec<(*mut u8, u8)> = Vec::new();
                    // SeqCst: a test.
                    while !done.load(SeqCst) || !held.is_empty() {
                        // SeqCst: as above.
                        if held.len() < 400 && !done.load(SeqCst) && dice.below(2) == 0 {
                            let object = a.kmalloc(40, Gfp::KERNEL);
                            let tag = dice.below(256) as u8;
                            // SAFETY: 40 bytes of ours.
                            unsafe { object.write_bytes(tag, 40) };
                            held.push((object, tag));
                        } else if !held.is_empty() {
                            let (object, tag) = held.swap_remove(dice.below(held.len()));
                            assert!((0..40).all(|at| peek(object, at) == tag));
                            kfree(a, object);
                        }
                    }
                });
            }
            for round in 0..60 {
                let value = ["FZP,kmalloc-48", "FZPU", "-,kmalloc-*", "Z,kmalloc-4*", "-"];
                switch(&a, value[round % value.len()]);
                thread::yield_now();
            }
            switch(&a, "FZP,kmalloc-48");
            // SeqCst: a test.
            done.store(true, SeqCst);
        });
        let after = take(&a, 500);
        assert!(
            after
                .iter()
                .all(|&object| letters_of(&a, object) == F | Z | P),
            "{slots:?}"
        );
        free_all(&a, after);
        assert_silent(&a);
        switch(&a, "-");
        assert_given_back(&a);
    }
}

#[test]
fn a_cpu_that_comes_later_finds_the_class_debugged() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let a = repairing(slots);
        let old = take(&a, 100);
        switch(&a, "F,kmalloc-48");
        for cpu in [1, 3] {
            on_cpu(cpu);
            // A free first: it must not give the plain cache a sheaf.
            kfree(&a, old[cpu]);
            let object = a.kmalloc(40, Gfp::KERNEL);
            assert_eq!(letters_of(&a, object), F, "CPU {cpu}");
            kfree(&a, object);
        }
        on_cpu(0);
        // A drain leaves the words closed.
        kfree(&a, a.kmalloc(100, Gfp::KERNEL));
        a.trim();
        kfree(&a, old[0]);
        assert_eq!(letters_of(&a, a.kmalloc(40, Gfp::KERNEL)), F);
        let plain = cache_of(&a, old[2]);
        let mut rest = [old[2], old[4], old[5], old[6]];
        // SAFETY: live, freed once.
        unsafe { a.free_bulk(plain, &mut rest) };
        assert_eq!(a.info(plain).cached_objs, 0);
        assert_silent(&a);
    }
}

#[test]
fn a_class_that_was_debugged_from_the_start_is_switched_too() {
    let setup = Setup::with(&["slab_debug_fatal=0"]);
    let a = setup.bare();
    // SAFETY: nobody else has it yet.
    unsafe {
        a.set_slab_debug(SlabDebug::new("FZ,kmalloc-48"));
        assert!(a.init(setup.reserve, setup.tunables));
    }
    a.keep_indices(NR_CLASSES + 1);
    let first = a.kmalloc(40, Gfp::KERNEL);
    assert_eq!(letters_of(&a, first), F | Z);
    switch(&a, "-,kmalloc-48");
    let plain = a.kmalloc(40, Gfp::KERNEL);
    assert!(letters_of(&a, plain).is_empty());
    switch(&a, "FZPU,kmalloc-48");
    let other = a.kmalloc(40, Gfp::KERNEL);
    assert_eq!(letters_of(&a, other), F | Z | P | U);
    switch(&a, "ZT,kmalloc-48");
    let again = a.kmalloc(40, Gfp::KERNEL);
    assert_eq!(cache_of(&a, again).id, cache_of(&a, first).id);
    assert_eq!(a.ksize(first), 48);
    free_all(&a, vec![first, plain, other, again]);
    assert_eq!(a.debug.errors(), 0);
}

#[test]
fn a_child_that_starts_over_knows_the_sizes_of_twins() {
    let a = repairing(Slots::Locked);
    let plain = a.kmalloc(40, Gfp::KERNEL);
    switch(&a, "FZPU,kmalloc-48,kmalloc-4k");
    let [small, page] = [40, PAGE_SIZE].map(|bytes| a.kmalloc(bytes, Gfp::KERNEL));
    // SAFETY: 40 bytes of ours.
    unsafe { small.write_bytes(7, 40) };
    thread::scope(|scope| {
        scope.spawn(|| a.zone.raw_locks()[1].acquire());
    });
    // SAFETY: the only thread.
    unsafe {
        a.reset_after_raw_fork();
        assert!(a.start_over());
    }
    assert_eq!(
        [plain, small, page].map(|object| a.ksize(object)),
        [48, 48, PAGE_SIZE]
    );
    // SAFETY: live.
    let moved = unsafe { a.krealloc(small, 100, Gfp::KERNEL) };
    assert!((0..40).all(|at| peek(moved, at) == 7));
    let fresh = a.kmalloc(40, Gfp::KERNEL);
    assert!(letters_of(&a, fresh).is_empty(), "the new world is plain");
    switch(&a, "F,kmalloc-48");
    assert_eq!(letters_of(&a, a.kmalloc(40, Gfp::KERNEL)), F);
    free_all(&a, vec![plain, page, moved, fresh]);
    assert_silent(&a);
}

#[test]
fn a_fork_while_a_class_is_debugged_leaves_it_so() {
    let a = repairing(Slots::Restartable);
    let old = take(&a, 10);
    switch(&a, "FZ,kmalloc-48");
    let held = take(&a, 10);
    a.lock_for_fork();
    // SAFETY: this thread took the locks, and there is no other.
    unsafe { a.reset_after_fork() };
    assert_eq!(letters_of(&a, a.kmalloc(40, Gfp::KERNEL)), F | Z);
    free_all(&a, [old, held].concat());
    assert_silent(&a);
}

/// Grace periods that are over at once: nobody reads.
struct AtOnce;

// SAFETY: there are no readers.
unsafe impl GracePeriod for AtOnce {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        // SAFETY: by the caller's promise.
        unsafe { callback(head) };
    }

    fn synchronize(&self) {}

    fn barrier(&self) {}
}

#[test]
fn objects_freed_after_a_grace_period_go_to_their_slabs() {
    let a = repairing(Slots::Restartable);
    assert!(a.set_grace_period(&AtOnce));
    let (old, young) = (take(&a, 1000), take(&a, 100));
    // SAFETY: live, freed once; nobody reads them.
    let free = |objects: &[*mut u8]| objects.iter().for_each(|&o| unsafe { a.kfree_rcu(o) });
    free(&young[..50]);
    switch(&a, "FZPU,kmalloc-48");
    let twins = take(&a, 100);
    let plain = cache_of(&a, old[0]);
    free(&old);
    free(&young[50..]);
    free(&twins);
    a.rcu_barrier();
    let info = a.info(plain);
    assert_eq!((info.active_objs, info.cached_objs), (0, 0));
    assert_silent(&a);
    assert_given_back(&a);
}
