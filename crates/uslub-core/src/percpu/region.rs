//! The words of one CPU: where it keeps its sheaves, and its counters.
//!
//! Each CPU (or concurrency id) that ever ran a slow path owns a [`Region`]. The
//! [table](crate::percpu::Table), indexed by the CPU, leads to it. For each cache a region has
//! counters and three words: main, spare and rcu ([`slot`](crate::percpu::slot) has their states).
//!
//! Only the CPU that owns a word changes it, by one store: in a restartable sequence, or under the
//! word's lock bit on platforms without sequences. To take a sheaf, a thread replaces its top by a
//! sentinel. The thread then owns the sheaf without a lock and may be preempted; other threads of
//! this CPU get another sheaf.
//!
//! A cache's words main and spare and its counts of allocations and frees are adjacent, so a call
//! writes to one cache line. (With the counts in lines of their own, two alternating sizes took a
//! quarter longer on a Zen 4.)
//!
//! A region is made of pages: page k serves the caches with index 128·k … 128·k+127. A program with
//! few caches touches one page per CPU. Callers: the platform changes words, `cache::drain` those
//! of stopped CPUs.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::layout::{Row, rows};
use crate::percpu::stats::{STAT_SLOTS, StatItem};
use crate::platform::PAGE_SIZE;
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// Caches that one page of a region serves.
pub(crate) const CACHES_A_PAGE: usize = 128;
/// Pages of a region.
pub(super) const REGION_PAGES: usize = 16;
/// Adjacent words of a cache, 8 bytes each.
pub const CACHE_WORDS: usize = 4;
/// Words from a cache's main word to its rcu word. Few caches use it, so it lies in another page.
pub(super) const TO_RCU: usize = CACHE_WORDS * CACHES_A_PAGE;
/// Words of a region page: 4096 bytes of main words, 4096 bytes of rcu words.
pub(super) const PAGE_WORDS: usize = 2 * TO_RCU;
/// Most caches of an allocator, plus one (index 0 means no cache).
pub const MAX_CACHES: usize = CACHES_A_PAGE * REGION_PAGES;

/// Bytes from a cache's main word to its count of allocations.
pub const ALLOCS_OFFSET: usize = 16;
/// Bytes from a cache's main word to its count of frees, and from its rcu word to the count of
/// objects put into its rcu sheaf.
pub const FREES_OFFSET: usize = 24;
/// Byte offset in a page from which words lie that fast paths only read. At these offsets a region
/// has the words of caches 96 and up, which few programs have. The reason is 4 KiB aliasing: a
/// processor takes a load for one of a recent store at the same page offset, and waits.
pub const APART: usize = PAGE_SIZE / 4 * 3;

const _: () = assert!(8 * TO_RCU == PAGE_SIZE);

/// Identity of a cache: the index of its main word in a region, never 0.
///
/// The page map stores it, so a free finds its slot without another lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheId(u16);

impl CacheId {
    /// The identity of the cache with this index, from 1.
    pub const fn from_index(index: usize) -> Self {
        assert!(index > 0 && index < MAX_CACHES);
        Self((index / CACHES_A_PAGE * PAGE_WORDS + index % CACHES_A_PAGE * CACHE_WORDS) as u16)
    }

    /// The identity of a size class, from 1: the classes are the first caches, and their words lie
    /// in one page of a region.
    #[inline]
    pub const fn of_class(class: u8) -> Self {
        Self(class as u16 * CACHE_WORDS as u16)
    }

    /// The identity as the page map stores it; `None` for 0.
    #[inline]
    pub const fn from_raw(raw: u16) -> Option<Self> {
        if raw == 0 { None } else { Some(Self(raw)) }
    }

    /// The identity as the page map stores it.
    #[inline]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// The index, from 1.
    #[inline]
    pub const fn index(self) -> usize {
        let (page, word) = (self.0 as usize / PAGE_WORDS, self.0 as usize % PAGE_WORDS);
        page * CACHES_A_PAGE + word / CACHE_WORDS
    }

    /// The word of the main sheaf.
    #[inline]
    pub const fn main(self) -> Slot {
        Slot(self.0)
    }

    /// The word of the rcu sheaf.
    #[inline]
    pub const fn rcu(self) -> Slot {
        Slot(self.0 + TO_RCU as u16)
    }

