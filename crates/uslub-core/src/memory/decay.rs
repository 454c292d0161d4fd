//! What stays free goes back to the system after a while, and sooner where it is needed elsewhere.
//!
//! Blocks with free dirty pages are listed by when they were last used. Once `decay_ms` have passed
//! the pages are taken out, given back with no lock held, and returned clean. The same happens
//! sooner (after a tenth of that) when more than a share of what is in use lies dirty; sooner still
//! when the process is about to have more memory than ever, at once where a huge object takes it:
//! dirty pages of no use make room.
//!
//! Blocks beyond the first `huge_pages_mb` may be asked for as huge pages. Once a part of such a
//! block has stayed free for that long, all of its free pages go, and it is one of small pages from
//! then on: what was given back must not come back by itself.
//!
//! The system takes back pages of its own, which may be longer than ours. A free page goes back
//! only together with all others of its system page. Until they are free too it stays dirty.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::arena::{BLOCK_BYTES, PageIndex};
use crate::memory::block::{self, BLOCK_PAGES, NO_BLOCK};
use crate::memory::zone::Zone;
use crate::platform::{Backing, PAGE_SIZE, Platform};
use crate::sync::time::{age_of_low, is_due};

/// Dirty pages that may lie free whatever is in use.
const DIRTY_FLOOR: usize = 64;
/// Dirty pages that may lie free, as a share of the pages in use.
const DIRTY_SHARE: usize = 32;
/// Dirty pages that stay though others need room.
const LEAST_DIRTY: usize = 16;
/// Pages beyond the most there ever were for which free ones make room.
const GROWN: usize = 64;
/// Milliseconds after which free pages make room for others.
const IDLE_MS: u64 = 2;
/// Blocks of which nothing could be given back, after which the search ends.
const UNFRUITFUL: usize = 8;
/// Free pages beyond those shares stay resident for this part of `decay_ms`.
const SURPLUS_PART: u64 = 10;

/// Milliseconds between two looks at what is old enough.
fn look_period(decay_ms: u64) -> u64 {
    decay_ms / 8 + 1
}

impl<P: Platform> Zone<P> {
    /// Gives pages back that have been free for too long, if it is time to look; `now` is the time.
    pub fn decay_now_and_then(&self, platform: &P, now: u64, decay_ms: u64) {
        // Relaxed: glances.
        let dirty = self.dirty.load(Relaxed);
        let surplus = dirty > self.may_lie_free();
        // Relaxed: as above. Nothing grows older before the next millisecond.
        if surplus && is_due(now, self.next_surplus.load(Relaxed), 1) {
            let old_enough = |age| age >= decay_ms / SURPLUS_PART;
            if !self.purge_first(platform, old_enough, now) {
                // Relaxed: as above.
                self.next_surplus.store(now.saturating_add(1), Relaxed);
            }
        }
        // Relaxed: at worst two threads look.
        if dirty > 0 && is_due(now, self.next_decay.load(Relaxed), look_period(decay_ms)) {
            self.decay(platform, now, decay_ms);
        }
    }

    /// Free dirty pages that may stay for `decay_ms`.
    fn may_lie_free(&self) -> usize {
        // Relaxed: a glance.
        DIRTY_FLOOR + self.used.load(Relaxed) / DIRTY_SHARE
    }

    /// Whether so many pages, and what is elsewhere, are more than there ever were.
    pub(super) fn is_record(&self, pages: usize) -> bool {
        // Relaxed, both: at worst the record is a step behind.
        pages + self.elsewhere.load(Relaxed) >= self.record.load(Relaxed) + GROWN
    }

    /// So many pages are handed out or dirty, `taken` of them now: if there never were more, idle
    /// ones make room; for a long run at once.
    #[inline(never)]
    pub(super) fn note_resident(&self, platform: &P, pages: usize, taken: usize) {
        // At worst two threads look.
        if self.is_record(pages)
            && !self.displace(platform, GROWN.max(taken), |age| {
                age >= IDLE_MS || taken > GROWN
            })
        {
            // Relaxed, both: as above.
            let pages = pages + self.elsewhere.load(Relaxed);
            self.record.store(pages, Relaxed);
        }
    }

