//! Absent blocks: free blocks that are unmapped, address space included.
//!
//! While the arena is [lean](crate::memory::range), a limit counts every mapped block, used or not.
//! The zone therefore unmaps free blocks, except for a small reserve. An unmapped block is
//! *absent*.
//!
//! | state | pages | how it is left |
//! |---|---|---|
//! | mapped | free, dirty or in use | `retire`: all pages are free, the system accepts the unmap |
//! | absent | none is free or in use | `bring_back`: the arena needs a block |
//!
//! The zone brings absent blocks back before the arena grows at its limit. Both transitions happen
//! under the growth lock. A bit in the block's group (bin [`ABSENT`]) marks an absent block.
//! Callers: `growth` brings blocks back; frees, decay and the faces' limits retire them.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::arena::{BLOCK_BYTES, PageIndex};
use crate::memory::block::{ABSENT, BINS, BLOCK_PAGES};
use crate::memory::zone::Zone;
use crate::platform::Platform;
use crate::policy::{ABSENT_TRIES, LEAN_FREE_SHARE};

/// The bin of entirely free blocks.
const WHOLE: usize = BINS - 1;

impl<P: Platform> Zone<P> {
    /// Gives back memory reserved or committed ahead of use, and all free blocks; returns whether
    /// there was any. The arena is lean from then on.
    pub fn make_room(&self, platform: &P) -> bool {
        let ahead = {
            let _growth = self.growth.lock();
            // A range that cannot be extended in place would lose the reservation: keep all of it.
            self.arena.shed(platform, usize::MAX)
        };
        self.drain_pending(&mut self.lists.lock(), platform);
        self.retire_free_blocks(platform, 0) || ahead
    }

    /// Makes the arena lean: gives back memory reserved or committed ahead of use. A range that
    /// cannot be extended in place keeps `keep` bytes of it.
    pub fn shed(&self, platform: &P, keep: usize) {
        let _growth = self.growth.lock();
        self.arena.shed(platform, keep);
    }

    /// Gives back free blocks if the arena is lean and has more of them than its reserve.
    #[inline(never)]
    pub(super) fn retire_surplus(&self, platform: &P) {
        if self.arena.is_lean() {
            // Relaxed: a peek, may be stale.
            let used = self.used.load(Relaxed) / BLOCK_PAGES;
            self.retire_free_blocks(platform, 1 + used / LEAN_FREE_SHARE);
        }
    }

    /// Makes all free blocks but `keep` absent, the highest first; returns whether there was any.
    fn retire_free_blocks(&self, platform: &P, keep: usize) -> bool {
        if !self.arena.is_in_hole() {
            return false;
        }
        let mut any = false;
        // `try_lock`: the code that this thread interrupted may hold the growth lock.
        while let Some(_growth) = self.growth.try_lock()
            && let Some(number) = self.take_free_block(keep)
        {
            if !self.retire(platform, number) {
                self.put_back(number);
                break;
            }
            any = true;
        }
        any
    }

    /// Takes all pages of the highest free block, if there are more than `keep` free blocks.
    fn take_free_block(&self, keep: usize) -> Option<u32> {
        let mut lists = self.lists.lock();
        let mut whole = 0;
        let mut highest = None;
        for group in 0..(self.arena.limit() / BLOCK_PAGES).div_ceil(64) as u32 {
            // SAFETY: we hold the page lock.
            let bits = unsafe { self.arena.group(group).bins[WHOLE] };
            whole += bits.count_ones() as usize;
            if bits != 0 {
                highest = Some(group * 64 + bits.ilog2());
            }
        }
        let number = highest.filter(|_| whole > keep)?;
        // SAFETY: we hold the page lock.
        unsafe { self.arena.block(number) }.free = [0; BLOCK_PAGES / 64];
        self.recount(&mut lists, number);
        Some(number)
    }

    /// Undoes [`take_free_block`](Self::take_free_block).
    fn put_back(&self, number: u32) {
        let mut lists = self.lists.lock();
        // SAFETY: we hold the page lock.
        unsafe { self.arena.block(number) }.free = [u64::MAX; BLOCK_PAGES / 64];
        self.recount(&mut lists, number);
    }

    /// Makes a block absent; false if the system refuses. The caller holds the growth lock and has
    /// taken all pages of the block.
    pub(super) fn retire(&self, platform: &P, number: u32) -> bool {
        self.arena.purge_descriptors(platform, number);
        let start = self.arena.address(PageIndex(number * BLOCK_PAGES as u32));
        // SAFETY: reserved by us; the caller has taken all pages.
        if !unsafe { platform.release(start, BLOCK_BYTES) } {
            return false;
        }
        let mut lists = self.lists.lock();
        // SAFETY: we hold the page lock.
        let (block, group) = unsafe { (self.arena.block(number), self.arena.group(number / 64)) };
        block.dirty = [0; BLOCK_PAGES / 64];
        block.huge = false;
        group.bins[ABSENT] |= 1 << (number % 64);
        self.recount(&mut lists, number);
        // Relaxed: changed under the growth lock.
        self.absent.fetch_add(1, Relaxed);
        true
    }

    /// Maps and commits the lowest absent block that the system grants; none of its pages is free
    /// yet. The caller holds the growth lock.
    #[inline(never)]
    pub(super) fn bring_back(&self, platform: &P) -> Option<u32> {
        // Relaxed: changed under the growth lock.
        if self.absent.load(Relaxed) == 0 {
            return None;
        }
        let mut from = 0;
        for _ in 0..ABSENT_TRIES {
            let number = self.next_absent(from)?;
            let start = self.arena.address(PageIndex(number * BLOCK_PAGES as u32));
            if platform.reserve_at(start, BLOCK_BYTES) {
                // SAFETY: just reserved.
                if unsafe { platform.commit(start, BLOCK_BYTES) } {
                    let _lists = self.lists.lock();
                    // SAFETY: we hold the page lock.
                    let group = unsafe { self.arena.group(number / 64) };
                    group.bins[ABSENT] &= !(1 << (number % 64));
                    // Relaxed: changed under the growth lock.
                    self.absent.fetch_sub(1, Relaxed);
                    return Some(number);
                }
                // SAFETY: just reserved, not used yet.
                unsafe { platform.release(start, BLOCK_BYTES) };
            }
            from = number + 1;
        }
        None
    }

    /// The first absent block with a number of at least `from`.
    fn next_absent(&self, from: u32) -> Option<u32> {
        let _lists = self.lists.lock();
        let groups = (self.arena.limit() / BLOCK_PAGES).div_ceil(64) as u32;
        (from / 64..groups).find_map(|group| {
            // SAFETY: we hold the page lock.
            let bits = unsafe { self.arena.group(group).bins[ABSENT] };
            let before = if group == from / 64 {
                (1 << (from % 64)) - 1
            } else {
                0
            };
            let rest = bits & !before;
            (rest != 0).then(|| group * 64 + rest.trailing_zeros())
        })
    }
}
