//! The zone: allocates and frees runs of pages in the arena.
//!
//! A request takes pages in this order:
//!
//! 1. dirty pages of the few blocks used last: they hold memory and need no page fault;
//! 2. pages of the lowest block that can hold the run.
//!
//! Taking the lowest block first keeps used pages together, so blocks above become empty. Blocks
//! are binned by the length of their longest free run, with one bit per block and bin: a search
//! reads few words.
//!
//! Locks: `growth` (the arena grows, blocks become absent or come back) is the outer one; `lists`,
//! the page lock, protects blocks, bins and lists. The zone calls the system without the page lock.
//! The counters `dirty`, `used` and `absent` are copies for lock-free readers. Callers: `request`,
//! `several` and `decay`; the slab layer and `kmalloc` free.

use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::memory::arena::{Arena, PageIndex};
use crate::memory::block::{self, BINS, BLOCK_PAGES, NO_BLOCK};
use crate::memory::page_runs::Runs;
use crate::memory::want::{Found, Want};
use crate::platform::{PAGE_SIZE, Platform};
use crate::policy::{BLOCK_SCAN_MAX, PEAK_FLOOR_PAGES};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use crate::sync::{DeferStack, Lock, RawLock};

/// Lists of blocks, under the page lock.
pub struct Lists {
    pub(super) dirty_head: u32,
    dirty_tail: u32,
    pub(super) nr_dirty: usize,
    pub(super) nr_used: usize,
    /// How many blocks were added, modulo 2^32.
    pub(super) growths: u32,
}

/// A run of pages that was handed out.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// First page.
    pub page: PageIndex,
    /// Whether all bytes are zero.
    pub zero: bool,
    /// Memory node.
    pub node: u8,
    /// Number of runs of the requested length that follow each other here.
    pub runs: u16,
}

/// The page allocator over an [`Arena`].
pub struct Zone<P> {
    /// The addresses.
    pub arena: Arena,
    pub(super) lists: Lock<P, Lists>,
    /// Held while the arena grows: one thread asks the system, the others wait for its answer.
    pub(super) growth: Lock<P, ()>,
    /// Free dirty pages; a copy for lock-free readers.
    pub(super) dirty: AtomicUsize,
    /// Pages handed out; a copy for lock-free readers.
    pub(super) used: AtomicUsize,
    /// Runs freed in a context that may not wait, by the numbers of their first pages.
    pub(super) pending: DeferStack<{ NO_BLOCK as usize }>,
    /// Absent blocks; changed under the growth lock.
    pub(super) absent: AtomicUsize,
    /// Whether a block became free after the last check for surplus free blocks.
    emptied: AtomicBool,
    /// Pages of mappings outside the arena.
    pub(super) mapped_pages: AtomicUsize,
    /// Peak of the pages handed out, dirty or in mappings, in steps.
    pub(super) peak_pages: AtomicUsize,
    /// The peak when cached mappings were last evicted for it.
    pub(super) peak_seen: AtomicUsize,
    /// Pages of a run that raised the resident pages to a new peak, until idle pages are evicted
    /// for it; 0 for none.
    pub(super) peak_run: AtomicUsize,
    /// Time of the next check for pages that have been free for too long, in milliseconds.
    pub(super) next_decay: AtomicU64,
    /// Time of the next check for surplus dirty pages, in milliseconds.
    pub(super) next_surplus: AtomicU64,
    /// Blocks from this number on are backed by huge pages.
    pub(super) thp_from: AtomicU32,
}

pub(super) fn bin_of(longest: usize) -> usize {
    if longest == 0 {
        0
    } else {
        longest.ilog2() as usize + 1
    }
}

impl<P: Platform> Zone<P> {
    /// A zone without pages.
    pub(crate) const fn new() -> Self {
        Self {
            arena: Arena::new(),
            lists: Lock::new(Lists {
                dirty_head: NO_BLOCK,
                dirty_tail: NO_BLOCK,
                nr_dirty: 0,
                nr_used: 0,
                growths: 0,
            }),
            growth: Lock::new(()),
            dirty: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            pending: DeferStack::new(),
            absent: AtomicUsize::new(0),
            emptied: AtomicBool::new(false),
            mapped_pages: AtomicUsize::new(0),
            peak_pages: AtomicUsize::new(PEAK_FLOOR_PAGES),
            peak_seen: AtomicUsize::new(0),
            peak_run: AtomicUsize::new(0),
            next_decay: AtomicU64::new(0),
            next_surplus: AtomicU64::new(0),
            thp_from: AtomicU32::new(NO_BLOCK),
        }
    }

