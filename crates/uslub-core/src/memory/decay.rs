//! Decay: free dirty pages go back to the system after a time.
//!
//! | trigger | free dirty pages go back when free for |
//! |---|---|
//! | periodic check | `decay_ms` |
//! | dirty pages beyond 64, 1/32 of those in use and the budget | `decay_ms / 10` |
//! | resident pages exceed their peak by 64 | 2 ms |
//! | a run of more than 64 pages, or a mapping, raises the peak | at once |
//!
//! At a peak, pages that demand wants are purged lazily instead (`demand`): they stay dirty, but
//! the system may take them until they are used. They do not count for the peak.
//!
//! The zone lists blocks with free dirty pages by last use, the lazy ones first. A purge takes the
//! pages out of the oldest block, gives them back to the system with no lock held, and returns them
//! as clean pages.
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
    DECAY_SURPLUS_PART, DECAY_UNFRUITFUL_BLOCKS, DEMAND_SHARE,
};
use crate::sync::time::{age_of_low, is_due};

/// Pages that were taken out of a block to leave it.
struct Idle {
    /// The block.
    number: u32,
    /// Time of its last use in milliseconds, the low 32 bits.
    since: u32,
    /// The pages.
    set: block::PageSet,
    /// Whether the system only may take them.
    lazily: bool,
}

