//! Pages for slabs ahead: where a cache has many slabs, it takes the pages of a few at once.
//!
//! One word of a node says where they begin and for how many slabs they are, so that the next of
//! them is taken by one compare-and-swap, without the page lock. They count as slabs of the cache,
//! and as empty ones; they have no descriptor until they are taken. Never touched, they hold no
//! memory. A shrink gives them back.
//!
//! ```text
//!   bits 63 … 32         31 … 0
//!        slabs ahead     first page
//! ```

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::PageIndex;
use crate::sync::atomic::AtomicU64;

/// The pages that wait; see the module.
pub(crate) struct Ahead(AtomicU64);

impl Ahead {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Slabs whose pages wait, at a glance.
    pub(crate) fn slabs(&self) -> usize {
        // Relaxed: a glance.
        (self.0.load(Relaxed) >> 32) as usize
    }

    /// Leaves the pages of `slabs` slabs (at least 1) here; false if there are others.
    pub(crate) fn put(&self, first: PageIndex, slabs: usize) -> bool {
        let word = (slabs as u64) << 32 | u64::from(first.0);
        // Relaxed: pages are numbers; nothing was written into them.
        self.0.compare_exchange(0, word, Relaxed, Relaxed).is_ok()
    }

    /// Takes the pages of one slab, which has `pages`.
    pub(crate) fn take(&self, pages: usize) -> Option<PageIndex> {
        // Relaxed: confirmed by the exchange.
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

    /// Takes all: the first page, and for how many slabs.
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
        let ahead = Ahead::new();
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