    #[inline]
    pub(super) fn take(&self, lists: &mut Lists, want: Want) -> Option<Run> {
        match self.take_dirty(lists, want) {
            None => {
                let (number, found) = self.look_for(want)?;
                Some(self.claim_found(lists, number, found, want))
            }
            run => run,
        }
    }

    /// The lowest block that can hold the request, and the place in it. The caller holds the page
    /// lock.
    #[inline(never)]
    fn look_for(&self, want: Want) -> Option<(u32, Found)> {
        let mut least = bin_of(want.count());
        // Blocks from this bin on surely hold it; a free block holds any request.
        let sure = (bin_of(want.count().max(want.align())) + 1).min(BINS - 1);
        let mut misses = 0;
        let blocks = (self.arena.limit() / BLOCK_PAGES) as u32;
        for group in 0..blocks.div_ceil(64) {
            let mut candidates = self.candidates(group, least);
            while candidates != 0 {
                let number = group * 64 + candidates.trailing_zeros();
                // SAFETY: we hold the page lock; the reference ends with the iteration.
                let block = unsafe { self.arena.block(number) };
                candidates &= candidates - 1;
                if !want.accepts(block) {
                    continue;
                }
                if let Some(found) = want.find(&block.free) {
                    return Some((number, found));
                }
                self.recount_longest(number);
                misses += 1;
                if misses == BLOCK_SCAN_MAX && least < sure {
                    least = sure;
                    candidates &= self.candidates(group, least);
                }
            }
        }
        None
    }

    /// Moves a block whose `longest` was too high to its bin. The caller holds the page lock.
    #[inline(never)]
    fn recount_longest(&self, number: u32) {
        // SAFETY: the caller holds the page lock, and has no reference to the block.
        unsafe { self.arena.block(number) }.recount();
        self.rebin(number);
    }

    /// Takes pages that hold memory, from the blocks used last: they need no page fault, and the
    /// pages of blocks used long ago can go back to the system.
    #[inline(never)]
    pub(super) fn take_dirty(&self, lists: &mut Lists, want: Want) -> Option<Run> {
        if lists.nr_dirty < want.count() {
            return None;
        }
        let mut number = lists.dirty_tail;
        for _ in 0..BLOCK_SCAN_MAX {
            if number == NO_BLOCK {
                break;
            }
            // SAFETY: we hold the page lock; the reference ends before the next.
            let block = unsafe { self.arena.block(number) };
            if want.accepts(block)
                && usize::from(block.nr_dirty) >= want.count()
                && let Some(found) = want.find_dirty(block)
            {
                return Some(self.claim_found(lists, number, found, want));
            }
            number = block.dirty_prev;
        }
        None
    }

    /// Hands out the pages that a search found in a block.
    fn claim_found(&self, lists: &mut Lists, number: u32, found: Found, want: Want) -> Run {
        let count = usize::from(found.runs) * want.count();
        let run = self.claim(lists, number, found.first.into(), count);
        Run {
            runs: found.runs,
            ..run
        }
    }

    /// The blocks of a group in the bins from `least` on, one bit each.
    #[inline(never)]
    fn candidates(&self, group: u32, least: usize) -> u64 {
        if least >= BINS {
            return 0;
        }
        // SAFETY: the caller holds the page lock.
        let bins = unsafe { &self.arena.group(group).bins };
        bins[least..BINS].iter().fold(0, |all, bin| all | bin)
    }

