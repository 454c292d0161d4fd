//! Failures on purpose: the kernel's `failslab`.
//!
//! Each allocation of a cache that [may fail](super::DebugFlags::MAY_FAIL) asks once. It fails if
//! all of this holds, in this order: the call is the n-th (with `nth`); or `times` are left, the
//! call is a multiple of `interval`, and the dice show less than `probability` per cent. Any thread
//! may ask.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// When allocations fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailSlab {
    /// Only each call of this number may fail; 0 and 1 for all.
    pub interval: u32,
    /// Probability of a failure, in per cent; 0 turns it off.
    pub probability: u32,
    /// Failures at most; `u32::MAX` for no limit.
    pub times: u32,
    /// The call that fails, whatever the other limits say, counted from 1; 0 for none.
    pub nth: u32,
    /// Start of the random sequence, so that a run can be repeated.
    pub seed: u32,
}

impl FailSlab {
    /// No allocation fails.
    pub const OFF: Self = Self {
        interval: 1,
        probability: 0,
        times: u32::MAX,
        nth: 0,
        seed: 1,
    };

    /// Whether any allocation may fail.
    pub const fn is_on(&self) -> bool {
        self.probability > 0 || self.nth > 0
    }
}

/// The state of `failslab`.
pub struct FailState {
    interval: AtomicU32,
    probability: AtomicU32,
    times: AtomicU32,
    nth: AtomicU32,
    calls: AtomicU32,
    failures: AtomicU32,
    dice: AtomicU64,
}

impl FailState {
    /// No allocation fails.
    pub(crate) const fn new() -> Self {
        Self {
            interval: AtomicU32::new(1),
            probability: AtomicU32::new(0),
            times: AtomicU32::new(u32::MAX),
            nth: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            dice: AtomicU64::new(1),
        }
    }

    /// Sets when allocations fail, and begins to count anew.
    pub fn set(&self, fail: FailSlab) {
        // Relaxed, all: a caller that mixes old and new values fails once more or less.
        self.interval.store(fail.interval.max(1), Relaxed);
        self.probability.store(fail.probability, Relaxed);
        self.times.store(fail.times, Relaxed);
        self.nth.store(fail.nth, Relaxed);
        self.calls.store(0, Relaxed);
        self.failures.store(0, Relaxed);
        self.dice.store(u64::from(fail.seed) << 1 | 1, Relaxed);
    }

    /// Whether any allocation may fail.
    pub fn is_on(&self) -> bool {
        // Relaxed, both: as in `set`.
        self.probability.load(Relaxed) > 0 || self.nth.load(Relaxed) > 0
    }

    /// Allocations that failed.
    pub fn failures(&self) -> u32 {
        // Relaxed: a statistic.
        self.failures.load(Relaxed)
    }

    /// Calls that asked.
    pub fn calls(&self) -> u32 {
        // Relaxed: a statistic.
        self.calls.load(Relaxed)
    }

    /// Whether this allocation fails.
    pub fn should_fail(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        // Relaxed, here and below: counters without other data.
        let call = self.calls.fetch_add(1, Relaxed).wrapping_add(1);
        let fails = call == self.nth.load(Relaxed) || self.fails_by_chance(call);
        if fails {
            self.failures.fetch_add(1, Relaxed);
        }
        fails
    }

    fn fails_by_chance(&self, call: u32) -> bool {
        // Relaxed, all: as in `should_fail`.
        let probability = self.probability.load(Relaxed);
        if probability == 0 || !call.is_multiple_of(self.interval.load(Relaxed).max(1)) {
            return false;
        }
        // Relaxed: as above.
        let step = self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        let dice = (step ^ step >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        if ((dice >> 32) * 100) >> 32 >= u64::from(probability) {
            return false;
        }
        let left = |times: u32| match times {
            0 => None,
            u32::MAX => Some(u32::MAX),
            n => Some(n - 1),
        };
        // Relaxed, both: as in `should_fail`.
        self.times.fetch_update(Relaxed, Relaxed, left).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(fail: FailSlab, calls: usize) -> std::vec::Vec<usize> {
        let state = FailState::new();
        state.set(fail);
        (1..=calls).filter(|_| state.should_fail()).collect()
    }

    #[test]
    fn each_limit_holds() {
        assert!(failures(FailSlab::OFF, 100).is_empty());
        let all = FailSlab {
            probability: 100,
            ..FailSlab::OFF
        };
        assert_eq!(failures(all, 9).len(), 9);
        assert_eq!(failures(FailSlab { interval: 3, ..all }, 9), [3, 6, 9]);
        assert_eq!(failures(FailSlab { times: 2, ..all }, 9), [1, 2]);
        assert_eq!(
            failures(
                FailSlab {
                    nth: 5,
                    ..FailSlab::OFF
                },
                9
            ),
            [5]
        );
        let some = FailSlab {
            probability: 20,
            ..FailSlab::OFF
        };
        let n = failures(some, 10_000).len();
        assert!((1_700..2_300).contains(&n), "{n}");
        assert_eq!(failures(some, 100), failures(some, 100));
        assert_ne!(
            failures(some, 100),
            failures(FailSlab { seed: 7, ..some }, 100)
        );
    }
}
