//! How much address space the arena reserves, and when.
//!
//! | state | reserved | committed ahead of use | when |
//! |---|---|---|---|
//! | ample | all that `init` was asked for | several blocks | at first |
//! | lean | what is committed | nothing | a limit counts what is reserved or committed |
//!
//! An arena is lean from the start if the platform [is limited](Platform::is_limited). It becomes
//! lean by [`shed`](Arena::shed): before a limit is set, and after the system refused memory. It
//! stays lean, unless the request was just too large.
//!
//! The side ranges are laid out for a planned number of blocks, several times what is reserved at
//! first. The arena lies in a [hole](Platform::hole) of the address space, far from where the
//! system places mappings. So the addresses behind each range are most likely free, and the ranges
//! are extended in place. A platform without holes reserves the whole arena in one piece, and what
//! it gives back is lost.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::memory::arena::{
    Arena, BLOCK_BYTES, DESCRIPTOR_BYTES, GROUP_SHARE, MOST_AHEAD, PageIndex, SIDES,
};
use crate::memory::block::{BLOCK_PAGES, Block};
use crate::platform::{PAGE_SIZE, Platform};

/// Smallest range that is reserved in one piece.
const FLOOR_BYTES: usize = 16 << 20;
/// Largest range: page numbers have 32 bits.
const MOST_BYTES: usize = 1 << 43;
/// The side ranges have room for this many times the blocks that are reserved at first.
const PLANNED: usize = 8;
/// Holes that are tried.
const TRIES: usize = 8;
/// Blocks by which an ample range is extended at once, at most: 2 GiB.
const STEP: usize = 1024;

struct Layout {
    groups: usize,
    map: usize,
    descriptors: usize,
    pages: usize,
    total: usize,
}

/// Each side range begins a page of the system, `page` bytes, so that no two share one.
fn layout(nr_blocks: usize, page: usize) -> Layout {
    let pages = nr_blocks * BLOCK_PAGES;
    let blocks = (nr_blocks * size_of::<Block>()).next_multiple_of(page);
    let groups = (nr_blocks * GROUP_SHARE).next_multiple_of(page);
    let map = (pages * 2).next_multiple_of(page);
    let descriptors = nr_blocks * DESCRIPTOR_BYTES;
    let side = (blocks + groups + map + descriptors).next_multiple_of(BLOCK_BYTES);
    Layout {
        groups: blocks,
        map: blocks + groups,
        descriptors: blocks + groups + map,
        pages: side,
        total: side + nr_blocks * BLOCK_BYTES,
    }
}

impl Arena {
    /// Reserves `bytes`, or half of that, and so on; little where the platform [is
    /// limited](Platform::is_limited). Returns false when the system refuses the smallest range
    /// too.
    pub fn init<P: Platform>(&self, platform: &P, bytes: usize) -> bool {
        let mut bytes = bytes.next_multiple_of(BLOCK_BYTES).min(MOST_BYTES);
        // Relaxed: nobody else has the arena yet.
        self.lean.store(platform.is_limited(), Relaxed);
        if self.init_in_hole(platform, bytes / BLOCK_BYTES) {
            return true;
        }
        while bytes >= FLOOR_BYTES {
            let nr_blocks = bytes / BLOCK_BYTES;
            let l = layout(nr_blocks, platform.system_page());
            if let Some(start) = platform.reserve(l.total, BLOCK_BYTES) {
                self.set(start.as_ptr() as usize, &l, nr_blocks);
                // Relaxed: published by the last.
                self.sides_reserved.store(nr_blocks, Relaxed);
                // Release: published with all of the above.
                self.reserved.store(nr_blocks * BLOCK_PAGES, Release);
                return true;
            }
            bytes /= 2;
        }
        false
    }

    /// Reserves the first `nr_blocks` blocks of a range in a hole.
    fn init_in_hole<P: Platform>(&self, platform: &P, nr_blocks: usize) -> bool {
        let mut planned = (nr_blocks * PLANNED).min(MOST_BYTES / BLOCK_BYTES);
        let mut first = if self.is_lean() { 1 } else { nr_blocks };
        for _ in 0..TRIES {
            let l = layout(planned, platform.system_page());
            if let Some(start) = platform.hole(l.total, BLOCK_BYTES) {
                self.set(start, &l, planned);
                if self.stretch(platform, first.min(planned)) {
                    // Relaxed: read by one thread at a time.
                    self.in_hole.store(true, Relaxed);
                    return true;
                }
                first = first.div_ceil(2);
            } else if planned < 2 * first {
                return false;
            } else {
                planned /= 2;
            }
        }
        false
    }

    fn set(&self, start: usize, l: &Layout, planned: usize) {
        let at = |offset| (start + offset) as *mut u8;
        // Relaxed, all: published with `reserved`. Readers that see a limit above 0 acquired that.
        self.blocks.store(at(0).cast(), Relaxed);
        self.groups.store(at(l.groups).cast(), Relaxed);
        self.map.store(at(l.map).cast(), Relaxed);
        self.descriptors.store(at(l.descriptors).cast(), Relaxed);
        self.base.store(start + l.pages, Relaxed);
        self.planned.store(planned, Relaxed);
    }

    /// Whether only what is needed is reserved and committed.
    pub fn is_lean(&self) -> bool {
        // Relaxed: a hint to all but the thread that grows the range.
        self.lean.load(Relaxed)
    }

    /// Ends what [`shed`](Self::shed) began: what is needed soon may be reserved and committed
    /// ahead again.
    pub fn be_ample(&self) {
        // Relaxed: a hint to all but the thread that grows the range.
        self.lean.store(false, Relaxed);
    }

    /// Whether parts of the range can be given back and reserved again.
    pub fn is_in_hole(&self) -> bool {
        // Relaxed: set before there are blocks.
        self.in_hole.load(Relaxed)
    }

