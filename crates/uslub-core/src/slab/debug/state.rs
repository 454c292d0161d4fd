//! What all debugged caches share: the options, the count of errors, the depot of stacks.
//!
//! The options are written once, before the allocator is ready. The other parts may change at any
//! time.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32};

use crate::debug::fail::FailState;
use crate::debug::options::SlabDebug;
use crate::slab::debug::depot::Depot;
use crate::slab::debug::guard::Guard;

/// Rounds that a report waits for another thread's report.
const REPORT_ROUNDS: u32 = 1 << 16;

/// State of debugging.
pub struct DebugState {
    options: UnsafeCell<SlabDebug<'static>>,
    /// When allocations fail on purpose.
    pub fail: FailState,
    /// Reports and repairs so far, as the kernel's self-tests count.
    errors: AtomicU32,
    reporting: AtomicBool,
    pub(crate) depot: Depot,
    /// Guarded objects.
    pub guard: Guard,
}

// SAFETY: the options are written before any other thread uses the allocator.
unsafe impl Sync for DebugState {}

impl DebugState {
    /// Nothing is debugged.
    pub(crate) const fn new() -> Self {
        Self {
            options: UnsafeCell::new(SlabDebug::NONE),
            fail: FailState::new(),
            errors: AtomicU32::new(0),
            reporting: AtomicBool::new(false),
            depot: Depot::new(),
            guard: Guard::new(),
        }
    }

    /// Sets the options.
    ///
    /// # Safety
    ///
    /// Before any other thread uses the allocator.
    pub unsafe fn set_options(&self, options: SlabDebug<'static>) {
        // SAFETY: by the caller's promise.
        unsafe { *self.options.get() = options };
    }

    /// The options.
    pub fn options(&self) -> SlabDebug<'static> {
        // SAFETY: written before any other thread uses the allocator.
        unsafe { *self.options.get() }
    }

    /// Reports and repairs so far.
    pub fn errors(&self) -> u32 {
        // Relaxed: a statistic.
        self.errors.load(Relaxed)
    }

    /// Counts a report of no cache's slab; returns how many there were.
    pub(crate) fn count_error(&self) -> u32 {
        // Relaxed: a statistic.
        self.errors.fetch_add(1, Relaxed)
    }

    /// Runs `work`, which writes a report, while no other thread writes one. A thread that waits
    /// very long goes on: the other may have ended in the middle.
    pub(crate) fn while_reporting(&self, work: impl FnOnce()) {
        let mut rounds = 0;
        // Acquire: see `Release` below; the order of lines depends on it.
        while self.reporting.swap(true, Acquire) && rounds < REPORT_ROUNDS {
            rounds += 1;
            core::hint::spin_loop();
        }
        work();
        // Release: the next report begins after this one.
        self.reporting.store(false, Release);
    }
}
