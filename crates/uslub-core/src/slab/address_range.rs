//! A cache's address range: contiguous pages that all belong to the cache.
//!
//! The slabs of a growing cache are mostly adjacent. So a bulk free tests many addresses at once
//! against one range (see `within`), or tests them while it copies them. Only if an address lies
//! outside, it looks all of them up in the page map.
//!
//! One word holds the range, and the number of slabs made elsewhere since it last grew:
//!
//! ```text
//!   bits 63 … 32            31 … 12         11 … 0
//!        first page plus 1  pages less 1    slabs made elsewhere
//! ```
//!
//! | event | change |
//! |---|---|
//! | a new slab adjacent to the range | the range grows |
//! | a new slab elsewhere | the count grows; at the number of pages (or 255) the range restarts |
//! | a slab's pages are freed | the slab leaves before; the longer side remains |
//!
//! Slabs of a [batch](crate::slab::page_batch) are in the range already. An address in one of them
//! was never handed out; such a free is detected when the address leaves its sheaf.
//!
//! The distance in bytes from the first byte to the last is the lower half with its last 12 bits
//! set. The word 0 stands for the page before the arena's first: the end of the arena's own tables,
//! which has no objects. Callers: `fresh` changes the range, `cache::bulk` reads it.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::{Arena, PageIndex};
use crate::platform::{PAGE_SHIFT, PAGE_SIZE};
use crate::sync::atomic::AtomicU64;

/// Most pages of a range: 4 GiB.
const MOST: u64 = 1 << 20;
/// Offset of the last byte of a page.
const LAST_BYTE: u32 = PAGE_SIZE as u32 - 1;
/// Largest count of slabs made elsewhere.
const MOST_ELSEWHERE: u64 = 255;

/// The range; on a cache line of its own, since the cache's other fields are read more often than
/// the range changes.
#[repr(align(64))]
pub(crate) struct AddressRange(AtomicU64);

/// The decoded word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    first: u64,
    pages: u64,
    elsewhere: u64,
}

impl Word {
    fn of(raw: u64) -> Self {
        let elsewhere = raw & (PAGE_SIZE as u64 - 1);
        let (first, pages) = match raw >> 32 {
            0 => (0, 0),
            behind => (behind - 1, (raw >> PAGE_SHIFT & (MOST - 1)) + 1),
        };
        Self {
            first,
            pages,
            elsewhere,
        }
    }

    fn raw(self) -> u64 {
        let pages = match self.pages {
            0 => 0,
            pages => (self.first + 1) << 32 | (pages - 1) << PAGE_SHIFT,
        };
        pages | self.elsewhere
    }

    /// The range after the cache got pages.
    fn with(self, first: u64, pages: u64) -> Self {
        let joined = self.pages + pages;
        if self.first + self.pages == first && joined <= MOST {
            Self::new(self.first, joined)
        } else if first + pages == self.first && joined <= MOST {
            Self::new(first, joined)
        } else if self.elsewhere + 1 >= self.pages.min(MOST_ELSEWHERE) {
            Self::new(first, pages)
        } else {
            Self {
                elsewhere: self.elsewhere + 1,
                ..self
            }
        }
    }

    /// The range after the cache gives pages back: its longer side.
    fn without(self, first: u64, pages: u64) -> Self {
        let (end, next) = (self.first + self.pages, first + pages);
        if first >= end || next <= self.first {
            return self;
        }
        let (before, behind) = (first.saturating_sub(self.first), end.saturating_sub(next));
        let (first, pages) = if before >= behind {
            (self.first, before)
        } else {
            (next, behind)
        };
        Self {
            first,
            pages,
            ..self
        }
    }

    fn new(first: u64, pages: u64) -> Self {
        Self {
            first,
            pages,
            elsewhere: 0,
        }
    }
}

impl AddressRange {
    /// An empty range.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The cache has got `pages` pages from `first`.
    pub(crate) fn add(&self, first: PageIndex, pages: usize) {
        self.change(|word| word.with(u64::from(first.0), pages as u64));
    }

    /// The cache is about to free `pages` pages from `first`; they hold no object.
    pub(crate) fn remove(&self, first: PageIndex, pages: usize) {
        self.change(|word| word.without(u64::from(first.0), pages as u64));
    }

    fn change(&self, to: impl Fn(Word) -> Word) {
        // Relaxed, both: the word only speaks of pages whose objects reached the reader through
        // synchronised operations.
        let mut raw = self.0.load(Relaxed);
        loop {
            let new = to(Word::of(raw)).raw();
            if new == raw {
                return;
            }
            // Relaxed: as for the load.
            match (self.0).compare_exchange_weak(raw, new, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => raw = now,
            }
        }
    }

    /// The first and the last address, less than 4 GiB apart. For an empty range, the page before
    /// the arena's first.
    #[inline]
    pub(crate) fn bounds(&self, arena: &Arena) -> (usize, usize) {
        // Relaxed: an object that the caller frees keeps its slab in the cache. For any other
        // address the answer is as good as the page map's.
        let raw = self.0.load(Relaxed);
        let behind = (arena.base()).wrapping_add((raw >> 32 << PAGE_SHIFT) as usize);
        let (first, most) = (behind.wrapping_sub(PAGE_SIZE), raw as u32 | LAST_BYTE);
        (first, first.wrapping_add(most as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_on_both_sides() {
        let word = Word::of(0).with(40, 8).with(48, 8).with(32, 8);
        assert_eq!(word, Word::new(32, 24));
        assert_eq!(Word::of(word.raw()), word);
    }

    #[test]
    fn it_moves_to_where_slabs_are_made_now() {
        let old = Word::new(100, 4);
        let mut word = old;
        for at in 0..3 {
            assert_eq!((word.first, word.pages), (100, 4));
            word = word.with(1000 + 10 * at, 2);
        }
        assert_eq!(word, old.with(1000, 2).with(1010, 2).with(1020, 2));
        assert_eq!(word.with(1030, 2), Word::new(1030, 2));
        assert_eq!(word.with(104, 2), Word::new(100, 6));
    }

    #[test]
    fn a_slab_that_leaves_takes_the_shorter_side_along() {
        let word = Word::new(32, 24);
        assert_eq!(word.without(32, 8), Word::new(40, 16));
        assert_eq!(word.without(48, 8), Word::new(32, 16));
        assert_eq!(word.without(40, 4), Word::new(44, 12));
        assert_eq!(word.without(56, 8), word);
        assert_eq!(word.without(24, 8), word);
        assert_eq!(Word::new(32, 8).without(32, 8).pages, 0);
    }

    #[test]
    fn it_holds_pages_that_the_cache_has_and_no_others() {
        let span = AddressRange::new();
        let mut ours = std::collections::BTreeSet::new();
        let mut dice = 7u64;
        for _ in 0..20_000 {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let slab = dice >> 33 & 63;
            let page = PageIndex(4 * slab as u32);
            if ours.remove(&slab) {
                span.remove(page, 4);
            } else {
                ours.insert(slab);
                span.add(page, 4);
            }
            // Relaxed: one thread.
            let word = Word::of(span.0.load(Relaxed));
            let mut slabs = word.first / 4..(word.first + word.pages) / 4;
            assert!(slabs.all(|slab| ours.contains(&slab)), "{word:?}");
        }
    }
}
