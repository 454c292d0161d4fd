//! Forks: what the thread that forks may do, what others do meanwhile, and what a child finds.

use std::thread;

use crate::support::pattern::{fill, is_filled};
use crate::support::{Setup, Slub, assert_all_is_given_back, free_all, never_waiting, used};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::sync::Held;

const SIZES: [usize; 7] = [8, 100, 3000, 8192, 50_000, 200_000, 3 << 20];

/// Allocates and frees objects of all kinds, more than sheaves hold.
fn use_all(a: &Slub) {
    for bytes in SIZES {
        let count = if bytes < 10_000 { 300 } else { 3 };
        let objects: Vec<_> = (0..count).map(|_| a.kmalloc(bytes, Gfp::KERNEL)).collect();
        for object in objects {
            assert!(!object.is_null());
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
    }
}

/// How the locks are held that are held at all.
fn held(a: &Slub) -> Vec<Held> {
    let mut all = Vec::new();
    a.for_each_lock(|lock| all.push(lock.held()));
    all.retain(|&held| held != Held::Not);
    all
}

fn nr_locks(a: &Slub) -> usize {
    let mut count = 0;
    a.for_each_lock(|_| count += 1);
    count
}

#[test]
fn the_thread_that_forks_allocates_under_its_locks() {
    let a = Setup::default().build();
    use_all(&a);
    a.lock_for_fork();
    assert_eq!(held(&a).len(), nr_locks(&a));
    never_waiting(|| use_all(&a));
    assert!(held(&a).iter().all(|&held| held == Held::ByFork));
    assert_eq!(held(&a).len(), nr_locks(&a), "its locks are held again");
    // SAFETY: locked on this thread.
    unsafe { a.unlock_after_fork() };
    assert_eq!(held(&a), []);
}

#[test]
fn a_fork_that_interrupts_a_fork_leaves_its_locks_alone() {
    let a = Setup::default().build();
    use_all(&a);
    a.lock_for_fork();
    for _ in 0..5 {
        never_waiting(|| a.lock_for_fork());
    }
    for _ in 0..5 {
        // SAFETY: locked on this thread.
        unsafe { a.unlock_after_fork() };
        assert_eq!(held(&a).len(), nr_locks(&a), "the outer fork's");
    }
    assert_eq!(a.fork_depth(), 1);
    // SAFETY: as above.
    unsafe { a.unlock_after_fork() };
    assert_eq!((held(&a), a.fork_depth()), (vec![], 0));
}

#[test]
fn a_fork_that_interrupts_an_allocation_leaves_its_lock_alone() {
    for child in [false, true] {
        let a = Setup::default().build();
        use_all(&a);
        let [growth, lists] = a.zone.raw_locks();
        // The code that a signal handler interrupted holds it.
        lists.acquire();
        never_waiting(|| a.lock_for_fork());
        assert_eq!(growth.held(), Held::ByFork);
        // SAFETY: locked on this thread; the only one.
        unsafe {
            match child {
                true => a.reset_after_fork(),
                false => a.unlock_after_fork(),
            }
        }
        assert_eq!(held(&a), [Held::Here]);
        assert!(a.is_interrupted() && !a.is_torn());
        // SAFETY: taken above.
        unsafe { lists.release() };
        never_waiting(|| use_all(&a));
    }
}

#[test]
fn others_steal_the_locks_of_a_fork_that_lasts() {
    let a = Setup::default().build();
    use_all(&a);
    a.lock_for_fork();
    // The thread that forks waits for something that these threads hold.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| use_all(&a));
        }
    });
    use_all(&a);
    // SAFETY: locked on this thread.
    unsafe { a.unlock_after_fork() };
    assert_eq!(held(&a), []);
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn threads_fork_and_allocate_at_once() {
    let a = Setup::default().build();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    a.lock_for_fork();
                    let object = a.kmalloc(100_000, Gfp::KERNEL);
                    // SAFETY: live, freed once; locked on this thread.
                    unsafe {
                        a.kfree(object);
                        a.unlock_after_fork();
                    }
                    use_all(&a);
                }
            });
        }
    });
    assert_eq!(held(&a), []);
    assert_eq!(a.validate(), Ok(()));
}

/// Lets another thread end while it holds the lock of the page lists, as if in the middle of a
/// change: in a child it does not exist.
fn lose_a_thread(a: &Slub) {
    thread::scope(|scope| {
        scope.spawn(|| a.zone.raw_locks()[1].acquire());
    });
}

#[test]
fn a_fork_does_not_wait_for_ever() {
    let a = Setup::default().build();
    use_all(&a);
    lose_a_thread(&a);
    a.lock_for_fork();
    // SAFETY: locked on this thread.
    unsafe { a.unlock_after_fork() };
    assert_eq!(held(&a), [Held::Elsewhere], "still the other's");
}

#[test]
fn a_child_that_finds_structures_half_changed_starts_over() {
    for prepared in [false, true] {
        let a = Setup::default().build();
        for generation in 1..4 {
            let old: Vec<_> = (SIZES.iter())
                .map(|&bytes| {
                    let object = a.kmalloc(bytes, Gfp::KERNEL);
                    fill(object, bytes, 7);
                    (object, bytes, a.ksize(object))
                })
                .collect();
            lose_a_thread(&a);
            if prepared {
                a.lock_for_fork();
            }
            // SAFETY: the only thread.
            unsafe {
                match prepared {
                    true => a.reset_after_fork(),
                    false => a.reset_after_raw_fork(),
                }
                assert!(a.is_torn());
                assert!(a.start_over());
            }
            assert!(!a.is_torn());
            assert_eq!((held(&a), a.fork_depth()), (vec![], 0));
            assert_eq!(a.nr_formers(), generation);
            use_all(&a);
            for (i, (object, bytes, usable)) in old.into_iter().enumerate() {
                assert_eq!(a.ksize(object), usable);
                // SAFETY: live, and given up once.
                unsafe {
                    assert!(is_filled(object, bytes, 7));
                    if i % 2 == 0 {
                        a.kfree(object);
                        continue;
                    }
                    let moved = a.krealloc(object, 2 * bytes, Gfp::KERNEL);
                    assert!(is_filled(moved, bytes, 7));
                    a.kfree(moved);
                }
            }
            assert_eq!(a.validate(), Ok(()));
        }
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
