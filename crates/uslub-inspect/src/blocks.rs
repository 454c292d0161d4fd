//! The records of blocks: which free pages may hold memory.
//!
//! A heap with many holes asks for many pages of one block, so records are read in parts.

use crate::heap::Heap;
use crate::layout::Field;

/// Records of one part.
const PART: u64 = 64;

/// A part of the records, read when it is first asked for.
pub(crate) struct Blocks<'h, 'm> {
    heap: &'h Heap<'m>,
    records: Vec<u8>,
    first: u64,
}

impl<'h, 'm> Blocks<'h, 'm> {
    pub(crate) fn new(heap: &'h Heap<'m>) -> Self {
        Self {
            heap,
            records: Vec::new(),
            first: 0,
        }
    }

    /// Whether a page is free and dirty, as its block says.
    pub(crate) fn is_dirty(&mut self, page: u64) -> bool {
        let f = &self.heap.f;
        let (bytes, in_block) = (f.block_bytes, f.block_pages as u64);
        let (block, at) = (page / in_block, (page % in_block) as usize);
        let read = (self.records.len() / bytes) as u64;
        if block < self.first || block - self.first >= read {
            let all = self.heap.arena().pages.div_ceil(in_block);
            let part = all.saturating_sub(block).min(PART) as usize;
            self.records.resize(part * bytes, 0);
            self.first = block;
            let start = self.heap.arena().blocks.wrapping_add(block * bytes as u64);
            (self.heap.memory).read_sparse(start, &mut self.records);
        }
        let record = (block - self.first) as usize * bytes;
        let bit = |set: Field| {
            let byte = self.records.get(record + set.at + at / 8);
            byte.copied().unwrap_or(0) >> (at % 8) & 1 == 1
        };
        bit(f.block_free) && bit(f.block_dirty)
    }

    /// Free dirty pages among `pages` pages from `first` on.
    pub(crate) fn dirty(&mut self, first: u64, pages: u64) -> u64 {
        (first..first + pages)
            .filter(|&page| self.is_dirty(page))
            .count() as u64
    }
}