    #[inline(never)]
    pub(super) fn claim(&self, lists: &mut Lists, number: u32, first: usize, count: usize) -> Run {
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(number) };
        let zero = block::count_in(&block.dirty, first, count) == 0;
        let dirty = block.nr_dirty;
        block.claim(first, count);
        let (page, node) = ((number as usize * BLOCK_PAGES + first) as u32, block.node);
        lists.nr_used += count;
        self.update_lists(lists, number, dirty);
        Run {
            page: PageIndex(page),
            zero,
            node,
            runs: 1,
        }
    }

    /// Frees `count` pages; gives pages back to the system that have been free for `decay_ms`
    /// milliseconds.
    pub fn free(&self, platform: &P, page: PageIndex, count: usize, decay_ms: u64) {
        let now = self.free_run(platform, page, count);
        self.after_free(platform, now, decay_ms);
    }

    /// In a function of its own: the batch takes much stack.
    #[inline(never)]
    fn free_run(&self, platform: &P, page: PageIndex, count: usize) -> u64 {
        let mut runs = Runs::default();
        runs.add(page, count);
        self.free_runs(platform, &runs)
    }

    /// Gives surplus free blocks and old free pages back to the system. Call after
    /// [`free_runs`](Self::free_runs), with the time `now` that it returned.
    pub fn after_free(&self, platform: &P, now: u64, decay_ms: u64) {
        // Relaxed, both: a hint. It persists until a thread may call the system.
        if self.emptied.load(Relaxed) && self.emptied.swap(false, Relaxed) {
            self.retire_surplus(platform);
        }
        self.decay_if_due(platform, now, decay_ms);
    }

    /// Frees a batch of runs under one hold of the page lock; gives nothing back to the system.
    /// Returns the time in milliseconds.
    #[inline(never)]
    pub fn free_runs(&self, platform: &P, runs: &Runs) -> u64 {
        let now = platform.now_ms();
        let mut lists = self.lists.lock();
        self.drain_pending(&mut lists, platform);
        for (page, count) in runs.iter() {
            self.give(&mut lists, page, count, now);
        }
        now
    }

    /// Frees a run without waiting: the next thread that holds the page lock frees it. The caller
    /// owns the first page's descriptor, which holds the run's length and its link.
    pub fn push_pending(&self, page: PageIndex, count: usize) {
        let slab = self.arena.slab(page);
        slab.set_pages(count as u16);
        let link = |next| slab.set_next(next as u32);
        self.pending.push(page.0 as usize, link);
    }

    /// Frees the pending runs; under the page lock.
    pub(super) fn drain_pending(&self, lists: &mut Lists, platform: &P) {
        // A peek: a run pushed now waits for the next holder.
        if self.pending.is_empty() {
            return;
        }
        let now = platform.now_ms();
        let slab = |page| self.arena.slab(PageIndex(page as u32));
        let give = |page| {
            let count = slab(page).pages().into();
            self.give(lists, PageIndex(page as u32), count, now);
        };
        self.pending.drain(|page| slab(page).next() as usize, give);
    }

    pub(super) fn give(&self, lists: &mut Lists, page: PageIndex, count: usize, now: u64) {
        let number = page.0 / BLOCK_PAGES as u32;
        let first = page.0 as usize % BLOCK_PAGES;
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(number) };
        debug_assert_eq!(block::count_in(&block.free, first, count), 0);
        let dirty = block.nr_dirty;
        block.give(first, count);
        block.dirty_since = now as u32;
        if usize::from(block.nr_free) == BLOCK_PAGES {
            // Relaxed: a hint.
            self.emptied.store(true, Relaxed);
        }
        // To the end: the list is ordered by last use.
        if block.in_dirty {
            self.unlink_dirty(lists, number);
        }
        lists.nr_used -= count;
        self.update_lists(lists, number, dirty);
    }

    /// Takes `more` pages behind a run of `count` pages, so that the run grows in place. The pages
    /// must be free and in the run's last block. Returns whether all of the new pages are zero.
    pub fn extend(&self, page: PageIndex, count: usize, more: usize, gfp: Gfp) -> Option<bool> {
        let end = page.0 as usize + count;
        let (number, first) = ((end / BLOCK_PAGES) as u32, end % BLOCK_PAGES);
        if first == 0 || first + more > BLOCK_PAGES {
            return None;
        }
        let mut lists = self.lists.lock_if(gfp.may_spin())?;
        // SAFETY: we hold the page lock; the reference ends before the next.
        let block = unsafe { self.arena.block(number) };
        if block::count_in(&block.free, first, more) != more {
            return None;
        }
        Some(self.claim(&mut lists, number, first, more).zero)
    }

    /// Whether a page is free.
    pub fn is_free(&self, page: PageIndex) -> bool {
        let _lists = self.lists.lock();
        // SAFETY: we hold the page lock.
        let block = unsafe { self.arena.block(page.0 / BLOCK_PAGES as u32) };
        let first = page.0 as usize % BLOCK_PAGES;
        block::count_in(&block.free, first, 1) == 1
    }

    /// Bytes of free pages that may still hold memory; may be stale.
    #[inline]
    pub fn dirty_bytes(&self) -> usize {
        // Relaxed: a peek, may be stale.
        self.dirty.load(Relaxed) * PAGE_SIZE
    }

    /// Absent blocks; may be stale.
    pub fn nr_absent(&self) -> usize {
        // Relaxed: a peek, may be stale.
        self.absent.load(Relaxed)
    }

    /// Bytes handed out; may be stale.
    pub fn used_bytes(&self) -> usize {
        // Relaxed: a peek, may be stale.
        self.used.load(Relaxed) * PAGE_SIZE
    }

    /// The locks without their values, for a fork: the outer one first.
    pub fn raw_locks(&self) -> [&RawLock<P>; 2] {
        [self.growth.raw(), self.lists.raw()]
    }

    /// Updates counts and lists after a change of a block's sets.
    pub(super) fn recount(&self, lists: &mut Lists, number: u32) {
        // SAFETY: the caller holds the page lock (it has the lists).
        let block = unsafe { self.arena.block(number) };
        let dirty = block.nr_dirty;
        block.recount();
        self.update_lists(lists, number, dirty);
    }

    /// Updates lists and sums after a change of a block's counts. The block had `before` dirty
    /// pages.
    fn update_lists(&self, lists: &mut Lists, number: u32, before: u16) {
        // SAFETY: the caller holds the page lock (it has the lists), and no other reference lives.
        let now = unsafe { self.arena.block(number) }.nr_dirty;
        lists.nr_dirty = lists.nr_dirty - usize::from(before) + usize::from(now);
        // Relaxed: copies for lock-free readers.
        self.dirty.store(lists.nr_dirty, Relaxed);
        self.used.store(lists.nr_used, Relaxed);
        self.rebin(number);
        // SAFETY: as above; a new reference, since `rebin` made one of its own.
        let block = unsafe { self.arena.block(number) };
        match (block.in_dirty, block.nr_dirty > 0) {
            (false, true) => self.link_dirty(lists, number),
            (true, false) => self.unlink_dirty(lists, number),
            _ => {}
        }
    }

    pub(super) fn rebin(&self, number: u32) {
        // SAFETY: the caller holds the page lock.
        let (block, group) = unsafe { (self.arena.block(number), self.arena.group(number / 64)) };
        let (old, new) = (usize::from(block.bin), bin_of(usize::from(block.longest)));
        if old != new {
            let bit = 1 << (number % 64);
            group.bins[old] &= !bit;
            group.bins[new] |= bit;
            block.bin = new as u8;
        }
    }

    fn link_dirty(&self, lists: &mut Lists, number: u32) {
        let tail = lists.dirty_tail;
        // SAFETY: the caller holds the page lock.
        let b = unsafe { self.arena.block(number) };
        (b.dirty_prev, b.dirty_next, b.in_dirty) = (tail, NO_BLOCK, true);
        match tail {
            NO_BLOCK => lists.dirty_head = number,
            // SAFETY: as above; another block.
            _ => unsafe { self.arena.block(tail) }.dirty_next = number,
        }
        lists.dirty_tail = number;
    }

    pub(super) fn unlink_dirty(&self, lists: &mut Lists, number: u32) {
        // SAFETY: the caller holds the page lock.
        let b = unsafe { self.arena.block(number) };
        let (prev, next) = (b.dirty_prev, b.dirty_next);
        b.in_dirty = false;
        match prev {
            NO_BLOCK => lists.dirty_head = next,
            // SAFETY: as above; another block.
            _ => unsafe { self.arena.block(prev) }.dirty_next = next,
        }
        match next {
            NO_BLOCK => lists.dirty_tail = prev,
            // SAFETY: as above; another block.
            _ => unsafe { self.arena.block(next) }.dirty_prev = prev,
        }
    }
}