impl Idle {
    fn page(&self, first: usize) -> PageIndex {
        PageIndex((self.number as usize * BLOCK_PAGES + first) as u32)
    }
}

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
        let share = self.used.load(Relaxed) / DECAY_SHARE;
        let surplus = dirty > DECAY_FLOOR_PAGES + share + self.budget();
        // Relaxed: a hint. Within one millisecond no page becomes older.
        if surplus && is_due(now, self.next_surplus.load(Relaxed), 1) {
            let old_enough = |age| age >= decay_ms / DECAY_SURPLUS_PART;
            match self.purge_first(platform, old_enough, now) {
                Some(pages) => self.demand.on_eviction(pages, now),
                // Relaxed: a hint.
                None => self.next_surplus.store(now.saturating_add(1), Relaxed),
            }
        }
        // Relaxed: at worst two threads check.
        if dirty > 0 && is_due(now, self.next_decay.load(Relaxed), look_period(decay_ms)) {
            self.demand.expire(now);
            self.decay(platform, now, decay_ms);
        }
    }

    /// Whether `pages`, plus the pages of mappings, exceed the peak by `DECAY_GROWN_PAGES`.
    pub(super) fn is_peak(&self, pages: usize) -> bool {
        // Relaxed, both: at worst the peak lags a step behind.
        pages + self.mapped_pages.load(Relaxed) >= self.peak_pages.load(Relaxed) + DECAY_GROWN_PAGES
    }

    /// Idle pages that demand may keep.
    fn budget(&self) -> usize {
        // Relaxed: a peek, may be stale.
        let most = self.used.load(Relaxed) / DEMAND_SHARE;
        self.demand.budget().min(most)
    }

    /// Free dirty pages without the lazy ones.
    pub(super) fn firm_dirty(&self) -> usize {
        // Relaxed, both: peeks, may be stale.
        self.dirty
            .load(Relaxed)
            .saturating_sub(self.lazy.load(Relaxed))
    }

    /// Evicts idle pages if the resident pages have reached a new peak. `pages` are handed out, or
    /// dirty and not lazy; `taken` of them were just handed out. A run of more than
    /// `DECAY_GROWN_PAGES` pages evicts pages of any age.
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
    pub fn update_mapped(&self, platform: &P, bytes: usize) {
        let now = bytes / PAGE_SIZE;
        // Relaxed: at worst two threads check.
        if now <= self.mapped_pages.swap(now, Relaxed) {
            return;
        }
        // Relaxed: peeks, may be stale.
        let resident = || self.used.load(Relaxed) + self.firm_dirty() + now;
        let more = resident().saturating_sub(self.peak_pages.load(Relaxed));
        if more > 0 {
            self.evict_idle(platform, more, |_| true);
            // Relaxed: the peak only grows here.
            self.peak_pages.fetch_max(resident(), Relaxed);
        }
    }

    /// Evicts about `pages` free dirty pages, the oldest first, and leaves
    /// [`DECAY_EVICTION_LEAVES_PAGES`]. Returns whether it evicted any.
    fn evict_idle(&self, platform: &P, pages: usize, old_enough: impl Fn(u64) -> bool) -> bool {
        let before = self.firm_dirty();
        let goal = DECAY_EVICTION_LEAVES_PAGES.max(before.saturating_sub(pages));
        if before <= goal {
            return false;
        }
        let now = platform.now_ms();
        // Lazy pages may have to go before others: that counts too. Relaxed: a peek, may be stale.
        let count = || (self.firm_dirty(), self.dirty.load(Relaxed));
        let (mut firm, mut all) = count();
        let mut unfruitful = 0;
        while firm > goal && self.evict_first(platform, &old_enough, now) {
            let last = firm + all;
            (firm, all) = count();
            unfruitful += usize::from(firm + all >= last);
            if unfruitful == DECAY_UNFRUITFUL_BLOCKS {
                break;
            }
        }
        firm < before
    }

    /// Gives back free dirty pages that have not been used for `decay_ms` milliseconds; `now` is
    /// the time in milliseconds.
    pub fn decay(&self, platform: &P, now: u64, decay_ms: u64) {
        // Relaxed: at worst two threads check.
        self.next_decay
            .store(now.saturating_add(look_period(decay_ms)), Relaxed);
        let pages = self.purge_older(platform, |age| age >= decay_ms, now);
        self.demand.on_decay(pages);
    }

    /// Gives back all free dirty pages.
    pub fn purge(&self, platform: &P) {
        self.drain_pending(&mut self.lists.lock(), platform);
        let now = platform.now_ms();
        self.purge_older(platform, |_| true, now);
    }

    /// Gives back the free dirty pages of all blocks that are old enough; returns how many.
    fn purge_older(&self, platform: &P, old_enough: impl Fn(u64) -> bool, now: u64) -> usize {
        let mut pages = 0;
        // Bounded: blocks that other threads dirty meanwhile wait for the next call.
        for _ in 0..=self.arena.limit() / BLOCK_PAGES {
            match self.purge_first(platform, &old_enough, now) {
                Some(more) => pages += more,
                None => break,
            }
        }
        pages
    }

    /// Evicts the free dirty pages of one block, if it is old enough: as far as demand says, the
    /// system may take those of the least recently used block that is not lazy; otherwise those of
    /// the least recently used block go back. Returns whether there was a block.
    fn evict_first(&self, platform: &P, old_enough: impl Fn(u64) -> bool, now: u64) -> bool {
        let Some(idle) = self.take_idle(platform, old_enough, now, self.budget()) else {
            return false;
        };
        if idle.lazily {
            self.purge_lazily(platform, &idle);
        } else {
            let pages = self.give_back(platform, &idle, now);
            self.demand.on_eviction(pages, now);
        }
        true
    }

    /// Gives back the free dirty pages of the least recently used block, if it is old enough;
    /// returns how many.
    fn purge_first(
        &self,
        platform: &P,
        old_enough: impl Fn(u64) -> bool,
        now: u64,
    ) -> Option<usize> {
        let idle = self.take_idle(platform, old_enough, now, 0)?;
        Some(self.give_back(platform, &idle, now))
    }

    /// Lets the system take the pages of a block when it needs memory.
    fn purge_lazily(&self, platform: &P, idle: &Idle) {
        block::any_run(&idle.set, |first, count| {
            let start = self.arena.address(idle.page(first));
            // SAFETY: committed, and taken out of the free pages by us.
            unsafe { platform.purge_lazily(start, count * PAGE_SIZE) };
            false
        });
        let mut lists = self.lists.lock();
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(idle.number) };
        for w in 0..idle.set.len() {
            block.free[w] |= idle.set[w];
            block.lazy[w] |= idle.set[w] & block.dirty[w];
        }
        // Pages that were freed meanwhile are younger.
        let is_older = !block.in_dirty || block.dirty_since == idle.since;
        self.recount(&mut lists, idle.number);
        // SAFETY: as above; a new reference, since `recount` made one of its own.
        if is_older && unsafe { self.arena.block(idle.number) }.in_dirty {
            self.move_to_lazy(&mut lists, idle.number);
        }
    }

    /// Gives the pages of a block back to the system; returns how many.
    fn give_back(&self, platform: &P, idle: &Idle, now: u64) -> usize {
        let whole = idle.set == [u64::MAX; BLOCK_PAGES / 64];
        // `try_lock`: the code that this thread interrupted may hold the growth lock.
        if whole
            && self.arena.is_lean()
            && self.arena.is_in_hole()
            && let Some(_growth) = self.growth.try_lock()
            && self.retire(platform, idle.number)
        {
            return BLOCK_PAGES;
        }
        if whole {
            self.arena.purge_descriptors(platform, idle.number);
        }
        let (mut clean, mut pages) = ([0u64; BLOCK_PAGES / 64], 0);
        block::any_run(&idle.set, |first, count| {
            let start = self.arena.address(idle.page(first));
            // SAFETY: committed, and taken out of the free pages by us.
            if unsafe { platform.purge(start, count * PAGE_SIZE) } {
                block::fill(&mut clean, first, count, true);
                pages += count;
            }
            false
        });
        let mut lists = self.lists.lock();
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(idle.number) };
        for (w, clean) in clean.into_iter().enumerate() {
            block.free[w] |= idle.set[w];
            block.dirty[w] &= !clean;
            block.lazy[w] &= !clean;
        }
        block.dirty_since = now as u32;
        // A block that is still dirty goes to the end: the list is ordered by last use.
        if block.in_dirty {
            self.unlink_dirty(&mut lists, idle.number);
        }
        self.recount(&mut lists, idle.number);
        pages
    }

    /// Takes free dirty pages out of the least recently used block, only whole system pages: of the
    /// first that is not lazy, if lazy pages are no more than `budget` then. A huge page in their
    /// place is split.
    #[inline(never)]
    fn take_idle(
        &self,
        platform: &P,
        old_enough: impl Fn(u64) -> bool,
        now: u64,
        budget: usize,
    ) -> Option<Idle> {
        let group = platform.system_page() / PAGE_SIZE;
        let mut lists = self.lists.lock();
        let firm = lists.firm_head;
        let lazily = firm != NO_BLOCK && {
            // SAFETY: we hold the page lock.
            let (dirty, lazy) = unsafe { self.arena.block(firm) }.counts();
            lists.nr_lazy + (dirty - lazy) <= budget
        };
        let number = if lazily { firm } else { lists.dirty_head };
        if number == NO_BLOCK {
            return None;
        }
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(number) };
        let since = block.dirty_since;
        if !lazily && !old_enough(age_of_low(now, since).into()) {
            return None;
        }
        // A free block goes as a whole, so that its descriptors can go too.
        let empty = usize::from(block.nr_free) == BLOCK_PAGES;
        let wanted = match block.free_dirty() {
            _ if block.huge || (empty && !lazily) => block.free,
            dirty if lazily => core::array::from_fn(|w| dirty[w] & !block.lazy[w]),
            dirty => dirty,
        };
        let set = block::groups(&block.free, &wanted, group);
        let splits = block.huge && !empty;
        block.huge &= empty;
        for (free, taken) in block.free.iter_mut().zip(set) {
            *free &= !taken;
        }
        self.recount(&mut lists, number);
        drop(lists);
        if splits {
            let start = self.arena.address(PageIndex(number * BLOCK_PAGES as u32));
            // SAFETY: committed.
            unsafe { platform.set_backing(start, BLOCK_BYTES, Backing::BasePages) };
        }
        Some(Idle {
            number,
            since,
            set,
            lazily,
        })
    }
}
