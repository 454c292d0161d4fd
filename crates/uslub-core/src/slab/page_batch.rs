//! Page batches: a cache with many slabs takes pages for several slabs at once.
//!
//! One word of a node says where the batch begins and how many slabs it has left. One
//! compare-and-swap takes the pages of the next slab, without the page lock. The slabs of a batch
//! count as slabs of the cache, and as empty ones. They have no descriptor until they are taken,
//! and hold no memory until they are touched. A shrink gives the batch back.
//!
//! ```text
//!   bits 63 … 32         31 … 0
//!        slabs left      first page
//! ```
//!
//! The word is 0 without a batch. Callers: `fresh`.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::PageIndex;
use crate::sync::atomic::AtomicU64;

/// The batch of a node; the module describes the word.
pub(crate) struct PageBatch(AtomicU64);

impl PageBatch {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Slabs left in the batch; may be stale.
    pub(crate) fn slabs(&self) -> usize {
        // Relaxed: a peek, may be stale.
        (self.0.load(Relaxed) >> 32) as usize
    }

    /// Stores a batch of `slabs` slabs (at least 1); false if there is another one.
    pub(crate) fn put(&self, first: PageIndex, slabs: usize) -> bool {
        let word = (slabs as u64) << 32 | u64::from(first.0);
        // Relaxed: pages are numbers; nothing was written into them.
        self.0.compare_exchange(0, word, Relaxed, Relaxed).is_ok()
    }

    /// Takes the pages of one slab, `pages` of them.
    pub(crate) fn take(&self, pages: usize) -> Option<PageIndex> {
        // Relaxed: confirmed by the compare-and-swap.
        let mut word = self.0.load(Relaxed);
        loop {
            let (first, slabs) = parts(word)?;
            let left = (slabs - 1) as u64;
            let rest = if left == 0 {
                0
            } else {
                left << 32 | (u64::from(first.0) + pages as u64)
            };
            // Relaxed: as in `put`.
            match self.0.compare_exchange_weak(word, rest, Relaxed, Relaxed) {
                Ok(_) => return Some(first),
                Err(now) => word = now,
            }
        }
    }

    /// Takes the whole batch: the first page, and the number of slabs.
    pub(crate) fn take_all(&self) -> Option<(PageIndex, usize)> {
        // Relaxed: as in `put`.
        parts(self.0.swap(0, Relaxed))
    }
}

fn parts(word: u64) -> Option<(PageIndex, usize)> {
    (word != 0).then_some((PageIndex(word as u32), (word >> 32) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_out_in_order_and_once() {
        let ahead = PageBatch::new();
        assert_eq!((ahead.take(4), ahead.take_all()), (None, None));
        assert!(ahead.put(PageIndex(0), 3));
        assert!(!ahead.put(PageIndex(100), 1));
        assert_eq!(ahead.take(4), Some(PageIndex(0)));
        assert_eq!(ahead.slabs(), 2);
        assert_eq!(ahead.take(4), Some(PageIndex(4)));
        assert_eq!(ahead.take_all(), Some((PageIndex(8), 1)));
        assert_eq!((ahead.take(4), ahead.slabs()), (None, 0));
    }
}
