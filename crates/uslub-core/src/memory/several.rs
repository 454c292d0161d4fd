//! Runs longer than a block.
//!
//! Such a run lies in neighbouring blocks: it may begin in the free end of one and end in the free
//! beginning of another, so that runs of all lengths fit together. Callers: `large` only.

use crate::gfp::Gfp;
use crate::memory::PageIndex;
use crate::memory::block::{self, BLOCK_PAGES};
use crate::memory::want::Touched;
use crate::memory::zone::{Lists, Run, Zone};
use crate::platform::{FaultSite, Platform};
use crate::policy::{DECAY_GROWN_PAGES, SEVERAL_BLOCKS_TRIES};

/// The parts of a run, each in one block: first page and number of pages.
pub fn parts(page: PageIndex, count: usize) -> impl Iterator<Item = (PageIndex, usize)> {
    let (mut at, end) = (page.0 as usize, page.0 as usize + count);
    core::iter::from_fn(move || {
        let first = at;
        at = end.min((first / BLOCK_PAGES + 1) * BLOCK_PAGES);
        (first < end).then(|| (PageIndex(first as u32), at - first))
    })
}

impl<P: Platform> Zone<P> {
    /// Hands out `count` pages, more than one block has, aligned to `align` pages, of any memory
    /// node.
    pub fn alloc_several(
        &self,
        platform: &P,
        nid: usize,
        count: usize,
        align: usize,
        gfp: Gfp,
    ) -> Option<Run> {
        debug_assert!(count > BLOCK_PAGES);
        if platform.should_fail(FaultSite::Pages) {
            return None;
        }
        let nr_blocks = count.div_ceil(BLOCK_PAGES);
        // The loop bound counts absent blocks: they come back before the range grows.
        for _ in 0..nr_blocks + 1 + self.nr_absent() + SEVERAL_BLOCKS_TRIES {
            let growths = {
                let mut lists = self.lists.lock_if(gfp.may_spin())?;
                self.drain_pending(&mut lists, platform);
                if let Some(page) = self.find_across(count, align) {
                    let run = self.claim_parts(&mut lists, page, count);
                    let firm = lists.nr_firm();
                    drop(lists);
                    self.evict_at_peak(platform, firm, count);
                    return Some(run);
                }
                lists.growths
            };
            if !self.grow_on(platform, growths, nid, Touched::Little, gfp) {
                break;
            }
        }
        self.retire_surplus(platform);
        None
    }

    /// Takes `more` pages behind a run of `count` pages of node `nid`, so that the run grows in
    /// place; returns whether all of them are zero. `None` if one of them is in use or the system
    /// gives none.
    pub fn extend(
        &self,
        platform: &P,
        nid: usize,
        (page, count): (PageIndex, usize),
        more: usize,
        gfp: Gfp,
    ) -> Option<bool> {
        let behind = PageIndex(page.0 + count as u32);
        for _ in 0..=more / BLOCK_PAGES + 1 {
            let mut lists = self.lists.lock_if(gfp.may_spin())?;
            let free = self.free_from(behind, more);
            if free == more {
                let zero = self.claim_parts(&mut lists, behind, more).zero;
                let firm = lists.nr_firm();
                drop(lists);
                if gfp.may_map() && more > DECAY_GROWN_PAGES {
                    self.evict_at_peak(platform, firm, more);
                }
                return Some(zero);
            }
            let growths = lists.growths;
            drop(lists);
            // Pages can come only behind the last block, if no lower block is absent.
            let is_end = behind.0 as usize + free == self.arena.limit();
            if !is_end
                || self.nr_absent() > 0
                || !self.grow_on(platform, growths, nid, Touched::Little, gfp)
            {
                return None;
            }
        }
        None
    }

    /// Free pages from `page` on without a gap, up to `most`. The caller holds the page lock.
    fn free_from(&self, page: PageIndex, most: usize) -> usize {
        let here = most.min(self.arena.limit() - page.0 as usize);
        let mut free = 0;
        for (page, count) in parts(page, here) {
            let (number, first) = (page.0 / BLOCK_PAGES as u32, page.0 as usize % BLOCK_PAGES);
            // SAFETY: the caller holds the page lock; the reference ends with the iteration.
            let block = unsafe { self.arena.block(number) };
            let run = (block::next(&block.free, first, false) - first).min(count);
            free += run;
            if run < count {
                break;
            }
        }
        free
    }

    fn claim_parts(&self, lists: &mut Lists, page: PageIndex, count: usize) -> Run {
        let mut run = Run {
            page,
            zero: true,
            node: 0,
            runs: 1,
        };
        for (page, count) in parts(page, count) {
            let (number, first) = (page.0 / BLOCK_PAGES as u32, page.0 as usize % BLOCK_PAGES);
            let part = self.claim(lists, number, first, count);
            run.zero &= part.zero;
            run.node = part.node;
        }
        run
    }

    /// The lowest `count` free pages in a row that begin at a multiple of `align`, in the free end
    /// of a block. The caller holds the page lock.
    fn find_across(&self, count: usize, align: usize) -> Option<PageIndex> {
        // The free pages before the block: the first, and the end.
        let (mut start, mut end) = (0, 0);
        for group in 0..(self.arena.limit() / BLOCK_PAGES).div_ceil(64) as u32 {
            let mut blocks = self.candidates(group, 1);
            while blocks != 0 {
                let number = (group * 64 + blocks.trailing_zeros()) as usize;
                blocks &= blocks - 1;
                // SAFETY: the caller holds the page lock; the reference ends with the iteration.
                let free = &unsafe { self.arena.block(number as u32) }.free;
                let first = number * BLOCK_PAGES;
                if first != end {
                    (start, end) = (first, first);
                }
                end += block::next(free, 0, false);
                if end >= start + count {
                    return Some(PageIndex(start as u32));
                }
                if end < first + BLOCK_PAGES {
                    end = first + BLOCK_PAGES;
                    start = first + block::run_before(free, BLOCK_PAGES);
                    start = start.next_multiple_of(align);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn parts_end_with_their_blocks() {
        let of = |page, count| -> Vec<(u32, usize)> {
            let all = parts(PageIndex(page), count);
            all.map(|(page, count)| (page.0, count)).collect()
        };
        assert_eq!(of(512, 1300), [(512, 512), (1024, 512), (1536, 276)]);
        assert_eq!(of(512, 512), [(512, 512)]);
        assert_eq!(of(500, 20), [(500, 12), (512, 8)]);
        assert_eq!(of(7, 0), []);
    }
}