    /// The word of the spare sheaf.
    #[inline]
    pub const fn spare(self) -> Slot {
        Slot(self.0 + 1)
    }
}

/// Index of a word in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub(super) u16);

impl Slot {
    /// The main word of no cache: in every region it holds a sheaf without room.
    pub(crate) const NO_CACHE: Slot = Slot(0);

    /// Bytes from the region's start.
    #[inline]
    pub const fn offset(self) -> usize {
        self.0 as usize * 8
    }
}

/// The index of a cache's first slow-path counter in a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters(u32);

impl Counters {
    /// The counters of a cache.
    pub(crate) const fn of(cache: CacheId) -> Self {
        Self((cache.index() * STAT_SLOTS) as u32)
    }

    /// The counter of an item.
    #[inline]
    pub(crate) const fn counter(self, item: StatItem) -> Counter {
        Counter(self.0 as usize + item as usize)
    }
}

/// The index of one slow-path counter in a region.
#[derive(Clone, Copy, Debug)]
pub struct Counter(usize);

impl Counter {
    /// Bytes from the region's start.
    #[inline]
    pub const fn offset(self) -> usize {
        core::mem::offset_of!(Region, stats) + 8 * self.0
    }
}

/// The words and counters of one CPU.
#[repr(C, align(4096))]
pub struct Region {
    pub(super) words: [AtomicUsize; PAGE_WORDS * REGION_PAGES],
    pub(super) stats: [AtomicU64; STAT_SLOTS * MAX_CACHES],
    pub(super) capacity_states: [AtomicU64; MAX_CACHES],
}

impl Region {
    pub(crate) const ROWS: &'static [Row] = rows!("Region", Self, [words, stats]);

    /// The word of a slot.
    #[inline]
    pub fn word(&self, slot: Slot) -> &AtomicUsize {
        &self.words[slot.0 as usize]
    }

    /// Peeks at a slot. Bit 0 may be a lock.
    #[inline]
    pub(crate) fn peek(&self, slot: Slot) -> usize {
        // Acquire: the caller may read the sheaf's capacity; a later compare-and-swap confirms the
        // rest.
        self.word(slot).load(Acquire)
    }

    /// Objects allocated (`.0`) and freed (`.1`) through this CPU's sheaves of a cache.
    pub fn counts(&self, id: CacheId) -> (u64, u64) {
        let at = id.0 as usize;
        // Relaxed: statistics.
        (
            self.words[at + ALLOCS_OFFSET / 8].load(Relaxed) as u64,
            self.words[at + FREES_OFFSET / 8].load(Relaxed) as u64,
        )
    }

    /// A slow-path counter.
    #[inline]
    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        &self.stats[counter.0]
    }

    /// The CPU's capacity state of a cache; see [`capacity`](crate::sheaf::capacity).
    #[inline]
    pub(crate) fn capacity_state(&self, id: CacheId) -> &AtomicU64 {
        &self.capacity_states[id.index()]
    }

    pub(crate) fn count(&self, slot: Slot, offset: usize, n: usize) {
        // Relaxed: statistics, racy as the kernel's.
        self.words[slot.0 as usize + offset / 8].fetch_add(n, Relaxed);
    }

    /// Objects put into this CPU's rcu sheaf of a cache.
    pub fn rcu_count(&self, id: CacheId) -> u64 {
        // Relaxed: statistics.
        self.words[id.rcu().0 as usize + FREES_OFFSET / 8].load(Relaxed) as u64
    }

    /// Sets the unset rcu words of all caches of one region page.
    pub(super) fn fill_rcu(&self, page: usize, rcu: usize) {
        for i in 0..CACHES_A_PAGE {
            // Relaxed: published with the region, or before a cache of this page uses them.
            let _ = self.words[page * PAGE_WORDS + TO_RCU + CACHE_WORDS * i]
                .compare_exchange(0, rcu, Relaxed, Relaxed);
        }
    }

    /// Sets the words of all caches of one region page.
    pub(super) fn fill_page(&self, page: usize, main: usize, spare: usize) {
        for i in 0..CACHES_A_PAGE {
            let at = page * PAGE_WORDS + CACHE_WORDS * i;
            // Relaxed: published with the region, or before a cache of this page is.
            self.words[at].store(main, Relaxed);
            self.words[at + 1].store(spare, Relaxed);
        }
    }
}
