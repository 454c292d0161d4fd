//! A clock that stands still, goes back or jumps ahead stops nothing.

use crate::support::{Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::kmalloc::LARGE_MAX;
use uslub_core::memory::arena::BLOCK_BYTES;
use uslub_core::platform::{PAGE_SIZE, Platform};

const DECAY: u64 = 1000;
const YEAR: u64 = 365 * 24 * 3600 * 1000;
const LARGE: usize = LARGE_MAX / 2;

fn setup(now: u64) -> Box<Slub> {
    let a = Setup::with(&[&format!("decay_ms={DECAY}")]).build();
    a.platform.set_clock(now);
    a
}

/// Takes objects of several kinds and frees them.
fn work(a: &Slub) {
    let sizes = [64, 400, 3000, 2 * PAGE_SIZE, LARGE, 2 * LARGE_MAX];
    let mut objects = Vec::new();
    for bytes in sizes.iter().cycle().take(480) {
        let object = a.kmalloc(*bytes, Gfp::KERNEL);
        assert!(!object.is_null());
        objects.push(object);
    }
    for object in objects {
        // SAFETY: allocated here, freed once.
        unsafe { a.kfree(object) };
    }
}

/// Works at the time `now` and for two decay times from then on; little may lie free at the end.
fn works_and_decays(a: &Slub, now: u64) {
    a.platform.set_clock(now);
    work(a);
    let idle = a.zone.dirty_bytes();
    assert!(idle > 4 * BLOCK_BYTES, "{idle} bytes lie free at {now}");
    for part in 1..=20 {
        a.platform.set_clock(now.saturating_add(part * DECAY / 10));
        // SAFETY: allocated here, freed once.
        unsafe { a.kfree(a.kmalloc(LARGE, Gfp::KERNEL)) };
    }
    let left = a.zone.dirty_bytes() + a.mapped.kept_bytes();
    // The blocks that are used all the time keep their pages.
    assert!(
        left <= 2 * BLOCK_BYTES,
        "{left} bytes lie free two decay times after {now}"
    );
}

#[test]
fn memory_goes_back_in_time_after_the_clock_went_back() {
    let a = setup(10 * YEAR);
    for now in [10 * YEAR, 9 * YEAR, 3 * DECAY, 8 * YEAR, 8 * YEAR - 1, 0] {
        works_and_decays(&a, now);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn memory_goes_back_after_the_clock_jumped_ahead() {
    let a = setup(0);
    // 2^31 and 2^32 ms are 25 and 50 days.
    for days in [1, 26, 40, 77, 120, 365, 4000] {
        a.platform.set_clock(0);
        work(&a);
        let idle = a.zone.dirty_bytes();
        assert!(idle > 0);
        a.platform.set_clock(days * 24 * 3600 * 1000);
        a.tick(a.platform.now_ms());
        assert_eq!(a.zone.dirty_bytes(), 0, "{days} days later");
    }
    assert_all_is_given_back(&a);
}

#[test]
fn the_last_moment_of_all_is_a_time_like_any_other() {
    let a = setup(u64::MAX - 5);
    work(&a);
    for now in [u64::MAX - 1, u64::MAX, 7, u64::MAX / 2] {
        a.platform.set_clock(now);
        work(&a);
        a.tick(now);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn a_clock_that_stands_still_ends_no_work_and_keeps_no_more_than_ever() {
    let a = setup(5);
    // The second time, mappings are asked for again.
    (0..2).for_each(|_| work(&a));
    let first = a.zone.dirty_bytes() + a.mapped.kept_bytes();
    for _ in 0..50 {
        work(&a);
        a.tick(5);
    }
    let last = a.zone.dirty_bytes() + a.mapped.kept_bytes();
    assert!(last <= 2 * first, "{last} bytes lie free, {first} at first");
    assert_all_is_given_back(&a);
}