    /// Mappings of `bytes` bytes in all are in use elsewhere from now on. Free dirty pages make
    /// room for what is more of them than the process ever had memory; but for a few.
    pub fn note_elsewhere(&self, platform: &P, bytes: usize) {
        let now = bytes / PAGE_SIZE;
        // Relaxed: as above.
        if now <= self.elsewhere.swap(now, Relaxed) {
            return;
        }
        // Relaxed: as above.
        let resident = || self.used.load(Relaxed) + self.dirty.load(Relaxed) + now;
        let more = resident().saturating_sub(self.record.load(Relaxed));
        if more > 0 {
            self.displace(platform, more, |_| true);
            // Relaxed: as above.
            self.record.fetch_max(resident(), Relaxed);
        }
    }

    /// Gives about so many free dirty pages back, the oldest first; but for a few. Returns whether
    /// there was any.
    fn displace(&self, platform: &P, pages: usize, old_enough: impl Fn(u64) -> bool) -> bool {
        // Relaxed: a glance.
        let before = self.dirty.load(Relaxed);
        let goal = LEAST_DIRTY.max(before.saturating_sub(pages));
        if before <= goal {
            return false;
        }
        let now = platform.now_ms();
        let mut dirty = before;
        let mut unfruitful = 0;
        while dirty > goal && self.purge_first(platform, &old_enough, now) {
            let last = dirty;
            // Relaxed: a glance.
            dirty = self.dirty.load(Relaxed);
            unfruitful += usize::from(dirty >= last);
            if unfruitful == UNFRUITFUL {
                break;
            }
        }
        dirty < before
    }

    /// Gives free dirty pages back that have not been used for `decay_ms`
    /// milliseconds; `now` is the time.
    pub fn decay(&self, platform: &P, now: u64, decay_ms: u64) {
        // Relaxed: at worst two threads look.
        self.next_decay
            .store(now.saturating_add(look_period(decay_ms)), Relaxed);
        self.purge_older(platform, |age| age >= decay_ms, now);
    }

    /// Gives all free dirty pages back.
    pub fn purge(&self, platform: &P) {
        self.absorb(&mut self.lists.lock(), platform);
        let now = platform.now_ms();
        self.purge_older(platform, |_| true, now);
    }

    fn purge_older(&self, platform: &P, old_enough: impl Fn(u64) -> bool, now: u64) {
        // Bounded: blocks that others dirty meanwhile wait for the next turn.
        for _ in 0..=self.arena.limit() / BLOCK_PAGES {
            if !self.purge_first(platform, &old_enough, now) {
                return;
            }
        }
    }

    /// Gives the free dirty pages of the block that was used least recently back, if it is old
    /// enough; returns whether it was.
    fn purge_first(&self, platform: &P, old_enough: impl Fn(u64) -> bool, now: u64) -> bool {
        let group = platform.system_page() / PAGE_SIZE;
        let Some((number, set, huge)) = self.take_idle(old_enough, now, group) else {
            return false;
        };
        if huge {
            let start = self.arena.address(PageIndex(number * BLOCK_PAGES as u32));
            // SAFETY: committed.
            unsafe { platform.back(start, BLOCK_BYTES, Backing::Small) };
        }
        let whole = set == [u64::MAX; BLOCK_PAGES / 64];
        // The thread that lets the range grow may be the one that was interrupted.
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
        // What stays dirty goes behind all others: the list is ordered by last use.
        if block.in_dirty {
            self.unlink_dirty(&mut lists, number);
        }
        self.recount(&mut lists, number);
        true
    }

    /// Takes the free dirty pages of the block that was used least recently out, as far as they are
    /// in aligned groups of `group` free pages; also tells whether they are a part of a huge page.
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
        // All of an empty block goes at once, so that its descriptors can go too.
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
