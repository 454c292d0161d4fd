//! Comparisons of times, in milliseconds of
//! [`Platform::now_ms`](crate::platform::Platform::now_ms).
//!
//! The clock may be bad. After a checkpoint, or on a foreign platform, it may stand still, go back,
//! or jump ahead by years. An action that waits for a time then happens at once or a period later.
//! It never waits until the clock is where it was. Callers: all that is due after a time.

use core::sync::atomic::Ordering::Relaxed;

use crate::sync::atomic::AtomicU64;

/// Milliseconds by which one thread's clock reading may be older than another's.
const RACE_MS: u32 = 1000;

/// Whether an action is due that was deferred by at most `period` milliseconds, until `due`.
#[inline]
pub(crate) fn is_due(now: u64, due: u64, period: u64) -> bool {
    // `due` is further ahead than any deferral: the clock went back.
    now >= due || due - now > period
}

/// Whether an action is due, as [`is_due`], and this thread is the one that does it. `due` is then
/// `period` milliseconds ahead.
#[inline]
pub(crate) fn claim(due: &AtomicU64, now: u64, period: u64) -> bool {
    // Relaxed, both: the winner does the work; no other data depends on it.
    let seen = due.load(Relaxed);
    let next = now.saturating_add(period);
    is_due(now, seen, period) && due.compare_exchange(seen, next, Relaxed, Relaxed).is_ok()
}

/// Milliseconds since `then`. 0 if another thread set `then` just after `now` was read; very large
/// if the clock went back.
#[inline]
pub(crate) fn age(now: u64, then: u64) -> u64 {
    match now.checked_sub(then) {
        Some(age) => age,
        None if then - now <= u64::from(RACE_MS) => 0,
        None => u64::MAX,
    }
}

/// As [`age`], for the low 32 bits of `then` (49 days).
#[inline]
pub(crate) fn age_of_low(now: u64, then: u32) -> u32 {
    let age = (now as u32).wrapping_sub(then);
    if age > u32::MAX - RACE_MS { 0 } else { age }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_off_is_due_in_time_or_when_the_clock_went_back() {
        assert!(!is_due(100, 110, 10) && !is_due(109, 110, 10));
        assert!(is_due(110, 110, 10) && is_due(u64::MAX, 110, 10));
        assert!(is_due(99, 110, 10) && is_due(0, u64::MAX, 10));
    }

    #[test]
    fn one_of_several_threads_does_what_is_due() {
        let due = AtomicU64::new(110);
        assert!(!claim(&due, 109, 10));
        assert!(claim(&due, 110, 10) && !claim(&due, 110, 10) && !claim(&due, 119, 10));
        assert!(claim(&due, 120, 10));
    }

    #[test]
    fn an_age_is_small_for_a_race_and_great_for_a_clock_that_went_back() {
        assert_eq!((age(7, 5), age(5, 7), age(5, 5005)), (2, 0, u64::MAX));
        assert_eq!(age(u64::MAX, 0), u64::MAX);
        assert_eq!((age_of_low(1 << 32, u32::MAX), age_of_low(5, 7)), (1, 0));
        assert_eq!(age_of_low(3_000_000_000, 0), 3_000_000_000);
        assert!(age_of_low(0, 3_600_000) > 1 << 30);
    }
}
