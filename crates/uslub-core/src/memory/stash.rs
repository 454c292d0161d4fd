//! Runs that come back where nothing may be waited for: the next thread that holds the page lock
//! takes them.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::memory::PageIndex;
use crate::memory::block::NO_BLOCK;
use crate::memory::zone::{Lists, Zone};
use crate::platform::Platform;

impl<P: Platform> Zone<P> {
    /// Takes a run back without waiting: the next one who holds the page lock does it. The first
    /// page's descriptor is the caller's.
    pub fn stash(&self, page: PageIndex, count: usize) {
        let slab = self.arena.slab(page);
        slab.set_pages(count as u16);
        // Relaxed: confirmed by the exchange.
        let mut head = self.strays.load(Relaxed);
        loop {
            slab.set_next(head);
            // Release: whoever takes it sees the link.
            match self
                .strays
                .compare_exchange_weak(head, page.0, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes back what was set aside.
    pub(super) fn absorb(&self, lists: &mut Lists, platform: &P) {
        // Relaxed: a glance.
        if self.strays.load(Relaxed) == NO_BLOCK {
            return;
        }
        let now = platform.now_ms();
        // Acquire: the links. All at once, so nothing can come back meanwhile.
        let mut page = self.strays.swap(NO_BLOCK, Acquire);
        while page != NO_BLOCK {
            let slab = self.arena.slab(PageIndex(page));
            let (next, count) = (slab.next(), usize::from(slab.pages()));
            self.give(lists, PageIndex(page), count, now);
            page = next;
        }
    }
}