    /// Reserves more address space behind the range. As [`grow`](Self::grow), one thread at a time.
    #[inline(never)]
    pub(super) fn extend<P: Platform>(&self, platform: &P) -> bool {
        // Relaxed, both: only we, one at a time, change them.
        let reserved = self.reserved.load(Relaxed) / BLOCK_PAGES;
        let room = self.planned.load(Relaxed) - reserved;
        // An eighth of what there is: after a refusal a limit may count it.
        let mut step = match self.is_lean() {
            true => 1,
            false => (1 + reserved / 8).min(STEP),
        }
        .min(room);
        while step > 0 {
            if self.stretch(platform, reserved + step) {
                return true;
            }
            step /= 2;
        }
        false
    }

    /// Reserves the pages up to block `end`, and their side ranges; nothing if the system refuses a
    /// part of that.
    fn stretch<P: Platform>(&self, platform: &P, end: usize) -> bool {
        // Relaxed, all: only we, one at a time, change them.
        let begin = self.reserved.load(Relaxed) / BLOCK_PAGES;
        let described = self.sides_reserved.load(Relaxed);
        if end > described {
            let planned = self.planned.load(Relaxed);
            let more = (end + MOST_AHEAD).min(planned);
            let sides = |side| self.side_between(platform, side, described, more);
            if !reserve_all(platform, SIDES, sides) {
                return false;
            }
            // Relaxed: as above.
            self.sides_reserved.store(more, Relaxed);
        }
        let start = self.address(PageIndex((begin * BLOCK_PAGES) as u32));
        if !platform.reserve_at(start, (end - begin) * BLOCK_BYTES) {
            return false;
        }
        // Release: published with the addresses.
        self.reserved.store(end * BLOCK_PAGES, Release);
        true
    }

    /// The part of a side range for the blocks from `begin` to `end`, start and bytes: none of a
    /// page that blocks before share.
    fn side_between<P: Platform>(
        &self,
        platform: &P,
        side: usize,
        begin: usize,
        end: usize,
    ) -> (usize, usize) {
        let (start, unit) = self.side(side);
        let from = platform.whole_pages(start + begin * unit);
        let to = platform.whole_pages(start + end * unit);
        (from, to - from)
    }

    /// Gives reserved address space beyond what is committed back, keeping at
    /// most `keep` bytes of it. One thread at a time, not together with [`grow`](Self::grow).
    pub fn trim_reservation<P: Platform>(&self, platform: &P, keep: usize) {
        // Relaxed, all: the caller keeps others out.
        let committed = self.committed.load(Relaxed);
        let reserved = self.reserved.load(Relaxed);
        let end = committed
            .saturating_add(keep / BLOCK_BYTES * BLOCK_PAGES)
            .min(reserved);
        if end == reserved {
            return;
        }
        let start = self.address(PageIndex(end as u32));
        // SAFETY: what is not committed is not used; the range was reserved by us.
        if !unsafe { platform.release(start, (reserved - end) * PAGE_SIZE) } {
            return;
        }
        // Relaxed: as above.
        self.reserved.store(end, Relaxed);
        let sides = self.sides_reserved.load(Relaxed);
        let described = (end / BLOCK_PAGES).max(self.described.load(Relaxed));
        let end = sides.max(described);
        let mut parts = (0..SIDES).map(|side| self.side_between(platform, side, described, end));
        // SAFETY: as above; each is page-aligned and not 0.
        let done = parts.all(|(start, bytes)| unsafe {
            bytes == 0 || platform.release(NonNull::new_unchecked(start as *mut u8), bytes)
        });
        if done {
            // Relaxed: as above.
            self.sides_reserved.store(described.min(sides), Relaxed);
        }
    }

    /// Becomes lean: gives back what is reserved or committed ahead of use. A range that cannot be
    /// extended in place keeps `keep` bytes of that. Returns whether anything was given back. As
    /// [`trim_reservation`](Self::trim_reservation), one thread at a time.
    pub fn shed<P: Platform>(&self, platform: &P, keep: usize) -> bool {
        // Relaxed, all: the caller keeps others out.
        self.lean.store(true, Relaxed);
        let before = self.reserved.load(Relaxed);
        self.trim_reservation(platform, if self.is_in_hole() { 0 } else { keep });
        let (limit, committed) = (self.limit.load(Relaxed), self.committed.load(Relaxed));
        if self.is_in_hole() && committed > limit && committed == self.reserved.load(Relaxed) {
            let start = self.address(PageIndex(limit as u32));
            // SAFETY: beyond the limit nobody uses anything; the range was reserved by us.
            if unsafe { platform.release(start, (committed - limit) * PAGE_SIZE) } {
                // Relaxed: as above.
                self.committed.store(limit, Relaxed);
                self.reserved.store(limit, Relaxed);
            }
        }
        // Relaxed: as above.
        self.reserved.load(Relaxed) < before
    }
}

/// Reserves `count` ranges, start and bytes, all or none.
#[inline]
fn reserve_all<P: Platform>(
    platform: &P,
    count: usize,
    range: impl Fn(usize) -> (usize, usize),
) -> bool {
    for at in 0..count {
        let (start, bytes) = range(at);
        let reserved = bytes == 0
            || NonNull::new(start as *mut u8)
                .is_some_and(|start| platform.reserve_at(start, bytes));
        if !reserved {
            for (start, bytes) in (0..at).map(&range).filter(|&(_, bytes)| bytes > 0) {
                if let Some(start) = NonNull::new(start as *mut u8) {
                    // SAFETY: just reserved, used by no one.
                    unsafe { platform.release(start, bytes) };
                }
            }
            return false;
        }
    }
    true
}
