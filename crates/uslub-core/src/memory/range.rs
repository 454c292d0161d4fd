//! The arena's reservation: how much address space it reserves, and when.
//!
//! | state | reserved | committed ahead of use | condition |
//! |---|---|---|---|
//! | ample | the bytes that `init` was asked for | several blocks | the default |
//! | lean | the committed bytes | nothing | a limit counts reserved or committed bytes |
//!
//! An arena is lean from the start if the platform [is limited](Platform::is_limited).
//! [`shed`](Arena::shed) makes it lean: before a limit is set, and after the system refused memory.
//! It stays lean, unless the refused request was just too large ([`be_ample`](Arena::be_ample)).
//!
//! The side ranges are laid out for a planned number of blocks, several times the number reserved
//! at first. The arena lies in a [hole](Platform::hole) of the address space, far from where the
//! system places mappings. So the addresses behind each range are most likely free, and the arena
//! extends the ranges in place. On a platform without holes the arena reserves the whole range in
//! one piece, and loses every part that it gives back.
//!
//! Callers: the arena and the zone, under the zone's growth lock.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::memory::arena::{Arena, BLOCK_BYTES, DESCRIPTOR_BYTES, GROUP_SHARE, PageIndex, SIDES};
use crate::memory::block::{BLOCK_PAGES, Block};
use crate::platform::{PAGE_SIZE, Platform};
use crate::policy::{
    COMMIT_AHEAD_BLOCKS, RANGE_FLOOR_BYTES, RANGE_HOLE_TRIES, RANGE_PLANNED_FACTOR,
    RANGE_STEP_BLOCKS,
};

/// Largest range, in bytes: page numbers have 32 bits.
const MOST_BYTES: usize = 1 << 43;

struct Layout {
    groups: usize,
    map: usize,
    descriptors: usize,
    pages: usize,
    total: usize,
}

