//! What a request for pages asks for, and whether a block has it.

use crate::memory::block::{self, BLOCK_PAGES, Block, PageSet};
use crate::percpu::nodes::MAX_NODES;

/// What a request asks for; small, so that it is passed in registers.
#[derive(Clone, Copy)]
pub(super) struct Want {
    /// Memory node, or [`ANY_NODE`].
    pub(super) nid: u8,
    /// Pages of a run, and what they are aligned to, in pages.
    count: u16,
    align: u16,
    /// Runs that are taken together, at most.
    most: u16,
    pub(super) touched: Touched,
}

/// No node has this number.
const ANY_NODE: u8 = u8::MAX;
const _: () = assert!(MAX_NODES <= ANY_NODE as usize && size_of::<Want>() == 8);

/// How much of its pages a request is going to touch; where it may be little, they do not come by
/// huge pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    All,
    Little,
}

/// Pages of a block that a request can have: the first, and how many runs.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) first: u16,
    pub(super) runs: u16,
}

impl Want {
    pub(super) fn new(
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
            // As much as a block is.
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

    pub(super) fn count(self) -> usize {
        self.count.into()
    }

    pub(super) fn align(self) -> usize {
        self.align.into()
    }

    /// What is asked for of a set of a block's free pages, if it is there.
    #[inline(never)]
    pub(super) fn find(self, set: &PageSet) -> Option<Found> {
        let first = block::find(set, self.count(), self.align())?;
        let runs = block::runs_from(set, first, self.count(), self.most.into());
        let (first, runs) = (first as u16, runs as u16);
        Some(Found { first, runs })
    }

    /// As `find`, of a block's dirty pages.
    #[inline(never)]
    pub(super) fn find_dirty(self, block: &Block) -> Option<Found> {
        self.find(&block.free_dirty())
    }

    pub(super) fn accepts(self, block: &Block) -> bool {
        self.nid == ANY_NODE || block.node == self.nid
    }
}
