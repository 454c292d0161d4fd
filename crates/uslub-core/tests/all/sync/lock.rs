//! The lock: who does not get it leaves it to its holder.

use std::thread::scope;

use crate::support::{Virtual, never_waiting};
use uslub_core::sync::Lock;

#[test]
fn a_try_that_fails_leaves_the_lock_held() {
    let lock: Lock<Virtual, u32> = Lock::new(0);
    let guard = lock.lock();
    for _ in 0..2 {
        assert!(lock.try_lock().is_none());
        assert!(never_waiting(|| lock.lock_if(false)).is_none());
        assert!(lock.is_held());
    }
    drop(guard);
    assert!(!lock.is_held());
    assert!(lock.try_lock().is_some());
    assert!(!lock.is_held());
}

#[test]
fn those_who_wait_and_those_who_only_try_exclude_each_other() {
    const ROUNDS: u32 = 20_000;
    let lock: Lock<Virtual, u32> = Lock::new(0);
    let done = scope(|s| {
        let workers = [true, true, false, false].map(|spin| {
            let lock = &lock;
            s.spawn(move || {
                let mut done = 0;
                for _ in 0..ROUNDS {
                    if let Some(mut count) = lock.lock_if(spin) {
                        let before = *count;
                        std::hint::spin_loop();
                        *count = before + 1;
                        done += 1;
                    }
                }
                done
            })
        });
        workers
            .map(|worker| worker.join().unwrap())
            .iter()
            .sum::<u32>()
    });
    assert_eq!(*lock.lock(), done);
    assert!(done >= 2 * ROUNDS);
}
