//! Decay: free dirty pages go back to the system after a time.
//!
//! | trigger | free dirty pages go back when free for |
//! |---|---|
//! | periodic check | `decay_ms` |
//! | more than 64 dirty pages plus 1/32 of the pages in use | `decay_ms / 10` |
//! | resident pages exceed their peak by 64 | 2 ms |
//! | a run of more than 64 pages, or a mapping, raises the peak | at once |
//!
//! The peak is never less than `PEAK_FLOOR_PAGES`: a small process would give pages back, and take
//! them again, in each round of a loop.
//!
//! The zone lists blocks with free dirty pages by last use. A purge takes the pages out of the
//! oldest block, gives them back to the system with no lock held, and returns them as clean pages.
//!
//! Blocks beyond the first `huge_pages_mb` may be backed by huge pages. When part of such a block
//! has been free for long enough, all of its free pages go back and the block gets base pages from
//! then on. Otherwise the system would fill the purged part again by itself.
//!
//! The system takes back whole system pages, which may be longer than ours. A free page therefore
//! goes back only together with all other pages of its system page, and stays dirty until then.
//! Callers: frees of pages, and `cache::shrink`.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::arena::{BLOCK_BYTES, PageIndex};
use crate::memory::block::{self, BLOCK_PAGES, NO_BLOCK};
use crate::memory::zone::Zone;
use crate::platform::{Backing, PAGE_SIZE, Platform};
use crate::policy::{
    DECAY_EVICTION_LEAVES_PAGES, DECAY_FLOOR_PAGES, DECAY_GROWN_PAGES, DECAY_IDLE_MS, DECAY_SHARE,
    DECAY_SURPLUS_PART, DECAY_UNFRUITFUL_BLOCKS,
};
use crate::sync::time::{age_of_low, claim};

/// Milliseconds between two periodic checks.
fn look_period(decay_ms: u64) -> u64 {
    decay_ms / 8 + 1
}

impl<P: Platform> Zone<P> {
    /// Gives pages back that have been free for too long, if a check is due; `now` is the time in
    /// milliseconds.
    pub fn decay_if_due(&self, platform: &P, now: u64, decay_ms: u64) {
        // Relaxed: peeks, may be stale.
        let dirty = self.dirty.load(Relaxed);
        let surplus = dirty > DECAY_FLOOR_PAGES + self.used.load(Relaxed) / DECAY_SHARE;
        // One thread at a time: on a machine of many CPUs the others would wait for the page lock.
        // Within one millisecond no page becomes older.
        if surplus && claim(&self.next_surplus, now, 1) {
            let old_enough = |age| age >= decay_ms / DECAY_SURPLUS_PART;
            if self.purge_first(platform, old_enough, now) {
                // There may be more. Relaxed: a hint.
                self.next_surplus.store(now, Relaxed);
            }
        }
        if dirty > 0 && claim(&self.next_decay, now, look_period(decay_ms)) {
            self.decay(platform, now, decay_ms);
        }
    }

    /// Whether `pages`, plus the pages of mappings, exceed the peak by `DECAY_GROWN_PAGES`.
    pub(super) fn is_peak(&self, pages: usize) -> bool {
        // Relaxed, both: at worst the peak lags a step behind.
        pages + self.mapped_pages.load(Relaxed) >= self.peak_pages.load(Relaxed) + DECAY_GROWN_PAGES
    }

    /// Evicts idle pages if the resident pages have reached a new peak. `pages` are handed out or
    /// dirty; `taken` of them were just handed out. A run of more than `DECAY_GROWN_PAGES` pages
    /// evicts pages of any age.
    #[inline(never)]
    pub(super) fn evict_at_peak(&self, platform: &P, pages: usize, taken: usize) {
        // At worst two threads check.
        if self.is_peak(pages)
            && !self.evict_idle(platform, DECAY_GROWN_PAGES.max(taken), |age| {
                age >= DECAY_IDLE_MS || taken > DECAY_GROWN_PAGES
            })
        {
            // Relaxed, both: at worst two threads check.
            let pages = pages + self.mapped_pages.load(Relaxed);
            self.peak_pages.store(pages, Relaxed);
        }
    }

    /// Notes that mappings of `bytes` bytes in all are in use outside the arena. If the resident
    /// pages exceed their peak, as many free dirty pages are evicted, except the last few.
    #[inline(never)]
    pub fn update_mapped(&self, platform: &P, bytes: usize) {
        let now = bytes / PAGE_SIZE;
        // Relaxed: at worst two threads check.
        if now <= self.mapped_pages.swap(now, Relaxed) {
            return;
        }
        // Relaxed: peeks, may be stale.
        let resident = || self.used.load(Relaxed) + self.dirty.load(Relaxed) + now;
        let more = resident().saturating_sub(self.peak_pages.load(Relaxed));
        if more > 0 {
            self.evict_idle(platform, more, |_| true);
            // Relaxed: the peak only grows here.
            self.peak_pages.fetch_max(resident(), Relaxed);
        }
    }

    /// Bytes by which the resident pages would exceed their peak with mappings of `bytes` bytes in
    /// all.
    pub fn above_peak(&self, bytes: usize) -> Option<usize> {
        // Relaxed, all: peeks, may be stale.
        let in_arena = self.used.load(Relaxed) + self.dirty.load(Relaxed);
        let pages = in_arena + bytes / PAGE_SIZE;
        let more = pages.checked_sub(self.peak_pages.load(Relaxed))?;
        (more > 0).then_some(more * PAGE_SIZE)
    }

