//! A request for pages, and the search for them in a block. Callers: `request` and `zone`.

use crate::memory::MAX_NODES;
use crate::memory::block::{self, BLOCK_PAGES, Block, PageSet};

/// A request; 8 bytes, so that it is passed in a register.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    /// Memory node, or [`ANY_NODE`].
    pub(super) nid: u8,
    /// Pages of a run, and their alignment in pages.
    count: u16,
    align: u16,
    /// Runs to take together, at most.
    most: u16,
    pub(super) touched: Touched,
}

/// No node has this number.
const ANY_NODE: u8 = u8::MAX;
const _: () = assert!(MAX_NODES <= ANY_NODE as usize && size_of::<Want>() == 8);

/// How much of its pages the caller will touch. With `Little`, huge pages would waste memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touched {
    All,
    Little,
}

/// Pages of a block for a request: the first page, and the number of runs.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) first: u16,
    pub(super) runs: u16,
}

impl Want {
    pub(crate) fn new(
        nid: usize,
        count: usize,
        align: usize,
        most: usize,
        touched: Touched,
    ) -> Self {
        debug_assert!((1..=BLOCK_PAGES).contains(&count) && align.is_power_of_two());
        Self {
            nid: nid as u8,
            count: count as u16,
            // Blocks are aligned to their own size: more is not possible.
            align: align.min(BLOCK_PAGES) as u16,
            most: most.min(BLOCK_PAGES) as u16,
            touched,
        }
    }

    /// The same of any node.
    pub(super) fn on_any_node(self) -> Self {
        Self {
            nid: ANY_NODE,
            ..self
        }
    }

    /// The same, but at most so many runs.
    pub(super) fn at_most(self, runs: usize) -> Self {
        Self {
            most: runs as u16,
            ..self
        }
    }

    /// Runs to take together, at most.
    pub(super) fn most(self) -> usize {
        self.most.into()
    }

    pub(super) fn count(self) -> usize {
        self.count.into()
    }

    pub(super) fn align(self) -> usize {
        self.align.into()
    }

    /// The lowest place in a set of a block's free pages, if there is one.
    #[inline(never)]
    pub(super) fn find(self, set: &PageSet) -> Option<Found> {
        let first = block::find(set, self.count(), self.align())?;
        let runs = block::runs_from(set, first, self.count(), self.most.into());
        let (first, runs) = (first as u16, runs as u16);
        Some(Found { first, runs })
    }

    /// As `find`, among the block's free dirty pages.
    #[inline(never)]
    pub(super) fn find_dirty(self, block: &Block) -> Option<Found> {
        self.find(&block.free_dirty())
    }

    pub(super) fn accepts(self, block: &Block) -> bool {
        self.nid == ANY_NODE || block.node == self.nid
    }
}
