//! Demand for large runs: how many idle pages stay because they were asked for again.
//!
//! An eviction takes memory from idle pages. If a large run soon needs pages without memory, the
//! eviction was wrong: as many idle pages as it could have used may stay from now on, the *budget*.
//! Pages that nobody used for `decay_ms` lower it.
//!
//! | event | evicted | budget |
//! |---|---|---|
//! | idle pages are evicted | + pages | |
//! | a run gets pages without memory | − as many, at most | + as many, at most |
//! | `DEMAND_MS` without an eviction | 0 | |
//! | pages decay unused | | − pages |
//!
//! The budget is at most what is in use. Pages within it are no surplus. At a peak they are purged
//! lazily, up to half of what is in use: the system may take them if it needs memory, but the
//! program's memory grows by them.
//!
//! Small objects have no part in this: they share pages, and would keep more than they use.
//! Callers: `zone` and `decay`; hints only, without a lock.

use core::sync::atomic::Ordering::Relaxed;

use crate::policy::DEMAND_MS;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::time::age;

/// Demand for large runs.
pub(super) struct Demand {
    /// Pages evicted lately.
    evicted: AtomicUsize,
    /// Time of the last eviction in milliseconds.
    since: AtomicU64,
    /// Idle pages that may stay.
    budget: AtomicUsize,
}

impl Demand {
    /// None so far.
    pub(super) const fn new() -> Self {
        Self {
            evicted: AtomicUsize::new(0),
            since: AtomicU64::new(0),
            budget: AtomicUsize::new(0),
        }
    }

    /// Idle pages that may stay for `decay_ms`.
    pub(super) fn budget(&self) -> usize {
        // Relaxed: a hint.
        self.budget.load(Relaxed)
    }

    /// Records an eviction of idle pages at the time `now` in milliseconds.
    pub(super) fn on_eviction(&self, pages: usize, now: u64) {
        // Relaxed: hints.
        self.since.store(now, Relaxed);
        self.evicted.fetch_add(pages, Relaxed);
    }

    /// Forgets evictions that are too long ago at the time `now` in milliseconds.
    pub(super) fn expire(&self, now: u64) {
        // Relaxed: hints.
        if self.evicted.load(Relaxed) > 0 && age(now, self.since.load(Relaxed)) >= DEMAND_MS {
            self.evicted.store(0, Relaxed);
        }
    }

    /// Records that a large run got `pages` pages without memory, when `used` pages were in use.
    pub(super) fn on_miss(&self, pages: usize, used: usize) {
        // Relaxed, here and below: hints; at worst a page stays or goes too early.
        let evicted = self.evicted.load(Relaxed);
        let wrong = pages.min(evicted);
        if wrong > 0 {
            // Relaxed: hints.
            self.evicted.store(evicted - wrong, Relaxed);
            let budget = self.budget();
            self.budget
                .store((budget + wrong).min(used.max(budget)), Relaxed);
        }
    }

    /// Records that pages decayed unused.
    pub(super) fn on_decay(&self, pages: usize) {
        // Relaxed: a hint.
        self.budget
            .store(self.budget().saturating_sub(pages), Relaxed);
    }
}
