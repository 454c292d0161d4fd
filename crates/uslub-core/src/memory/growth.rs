//! Growth: adds a block to the zone, under the growth lock.
//!
//! 1. If another thread has added a block since the caller looked, the caller tries again.
//! 2. An absent block comes back; otherwise the arena grows. Its pages may become huge pages.
//! 3. Under the page lock, the block's pages become free.
//!
//! Callers: `request`, `several`, and the set-up.

use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::memory::arena::{BLOCK_BYTES, PageIndex};
use crate::memory::block::{BLOCK_PAGES, Block, NO_BLOCK};
use crate::memory::want::Touched;
use crate::memory::zone::Zone;
use crate::platform::{Backing, Platform};

impl<P: Platform> Zone<P> {
    /// Requests huge pages for all memory beyond the first `mb` MiB; none if `mb` is 0. Call before
    /// there are blocks.
    pub fn set_thp_from(&self, mb: u32) {
        let blocks = ((mb as usize) << 20).div_ceil(BLOCK_BYTES) as u32;
        // Relaxed: a thread that has the allocator sees the value.
        (self.thp_from).store(if mb == 0 { NO_BLOCK } else { blocks }, Relaxed);
    }

    /// Adds the first block; returns false if the system refuses.
    pub fn begin(&self, platform: &P) -> bool {
        self.grow_on(platform, 0, 0, Touched::All, Gfp::KERNEL)
    }

    /// Adds a block of node `nid`, unless another thread has added one since the caller read
    /// `growths`. Returns false if the system refuses or the caller may not wait.
    #[inline(never)]
    pub(super) fn grow_on(
        &self,
        platform: &P,
        growths: u32,
        nid: usize,
        touched: Touched,
        gfp: Gfp,
    ) -> bool {
        // Held until the pages are in the lists, so that waiting threads do not add blocks too.
        let Some(_growing) = self.growth.lock_if(gfp.may_map()) else {
            return false;
        };
        let Some(now) = self.lists.lock_if(gfp.may_spin()).map(|l| l.growths) else {
            return false;
        };
        now != growths || gfp.may_map() && self.add_pages(platform, nid, touched)
    }

    /// As [`grow_on`](Self::grow_on), under the growth lock.
    fn add_pages(&self, platform: &P, nid: usize, touched: Touched) -> bool {
        let Some(added) = self.add_block(platform) else {
            return false;
        };
        let (number, huge) = (added.0, self.back_block(platform, added, nid, touched));
        let mut lists = self.lists.lock();
        // SAFETY: we hold the page lock; the block is new.
        let block = unsafe { self.arena.block(number) };
        *block = Block::new(nid as u8);
        block.huge = huge;
        block.add(0, BLOCK_PAGES);
        self.rebin(number);
        lists.growths = lists.growths.wrapping_add(1);
        true
    }

    /// Brings an absent block back, or grows the arena by a block; returns the block's number and
    /// whether it was absent.
    #[inline(never)]
    fn add_block(&self, platform: &P) -> Option<(u32, bool)> {
        match self.bring_back(platform) {
            Some(number) => Some((number, true)),
            None => self.arena.grow(platform).map(|number| (number, false)),
        }
    }

    /// Binds a new block to node `nid` and backs it; returns whether it is backed by a huge page.
    #[inline(never)]
    fn back_block(
        &self,
        platform: &P,
        (number, is_back): (u32, bool),
        nid: usize,
        touched: Touched,
    ) -> bool {
        let start = self.arena.address(PageIndex(number * BLOCK_PAGES as u32));
        if platform.nr_nodes() > 1 {
            // SAFETY: just committed.
            unsafe { platform.bind(start, BLOCK_BYTES, nid) };
        }
        // Relaxed: set before there are blocks.
        if is_back || number < self.thp_from.load(Relaxed) {
            return false;
        }
        if touched == Touched::Little {
            // SAFETY: just committed.
            unsafe { platform.set_backing(start, BLOCK_BYTES, Backing::Sparse) };
            return false;
        }
        let ahead = self.arena.reserved_behind(number);
        // SAFETY: just added; the last block in use.
        unsafe { platform.set_backing(start, BLOCK_BYTES, Backing::HugePages { ahead }) }
    }
}
