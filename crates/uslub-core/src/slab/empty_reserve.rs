//! The reserve: how many empty slabs a node keeps.
//!
//! The kernel compares the number of partial slabs with a constant. So a cache with many partial
//! slabs frees every slab the moment it becomes empty, and allocates another a moment later. Here
//! empty slabs have a list of their own. A *regret* is a request to the page layer soon after a
//! discard; it makes the node keep its empty slabs for longer.
//!
//! Time is cut into windows of `period` milliseconds. The least number of empty slabs in a window
//! was not needed during the window. At the window's end half of this number goes.
//!
//! | event | change |
//! |---|---|
//! | a slab becomes empty | slabs above the limit go; at a window's end, half of the idle ones |
//! | an empty slab is taken | the window's least number falls |
//! | a page request within two periods of a discard | regret: the period doubles, up to 80 ms |
//! | a window ends without regret | the period shrinks by a sixth, down to 10 ms |
//!
//! [Limit](EmptyReserve::limit): half of the slabs in use at the peak of this window and the last,
//! at most [`RESERVE_BYTES`], but at least 5 slabs.
//!
//! All methods run under the list lock. Callers: `partial`, `refill` and `fresh`.

use crate::policy::{
    RESERVE_BYTES, RESERVE_FLOOR_SLABS, RESERVE_WINDOW_MAX_MS, RESERVE_WINDOW_MIN_MS,
};
use crate::sync::time::age;

/// The reserve's state.
#[derive(Debug)]
pub struct EmptyReserve {
    /// Least number of empty slabs in this window.
    low: usize,
    window_start: u64,
    period: u32,
    regret: bool,
    /// Most slabs in use, in this window and in the last one.
    peaks: [usize; 2],
    last_discard: Option<u64>,
}

impl EmptyReserve {
    /// A reserve without history.
    pub(crate) const fn new() -> Self {
        Self {
            low: 0,
            window_start: 0,
            period: RESERVE_WINDOW_MIN_MS,
            regret: false,
            peaks: [0; 2],
            last_discard: None,
        }
    }

    /// Largest number of empty slabs of `slab_bytes` bytes to keep.
    pub fn limit(&self, slab_bytes: usize) -> usize {
        let peak = self.peaks[0].max(self.peaks[1]);
        (peak / 2)
            .min(RESERVE_BYTES / slab_bytes)
            .max(RESERVE_FLOOR_SLABS)
    }

    /// Number of the `empty` slabs to free now, with `in_use` other slabs in use; `now` is the time
    /// in milliseconds.
    pub fn surplus(&mut self, empty: usize, in_use: usize, slab_bytes: usize, now: u64) -> usize {
        self.peaks[0] = self.peaks[0].max(in_use);
        let mut surplus = empty.saturating_sub(self.limit(slab_bytes));
        if age(now, self.window_start) >= u64::from(self.period) {
            let idle = self.low.min(empty).div_ceil(2);
            surplus = surplus.max(idle.min(empty.saturating_sub(RESERVE_FLOOR_SLABS)));
            if !self.regret {
                self.period = (self.period - self.period / 6).max(RESERVE_WINDOW_MIN_MS);
            }
            self.regret = false;
            self.low = empty - surplus;
            self.window_start = now;
            self.peaks = [in_use, self.peaks[0]];
        }
        if surplus > 0 {
            self.last_discard = Some(now);
        }
        surplus
    }

    /// An empty slab was taken; `left` empty slabs remain, `in_use` slabs are in use.
    pub fn took(&mut self, left: usize, in_use: usize) {
        self.low = self.low.min(left);
        self.peaks[0] = self.peaks[0].max(in_use);
    }

    /// A slab is requested from the page layer at the time `now` (milliseconds).
    pub fn asked(&mut self, now: u64) {
        self.low = 0;
        let soon = 2 * u64::from(self.period);
        if !self.regret && self.last_discard.is_some_and(|then| age(now, then) < soon) {
            self.regret = true;
            self.period = (2 * self.period).min(RESERVE_WINDOW_MAX_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 8192;

    #[test]
    fn what_lies_idle_is_halved_each_window_down_to_a_few() {
        let mut r = EmptyReserve::new();
        assert_eq!(r.surplus(0, 1000, BYTES, 1), 0);
        let (mut empty, mut now) = (500, 11);
        let mut windows = 0;
        r.low = empty;
        while empty > RESERVE_FLOOR_SLABS {
            let gone = r.surplus(empty, 500, BYTES, now);
            assert!(
                gone > 0 && gone <= empty.div_ceil(2).max(empty.saturating_sub(r.limit(BYTES)))
            );
            empty -= gone;
            now += 10;
            windows += 1;
        }
        assert!(windows <= 8, "{windows}");
    }

    #[test]
    fn more_than_half_of_the_peak_is_never_kept() {
        for peak in [0, 5, 100, 100_000] {
            for slab_bytes in [4096, 32768] {
                let mut r = EmptyReserve::new();
                r.surplus(0, peak, slab_bytes, 0);
                let empty = 2 * peak + 20;
                let kept = empty - r.surplus(empty, 0, slab_bytes, 0);
                assert!(kept <= (peak / 2).max(RESERVE_FLOOR_SLABS));
                assert!(kept * slab_bytes <= RESERVE_BYTES.max(RESERVE_FLOOR_SLABS * slab_bytes));
            }
        }
    }

    #[test]
    fn regret_makes_windows_longer_and_quiet_shorter() {
        let mut r = EmptyReserve::new();
        for window in [20, 40, 80, 80] {
            r.last_discard = Some(1000);
            r.regret = false;
            r.asked(1005);
            assert!(r.regret);
            assert_eq!(r.period, window);
        }
        let mut now = 2000;
        while r.period > RESERVE_WINDOW_MIN_MS {
            let before = r.period;
            r.surplus(0, 0, BYTES, now);
            now += 100;
            r.regret = false;
            assert!(r.period <= before);
        }
        r.asked(now + 1000);
        assert!(!r.regret, "a discard long ago is not regretted");
    }

    #[test]
    fn slabs_that_are_needed_in_each_window_stay() {
        let mut r = EmptyReserve::new();
        let mut now = 0;
        r.surplus(0, 200, BYTES, now);
        for _ in 0..100 {
            // Forty empty slabs are used and come back, again and again.
            now += 4;
            (0..40).rev().for_each(|left| r.took(left, 200 - left));
            for empty in 1..=40 {
                assert_eq!(r.surplus(empty, 200 - empty, BYTES, now), 0);
            }
        }
    }
}