    /// Whether the peak of the resident pages has risen since the last call.
    pub fn peak_has_risen(&self) -> bool {
        // Relaxed: a hint.
        let peak = self.peak_pages.load(Relaxed);
        peak > self.peak_seen.swap(peak, Relaxed)
    }

    /// Evicts about `pages` free dirty pages, the oldest first, and leaves
    /// [`DECAY_EVICTION_LEAVES_PAGES`]. Returns whether it evicted any.
    fn evict_idle(&self, platform: &P, pages: usize, old_enough: impl Fn(u64) -> bool) -> bool {
        // Relaxed: a peek, may be stale.
        let before = self.dirty.load(Relaxed);
        let goal = DECAY_EVICTION_LEAVES_PAGES.max(before.saturating_sub(pages));
        if before <= goal {
            return false;
        }
        let now = platform.now_ms();
        let mut dirty = before;
        let mut unfruitful = 0;
        while dirty > goal && self.purge_first(platform, &old_enough, now) {
            let last = dirty;
            // Relaxed: a peek, may be stale.
            dirty = self.dirty.load(Relaxed);
            unfruitful += usize::from(dirty >= last);
            if unfruitful == DECAY_UNFRUITFUL_BLOCKS {
                break;
            }
        }
        dirty < before
    }

    /// Gives back free dirty pages that have not been used for `decay_ms` milliseconds; `now` is
    /// the time in milliseconds.
    pub fn decay(&self, platform: &P, now: u64, decay_ms: u64) {
        // Relaxed: a hint.
        self.next_decay
            .store(now.saturating_add(look_period(decay_ms)), Relaxed);
        self.purge_older(platform, |age| age >= decay_ms, now);
    }

    /// Gives back all free dirty pages.
    pub fn purge(&self, platform: &P) {
        self.drain_pending(&mut self.lists.lock(), platform);
        let now = platform.now_ms();
        self.purge_older(platform, |_| true, now);
    }

    fn purge_older(&self, platform: &P, old_enough: impl Fn(u64) -> bool, now: u64) {
        // Bounded: blocks that other threads dirty meanwhile wait for the next call.
        for _ in 0..=self.arena.limit() / BLOCK_PAGES {
            if !self.purge_first(platform, &old_enough, now) {
                return;
            }
        }
    }

    /// Gives back the free dirty pages of the least recently used block, if it is old enough;
    /// returns whether it was.
    #[inline(never)]
    fn purge_first(&self, platform: &P, old_enough: impl Fn(u64) -> bool, now: u64) -> bool {
        let group = platform.system_page() / PAGE_SIZE;
        let Some((number, set, huge)) = self.take_idle(old_enough, now, group) else {
            return false;
        };
        if huge {
            let start = self.arena.address(PageIndex(number * BLOCK_PAGES as u32));
            // SAFETY: committed.
            unsafe { platform.set_backing(start, BLOCK_BYTES, Backing::BasePages) };
        }
        let whole = set == [u64::MAX; BLOCK_PAGES / 64];
        // `try_lock`: the code that this thread interrupted may hold the growth lock.
        if whole
            && self.arena.is_lean()
            && self.arena.is_in_hole()
            && let Some(_growth) = self.growth.try_lock()
            && self.retire(platform, number)
        {
            return true;
        }
        if whole {
            self.arena.purge_descriptors(platform, number);
        }
        let mut clean = [0u64; BLOCK_PAGES / 64];
        block::any_run(&set, |first, count| {
            let page = PageIndex((number as usize * BLOCK_PAGES + first) as u32);
            let start = self.arena.address(page);
            // SAFETY: committed, and taken out of the free pages by us.
            if unsafe { platform.purge(start, count * PAGE_SIZE) } {
                block::fill(&mut clean, first, count, true);
            }
            false
        });
        let mut lists = self.lists.lock();
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(number) };
        for w in 0..set.len() {
            block.free[w] |= set[w];
            block.dirty[w] &= !clean[w];
        }
        block.dirty_since = now as u32;
        // A block that is still dirty goes to the end: the list is ordered by last use.
        if block.in_dirty {
            self.unlink_dirty(&mut lists, number);
        }
        self.recount(&mut lists, number);
        true
    }

    /// Takes free dirty pages out of the least recently used block, only in aligned groups of
    /// `group` free pages. Also returns whether the block is split into base pages by this.
    fn take_idle(
        &self,
        old_enough: impl Fn(u64) -> bool,
        now: u64,
        group: usize,
    ) -> Option<(u32, block::PageSet, bool)> {
        let mut lists = self.lists.lock();
        let number = lists.dirty_head;
        if number == NO_BLOCK {
            return None;
        }
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(number) };
        if !old_enough(age_of_low(now, block.dirty_since).into()) {
            return None;
        }
        // A free block goes as a whole, so that its descriptors can go too.
        let empty = usize::from(block.nr_free) == BLOCK_PAGES;
        let wanted = if empty || block.huge {
            block.free
        } else {
            block.free_dirty()
        };
        let set = block::groups(&block.free, &wanted, group);
        let splits = block.huge && !empty;
        block.huge &= empty;
        for (free, taken) in block.free.iter_mut().zip(set) {
            *free &= !taken;
        }
        self.recount(&mut lists, number);
        Some((number, set, splits))
    }
}
