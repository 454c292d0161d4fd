//! Runs longer than a block.
//!
//! Such a run starts at a block. It takes whole free blocks; the rest of the last block stays free
//! for shorter runs. These runs serve huge objects when many mappings exist: a mapping for each
//! object would use up the mappings that the system allows a process. Callers: `large` only.

use crate::gfp::Gfp;
use crate::memory::PageIndex;
use crate::memory::block::{BINS, BLOCK_PAGES};
use crate::memory::want::Touched;
use crate::memory::zone::{Lists, Run, Zone};
use crate::platform::{FaultSite, Platform};
use crate::policy::SEVERAL_BLOCKS_TRIES;

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
    /// Hands out `count` pages, more than one block has, of any memory node.
    pub fn alloc_several(&self, platform: &P, nid: usize, count: usize, gfp: Gfp) -> Option<Run> {
        debug_assert!(count > BLOCK_PAGES);
        if platform.should_fail(FaultSite::Pages) {
            return None;
        }
        let nr_blocks = count.div_ceil(BLOCK_PAGES);
        // The loop bound counts absent blocks: they come back before the range grows.
        for _ in 0..nr_blocks + self.nr_absent() + SEVERAL_BLOCKS_TRIES {
            let growths = {
                let mut lists = self.lists.lock_if(gfp.may_spin())?;
                self.drain_pending(&mut lists, platform);
                if let Some(number) = self.find_blocks(nr_blocks) {
                    let page = PageIndex(number * BLOCK_PAGES as u32);
                    let run = self.claim_parts(&mut lists, page, count);
                    let resident = lists.nr_used + lists.nr_dirty;
                    drop(lists);
                    self.evict_at_peak(platform, resident, count);
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

    /// The lowest `nr_blocks` neighbouring free blocks: the number of the first. The caller holds
    /// the page lock.
    fn find_blocks(&self, nr_blocks: usize) -> Option<u32> {
        let mut found = 0;
        let groups = (self.arena.limit() / BLOCK_PAGES).div_ceil(64) as u32;
        for group in 0..groups {
            // SAFETY: the caller holds the page lock.
            let bits = unsafe { self.arena.group(group).bins[BINS - 1] };
            if bits == 0 {
                found = 0;
                continue;
            }
            for bit in 0..64 {
                found = if bits >> bit & 1 == 1 { found + 1 } else { 0 };
                if found == nr_blocks {
                    return Some((group * 64 + bit + 1) - nr_blocks as u32);
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
