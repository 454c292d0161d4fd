//! Runs freed in a context that may not wait.
//!
//! They form a lock-free stack, linked by page number through their first pages' descriptors. The
//! next thread that holds the page lock frees them. The whole stack is taken at once, so there is
//! no ABA problem.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::memory::PageIndex;
use crate::memory::block::NO_BLOCK;
use crate::memory::zone::{Lists, Zone};
use crate::platform::Platform;

impl<P: Platform> Zone<P> {
    /// Frees a run without waiting: pushes it for the next thread that holds the page lock. The
    /// caller owns the first page's descriptor.
    pub fn push_pending(&self, page: PageIndex, count: usize) {
        let slab = self.arena.slab(page);
        slab.set_pages(count as u16);
        // Relaxed: confirmed by the compare-and-swap.
        let mut head = self.pending.load(Relaxed);
        loop {
            slab.set_next(head);
            // Release: the thread that takes the stack sees the link.
            match self
                .pending
                .compare_exchange_weak(head, page.0, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Frees the runs of the stack; under the page lock.
    pub(super) fn drain_pending(&self, lists: &mut Lists, platform: &P) {
        // Relaxed: a peek; a run pushed now waits for the next holder.
        if self.pending.load(Relaxed) == NO_BLOCK {
            return;
        }
        let now = platform.now_ms();
        // Acquire: pairs with the push. All at once, so there is no ABA problem.
        let mut page = self.pending.swap(NO_BLOCK, Acquire);
        while page != NO_BLOCK {
            let slab = self.arena.slab(PageIndex(page));
            let (next, count) = (slab.next(), usize::from(slab.pages()));
            self.give(lists, PageIndex(page), count, now);
            page = next;
        }
    }
}
