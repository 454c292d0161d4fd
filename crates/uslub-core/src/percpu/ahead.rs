//! Regions mapped ahead, for CPUs that have none yet.
//!
//! A call that may not ask the system must still get its CPU's region, or the CPU would work
//! without sheaves until another kind of call runs there. So the first call that may map memory
//! maps regions for all CPUs at once. A mapped region costs address space only; the CPU that takes
//! it touches its pages.
//!
//! | the process | regions mapped at a time |
//! |---|---|
//! | without a limit of its memory | one for each CPU without a region, at most [`REGIONS_AHEAD`] |
//! | under a limit, or refused | one |
//!
//! Where none is left, the call marks the base's `awaited`, and the next slow path that may map
//! memory maps more. Caller: [`Table`](crate::percpu::Table), under the drain lock.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::region::Region;
use crate::platform::{Backing, Platform};
use crate::policy::REGIONS_AHEAD;
use crate::sync::atomic::{AtomicPtr, AtomicUsize};

/// Bytes of a mapping from which on it may get huge pages. A region uses few of its pages.
const HUGE_BYTES: usize = 2 << 20;

/// Mapped regions, one behind the other, that no CPU has.
pub(super) struct Ahead {
    next: AtomicPtr<u8>,
    left: AtomicUsize,
    /// Bytes from one region to the next.
    stride: AtomicUsize,
}

impl Ahead {
    /// No region.
    pub(super) const fn new() -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            left: AtomicUsize::new(0),
            stride: AtomicUsize::new(0),
        }
    }

    /// Regions left.
    pub(super) fn left(&self) -> usize {
        // Relaxed: a statistic for those without the lock.
        self.left.load(Relaxed)
    }

    /// Maps up to `wanted` regions, at least one, unless one is left.
    pub(super) fn fill<P: Platform>(&self, platform: &P, wanted: usize) {
        if self.left() > 0 {
            return;
        }
        let stride = platform.whole_pages(size_of::<Region>());
        let most = if platform.is_limited() { 1 } else { wanted };
        let mut n = most.clamp(1, REGIONS_AHEAD);
        let mut memory = platform.map(n * stride);
        if memory.is_none() && n > 1 {
            n = 1;
            memory = platform.map(stride);
        }
        let Some(memory) = memory else {
            return;
        };
        if n * stride >= HUGE_BYTES {
            // SAFETY: just mapped. A refusal costs memory only.
            unsafe { platform.set_backing(memory, n * stride, Backing::BasePages) };
        }
        // Relaxed, all three: changed only under the caller's lock.
        self.stride.store(stride, Relaxed);
        self.next.store(memory.as_ptr(), Relaxed);
        self.left.store(n, Relaxed);
    }

    /// Unmaps the regions that are left; returns whether there were any.
    pub(super) fn give_back<P: Platform>(&self, platform: &P) -> bool {
        // Relaxed, all: changed only under the caller's lock.
        let left = self.left.swap(0, Relaxed);
        let bytes = left * self.stride.load(Relaxed);
        let start = NonNull::new(self.next.load(Relaxed)).filter(|_| left > 0);
        if let Some(start) = start {
            // SAFETY: the end of our mapping, which no CPU has.
            unsafe { platform.unmap(start, bytes) };
        }
        start.is_some()
    }

    /// A zeroed region, the caller's for ever.
    pub(super) fn take(&self) -> Option<NonNull<Region>> {
        let left = self.left();
        if left == 0 {
            return None;
        }
        // Relaxed, here and below: changed only under the caller's lock.
        let region = self.next.load(Relaxed);
        self.left.store(left - 1, Relaxed);
        let next = region.wrapping_add(self.stride.load(Relaxed));
        self.next.store(next, Relaxed);
        NonNull::new(region.cast())
    }
}