/// Each side range begins at a system page (of `page` bytes), so that no two share one.
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
    /// Reserves `bytes`; if the system refuses, half of it, and so on. Reserves little if the
    /// platform [is limited](Platform::is_limited). Returns false if the system refuses the
    /// smallest range too.
    pub fn init<P: Platform>(&self, platform: &P, bytes: usize) -> bool {
        let mut bytes = bytes.next_multiple_of(BLOCK_BYTES).min(MOST_BYTES);
        // Relaxed: no other thread has the arena yet.
        self.lean.store(platform.is_limited(), Relaxed);
        if self.init_in_hole(platform, bytes / BLOCK_BYTES) {
            return true;
        }
        while bytes >= RANGE_FLOOR_BYTES {
            let nr_blocks = bytes / BLOCK_BYTES;
            let l = layout(nr_blocks, platform.system_page());
            if let Some(start) = platform.reserve(l.total, BLOCK_BYTES) {
                self.set(start.as_ptr() as usize, &l, nr_blocks);
                // Relaxed: published by the store of `reserved`.
                self.sides_reserved.store(nr_blocks, Relaxed);
                // Release: publishes all of the above.
                self.reserved.store(nr_blocks * BLOCK_PAGES, Release);
                return true;
            }
            bytes /= 2;
        }
        false
    }

    /// Reserves the first `nr_blocks` blocks of a range in a hole.
    fn init_in_hole<P: Platform>(&self, platform: &P, nr_blocks: usize) -> bool {
        let mut planned = (nr_blocks * RANGE_PLANNED_FACTOR).min(MOST_BYTES / BLOCK_BYTES);
        let mut first = if self.is_lean() { 1 } else { nr_blocks };
        for _ in 0..RANGE_HOLE_TRIES {
            let l = layout(planned, platform.system_page());
            if let Some(start) = platform.hole(l.total, BLOCK_BYTES) {
                self.set(start, &l, planned);
                if self.stretch(platform, first.min(planned)) {
                    // Relaxed: set before there are blocks.
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
        // Relaxed, all: published by `reserved`. A reader that sees a limit above 0 has acquired
        // it.
        self.blocks.store(at(0).cast(), Relaxed);
        self.groups.store(at(l.groups).cast(), Relaxed);
        self.map.store(at(l.map).cast(), Relaxed);
        self.descriptors.store(at(l.descriptors).cast(), Relaxed);
        self.base.store(start + l.pages, Relaxed);
        self.planned.store(planned, Relaxed);
    }

    /// Whether nothing is reserved or committed ahead of use.
    pub fn is_lean(&self) -> bool {
        // Relaxed: a hint to all but the thread that grows the range.
        self.lean.load(Relaxed)
    }

    /// Undoes [`shed`](Self::shed): the arena may reserve and commit ahead of use again.
    pub fn be_ample(&self) {
        // Relaxed: a hint to all but the thread that grows the range.
        self.lean.store(false, Relaxed);
    }

    /// Whether parts of the range can be given back and reserved again.
    pub fn is_in_hole(&self) -> bool {
        // Relaxed: set before there are blocks.
        self.in_hole.load(Relaxed)
    }

    /// Reserves more address space behind the range. One thread at a time, as for
    /// [`grow`](Self::grow).
    #[inline(never)]
    pub(super) fn extend<P: Platform>(&self, platform: &P) -> bool {
        // Relaxed, both: only one thread at a time changes them, now this one.
        let reserved = self.reserved.load(Relaxed) / BLOCK_PAGES;
        let room = self.planned.load(Relaxed) - reserved;
        // An eighth of the reserved blocks: a later limit may count the reservation.
        let mut step = match self.is_lean() {
            true => 1,
            false => (1 + reserved / 8).min(RANGE_STEP_BLOCKS),
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

    /// Reserves the pages up to block `end`, and their side ranges; nothing if the system refuses
    /// any part.
    fn stretch<P: Platform>(&self, platform: &P, end: usize) -> bool {
        // Relaxed, all: only one thread at a time changes them, now this one.
        let begin = self.reserved.load(Relaxed) / BLOCK_PAGES;
        let described = self.sides_reserved.load(Relaxed);
        if end > described {
            let planned = self.planned.load(Relaxed);
            let more = (end + COMMIT_AHEAD_BLOCKS).min(planned);
            let sides = |side| self.side_between(platform, side, described, more);
            if !reserve_all(platform, SIDES, sides) {
                return false;
            }
            // Relaxed: published by the store of `reserved`.
            self.sides_reserved.store(more, Relaxed);
        }
        let start = self.address(PageIndex((begin * BLOCK_PAGES) as u32));
        if !platform.reserve_at(start, (end - begin) * BLOCK_BYTES) {
            return false;
        }
        // Release: publishes the addresses.
        self.reserved.store(end * BLOCK_PAGES, Release);
        true
    }

    /// The part of a side range for the blocks from `begin` to `end`: start and bytes. It excludes
    /// a system page that the blocks before `begin` share.
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

    /// Gives reserved address space beyond the committed pages back, except for at most `keep`
    /// bytes. One thread at a time, never together with [`grow`](Self::grow).
    pub fn trim_reservation<P: Platform>(&self, platform: &P, keep: usize) {
        // Relaxed, all: the caller excludes other threads.
        let committed = self.committed.load(Relaxed);
        let reserved = self.reserved.load(Relaxed);
        let end = committed
            .saturating_add(keep / BLOCK_BYTES * BLOCK_PAGES)
            .min(reserved);
        if end == reserved {
            return;
        }
        let start = self.address(PageIndex(end as u32));
        // SAFETY: uncommitted pages are unused; the range was reserved by us.
        if !unsafe { platform.release(start, (reserved - end) * PAGE_SIZE) } {
            return;
        }
        // Relaxed: the caller excludes other threads.
        self.reserved.store(end, Relaxed);
        let sides = self.sides_reserved.load(Relaxed);
        let described = (end / BLOCK_PAGES).max(self.described.load(Relaxed));
        let end = sides.max(described);
        let mut parts = (0..SIDES).map(|side| self.side_between(platform, side, described, end));
        // SAFETY: as above; each is page-aligned and not null.
        let done = parts.all(|(start, bytes)| unsafe {
            bytes == 0 || platform.release(NonNull::new_unchecked(start as *mut u8), bytes)
        });
        if done {
            // Relaxed: the caller excludes other threads.
            self.sides_reserved.store(described.min(sides), Relaxed);
        }
    }

    /// Makes the arena lean: gives back memory reserved or committed ahead of use. A range that
    /// cannot be extended in place keeps `keep` bytes of it. Returns whether anything was given
    /// back. One thread at a time, as for [`trim_reservation`](Self::trim_reservation).
    pub fn shed<P: Platform>(&self, platform: &P, keep: usize) -> bool {
        // Relaxed, all: the caller excludes other threads.
        self.lean.store(true, Relaxed);
        let before = self.reserved.load(Relaxed);
        self.trim_reservation(platform, if self.is_in_hole() { 0 } else { keep });
        let (limit, committed) = (self.limit.load(Relaxed), self.committed.load(Relaxed));
        if self.is_in_hole() && committed > limit && committed == self.reserved.load(Relaxed) {
            let start = self.address(PageIndex(limit as u32));
            // SAFETY: pages beyond the limit are unused; the range was reserved by us.
            if unsafe { platform.release(start, (committed - limit) * PAGE_SIZE) } {
                // Relaxed: the caller excludes other threads.
                self.committed.store(limit, Relaxed);
                self.reserved.store(limit, Relaxed);
            }
        }
        // Relaxed: the caller excludes other threads.
        self.reserved.load(Relaxed) < before
    }
}

/// Reserves `count` ranges (start and bytes), all or none.
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
                    // SAFETY: just reserved, not used yet.
                    unsafe { platform.release(start, bytes) };
                }
            }
            return false;
        }
    }
    true
}
