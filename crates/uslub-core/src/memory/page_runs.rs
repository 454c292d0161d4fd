//! Page runs: a batch of runs to free together.
//!
//! Slabs that become empty one after the other are often neighbours. Neighbouring pages of one
//! block become one run here. The zone frees all runs of a batch under one hold of the page lock. A
//! batch lives on its caller's stack. Callers: `slab::fresh`, and the zone.

use crate::memory::PageIndex;
use crate::memory::block::BLOCK_PAGES;
use crate::policy::PAGE_RUNS_MAX;

/// A batch of runs; each run lies in one block.
#[derive(Debug, Default)]
pub struct Runs {
    /// First page of each run.
    firsts: [u32; PAGE_RUNS_MAX],
    /// Pages of each run.
    counts: [u16; PAGE_RUNS_MAX],
    len: usize,
}

impl Runs {
    /// Empties the batch.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Whether the batch has no room for another run.
    pub fn is_full(&self) -> bool {
        self.len == PAGE_RUNS_MAX
    }

    /// Whether the batch has no run.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `count` pages from `page`, all of one block. They extend the last run if they are its
    /// neighbours, and become a new run otherwise.
    ///
    /// # Panics
    ///
    /// If the batch [is full](Self::is_full).
    pub fn add(&mut self, page: PageIndex, count: usize) {
        let (first, count) = (page.0, count as u32);
        if let Some(at) = self.len.checked_sub(1) {
            let (last, pages) = (self.firsts[at], u32::from(self.counts[at]));
            if last / BLOCK_PAGES as u32 == first / BLOCK_PAGES as u32
                && (last + pages == first || first + count == last)
            {
                self.firsts[at] = last.min(first);
                self.counts[at] = (pages + count) as u16;
                return;
            }
        }
        self.firsts[self.len] = first;
        self.counts[self.len] = count as u16;
        self.len += 1;
    }

    /// Pages of all runs.
    pub fn pages(&self) -> usize {
        self.counts[..self.len]
            .iter()
            .copied()
            .map(usize::from)
            .sum()
    }

    /// The first pages of runs of `pages` pages. Each run of the batch is a multiple of such a run.
    pub fn split(&self, pages: usize) -> impl Iterator<Item = PageIndex> {
        let firsts = move |(page, count): (PageIndex, usize)| {
            let offsets = (0..count).step_by(pages);
            offsets.map(move |at| PageIndex(page.0 + at as u32))
        };
        self.iter().flat_map(firsts)
    }

    /// The runs: first page and number of pages.
    pub fn iter(&self) -> impl Iterator<Item = (PageIndex, usize)> {
        let runs = self.firsts[..self.len].iter().zip(&self.counts);
        runs.map(|(&first, &count)| (PageIndex(first), usize::from(count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn of(parts: &[(u32, usize)]) -> Vec<(u32, usize)> {
        let mut runs = Runs::default();
        for &(page, count) in parts {
            runs.add(PageIndex(page), count);
        }
        runs.iter().map(|(page, count)| (page.0, count)).collect()
    }

    #[test]
    fn neighbours_become_one_run() {
        assert_eq!(of(&[(8, 2), (10, 2), (6, 2)]), [(6, 6)]);
        assert_eq!(of(&[(8, 2), (12, 2), (10, 2)]), [(8, 2), (10, 4)]);
    }

    #[test]
    fn no_run_crosses_the_bounds_of_a_block() {
        assert_eq!(of(&[(508, 4), (512, 4)]), [(508, 4), (512, 4)]);
        assert_eq!(of(&[(512, 4), (508, 4)]), [(512, 4), (508, 4)]);
    }
}
