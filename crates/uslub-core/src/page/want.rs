//! What a request for pages asks for, and whether a block has it.

use crate::page::block::{self, Block, PageSet};

/// What a request asks for.
#[derive(Clone, Copy)]
pub(super) struct Want {
    /// Memory node; `None` for any.
    pub(super) nid: Option<usize>,
    /// Pages of a run, and what they are aligned to, in pages.
    pub(super) count: usize,
    pub(super) align: usize,
    /// Runs that are taken together, at most.
    pub(super) most: usize,
    pub(super) touched: Touched,
}

/// How much of its pages a request is going to touch; where it may be little, they do not come by huge pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    All,
    Little,
}

/// Pages of a block that a request can have: the first, and how many runs.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) first: usize,
    pub(super) runs: usize,
}

impl Want {
    /// What is asked for of a set of a block's free pages, if it is there.
    #[inline(never)]
    pub(super) fn find(self, set: &PageSet) -> Option<Found> {
        let first = block::find(set, self.count, self.align)?;
        let runs = block::runs_from(set, first, self.count, self.most);
        Some(Found { first, runs })
    }

    /// As `find`, of a block's dirty pages.
    #[inline(never)]
    pub(super) fn find_dirty(self, block: &Block) -> Option<Found> {
        self.find(&block.free_dirty())
    }

    pub(super) fn accepts(self, block: &Block) -> bool {
        self.nid.is_none_or(|nid| usize::from(block.node) == nid)
    }
}
