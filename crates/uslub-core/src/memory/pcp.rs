//! Pages that each CPU keeps: the runs of large objects freed there, for the next objects of the
//! same length (the kernel's `per_cpu_pages`).
//!
//! Without them each large object takes the page lock twice, which all CPUs share. A run is in one
//! of three states:
//!
//! | the run | kind of its first page | the zone says |
//! |---|---|---|
//! | of a live object | `Large` | handed out |
//! | kept by a CPU | `Kept` | handed out |
//! | free | `None` | free and dirty |
//!
//! A CPU has a list with a lock of its own, and nobody waits for that lock: a thread that finds it
//! held asks the zone. Under it nothing is locked, and the system is not called. CPUs beyond
//! [`PCP_LISTS`] share lists. A list that is full gives its older half to the zone, under one
//! hold of the page lock. A list that was not used for a period gives all. A list without a run of
//! the length takes several from the zone, the more the longer its CPU only allocates; only pages
//! that hold memory already, so that nothing is resident that would not be.
//!
//! The lists count the calls for objects without a cache, too: a counter that all CPUs write costs
//! as much as the lock. Callers: `kmalloc`, for large objects; `cache`, for statistics and to empty
//! the lists.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;

use crate::layout::{Row, rows};
use crate::memory::metadata::MetadataStore;
use crate::memory::{Arena, PageIndex, PageKind, Runs};
use crate::platform::{PAGE_SIZE, Platform};
use crate::policy::{PCP_BATCH_MAX, PCP_CHECK_FREES, PCP_LIST_RUNS, PCP_LISTS, PCP_RUN_MAX_PAGES};
use crate::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use crate::sync::time::claim;
use crate::sync::{Lock, RawLock};

/// The runs of a list, the oldest first.
struct Kept {
    firsts: [u32; PCP_LIST_RUNS],
    counts: [u8; PCP_LIST_RUNS],
    nodes: [u8; PCP_LIST_RUNS],
    len: usize,
    /// Logarithm to base 2 of the runs of the next refill; each refill adds one, a free clears it.
    alloc_factor: u8,
    /// Whether the list was used since the last check.
    used: bool,
}

// A run's length and its node fit into a byte.
const _: () = assert!(PCP_RUN_MAX_PAGES < 256 && crate::memory::MAX_NODES <= 256);

impl Kept {
    /// Takes the newest run of `pages` pages of a node.
    fn take(&mut self, pages: usize, nid: usize) -> Option<PageIndex> {
        let fits =
            |&i: &usize| (usize::from(self.counts[i]), usize::from(self.nodes[i])) == (pages, nid);
        let at = (0..self.len).rev().find(fits)?;
        let first = self.firsts[at];
        self.firsts.copy_within(at + 1..self.len, at);
        self.counts.copy_within(at + 1..self.len, at);
        self.nodes.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(PageIndex(first))
    }

    fn push(&mut self, page: PageIndex, pages: usize, nid: usize) {
        self.firsts[self.len] = page.0;
        self.counts[self.len] = pages as u8;
        self.nodes[self.len] = nid as u8;
        self.len += 1;
    }

    /// Moves the oldest runs to `out`, while it has room, until `most` pages or fewer are left.
    fn evict(&mut self, most: usize, out: &mut Runs, leaves: impl Fn(PageIndex)) {
        let mut left = self.pages();
        let mut gone = 0;
        while gone < self.len && left > most && !out.is_full() {
            let (page, pages) = (PageIndex(self.firsts[gone]), usize::from(self.counts[gone]));
            leaves(page);
            out.add(page, pages);
            left -= pages;
            gone += 1;
        }
        self.firsts.copy_within(gone..self.len, 0);
        self.counts.copy_within(gone..self.len, 0);
        self.nodes.copy_within(gone..self.len, 0);
        self.len -= gone;
    }

    fn pages(&self) -> usize {
        self.counts[..self.len]
            .iter()
            .copied()
            .map(usize::from)
            .sum()
    }
}

/// What a CPU keeps, and its calls.
#[repr(C, align(64))]
pub struct PageList<P> {
    kept: Lock<P, Kept>,
    /// Pages in the list: a copy for readers without the lock.
    pages: AtomicUsize,
    /// Runs that were taken (0) and put (1); under the lock.
    calls: [AtomicUsize; 2],
    /// Other calls without a cache: allocations (0) and frees (1).
    others: [AtomicUsize; 2],
}

/// What became of a run that was freed.
pub(crate) enum Put {
    /// The list keeps it.
    Kept,
    /// The list keeps it, and the caller looks for memory to give back.
    KeptAndCheck,
    /// The list has no room for it.
    Full,
    /// Another thread uses the list.
    InUse,
}

impl<P: Platform> PageList<P> {
    pub(crate) const ROWS: &'static [Row] = rows!("PageList", Self, [pages, calls, others]);

    /// Counts a run that is taken (0) or put (1), under the lock; returns how many there were.
    #[inline]
    fn count(&self, which: usize) -> usize {
        // Relaxed, both: only the holder of the lock changes it.
        let calls = self.calls[which].load(Relaxed);
        self.calls[which].store(calls.wrapping_add(1), Relaxed);
        calls
    }
}

/// The lists of all CPUs.
pub struct PerCpuPages<P> {
    /// The first list; null before [`init`](Self::init), and if there was no memory for them.
    lists: AtomicPtr<PageList<P>>,
    nr_lists: AtomicUsize,
    /// Time of the next check for lists that are not used, in milliseconds.
    next_check: AtomicU64,
    /// Calls without a cache where there is no list: allocations (0) and frees (1).
    calls: [AtomicUsize; 2],
}

impl<P: Platform> PerCpuPages<P> {
    pub(crate) const ROWS: &'static [Row] = rows!("PerCpuPages", Self, [lists, nr_lists, calls]);

    /// No lists.
    pub(crate) const fn new() -> Self {
        Self {
            lists: AtomicPtr::new(null_mut()),
            nr_lists: AtomicUsize::new(0),
            next_check: AtomicU64::new(0),
            calls: [const { AtomicUsize::new(0) }; 2],
        }
    }

    /// Makes the lists. Without memory for them no CPU keeps pages.
    pub(crate) fn init(&self, platform: &P, meta: &MetadataStore<P>) {
        let nr = platform.nr_cpu_ids().min(PCP_LISTS);
        let bytes = nr * size_of::<PageList<P>>();
        let Some(lists) = meta.record(platform, bytes, align_of::<PageList<P>>()) else {
            return;
        };
        // Relaxed, both: published with the allocator. A list of zeroes is empty, and not locked.
        self.lists.store(lists.as_ptr().cast(), Relaxed);
        self.nr_lists.store(nr, Relaxed);
    }

    fn lists(&self) -> &[PageList<P>] {
        // Relaxed, both: set before the allocator was published.
        let (lists, nr) = (self.lists.load(Relaxed), self.nr_lists.load(Relaxed));
        match NonNull::new(lists) {
            // SAFETY: `init` made so many. They are never freed, and consist of cells.
            Some(lists) => unsafe { core::slice::from_raw_parts(lists.as_ptr(), nr) },
            None => &[],
        }
    }

    #[inline]
    fn of(&self, cpu: usize) -> Option<&PageList<P>> {
        let lists = self.lists();
        lists
            .get(cpu)
            .or_else(|| lists.get(cpu % lists.len().max(1)))
    }

    /// A kept run of `pages` pages of node `nid`; `None` if the CPU has none or its list is in use.
    /// Counts the allocation.
    #[inline]
    pub(crate) fn take(&self, cpu: usize, pages: usize, nid: usize) -> Option<PageIndex> {
        let list = self.of(cpu)?;
        // Relaxed: a peek, which spares the lock.
        if list.pages.load(Relaxed) < pages {
            return None;
        }
        let mut kept = list.kept.try_lock()?;
        let page = kept.take(pages, nid)?;
        kept.used = true;
        // Relaxed, both: only the holder of the lock changes it.
        list.pages.store(list.pages.load(Relaxed) - pages, Relaxed);
        list.count(0);
        kept.leave_unawaited();
        Some(page)
    }

    /// Keeps a run of at most `most` pages, which was freed; counts the free.
    #[inline]
    pub(crate) fn put(&self, cpu: usize, run: (PageIndex, usize), nid: usize, most: usize) -> Put {
        let list = self.of(cpu);
        let Some((list, mut kept)) = list.and_then(|list| Some((list, list.kept.try_lock()?)))
        else {
            return Put::InUse;
        };
        // Relaxed: only the holder of the lock changes it.
        let now = list.pages.load(Relaxed) + run.1;
        if now > most || kept.len == PCP_LIST_RUNS {
            return Put::Full;
        }
        kept.push(run.0, run.1, nid);
        kept.used = true;
        kept.alloc_factor = 0;
        // Relaxed: as above.
        list.pages.store(now, Relaxed);
        let calls = list.count(1);
        kept.leave_unawaited();
        match calls.is_multiple_of(PCP_CHECK_FREES) {
            true => Put::KeptAndCheck,
            false => Put::Kept,
        }
    }

    /// Runs of `pages` pages that a CPU without one should ask the zone for, at once: the more, the
    /// longer it only allocates. The list, with `most` pages at most, has room for them.
    pub(crate) fn batch(&self, cpu: usize, pages: usize, most: usize) -> usize {
        let Some(mut kept) = self.of(cpu).and_then(|list| list.kept.try_lock()) else {
            return 1;
        };
        let room = most.saturating_sub(kept.pages()) / pages;
        let runs = room.min(PCP_LIST_RUNS - kept.len);
        let batch = (1 << kept.alloc_factor).min(runs.max(1));
        kept.alloc_factor = (kept.alloc_factor + 1).min(PCP_BATCH_MAX.ilog2() as u8);
        batch
    }

    /// Keeps pages that the zone gave, as runs of `pages` pages, but for the first: it returns this
    /// one, and counts it as allocated. `None`, and nothing is kept, if there is none, the list is
    /// in use, or it has no room.
    pub(crate) fn refill(
        &self,
        cpu: usize,
        runs: &Runs,
        pages: usize,
        nid: usize,
    ) -> Option<PageIndex> {
        let mut rest = runs.split(pages);
        let first = rest.next()?;
        let list = self.of(cpu)?;
        let mut kept = list.kept.try_lock()?;
        if runs.pages() / pages > PCP_LIST_RUNS - kept.len {
            return None;
        }
        rest.for_each(|page| kept.push(page, pages, nid));
        // Relaxed: only the holder of the lock changes it.
        list.pages.store(kept.pages(), Relaxed);
        list.count(0);
        Some(first)
    }

    /// Takes the oldest runs of a CPU, at least one, until `most` pages or fewer are left.
    pub(crate) fn evict(&self, arena: &Arena, cpu: usize, most: usize) -> Runs {
        let mut out = Runs::default();
        if let Some(list) = self.of(cpu)
            && let Some(mut kept) = list.kept.try_lock()
        {
            let most = most.min(kept.pages().saturating_sub(1));
            kept.evict(most, &mut out, |page| {
                arena.slab(page).set_kind(PageKind::None)
            });
            // Relaxed: only the holder of the lock changes it.
            list.pages.store(kept.pages(), Relaxed);
        }
        out
    }

    /// Takes all runs, or those of lists that were not used since the last call for these. Calls
    /// `free` with them, batch by batch.
    pub(crate) fn drain(&self, arena: &Arena, only_idle: bool, mut free: impl FnMut(&Runs)) {
        for list in self.lists() {
            // Relaxed: a peek. What is put now waits for the next call.
            while list.pages.load(Relaxed) > 0 {
                let mut out = Runs::default();
                {
                    let Some(mut kept) = list.kept.try_lock() else {
                        break;
                    };
                    if only_idle && core::mem::take(&mut kept.used) {
                        break;
                    }
                    kept.evict(0, &mut out, |page| {
                        arena.slab(page).set_kind(PageKind::None)
                    });
                    // Relaxed: only the holder of the lock changes it.
                    list.pages.store(kept.pages(), Relaxed);
                }
                free(&out);
            }
        }
    }

    /// Whether it is time to look for lists that are not used, and this thread is the one that does
    /// it. `now` and `period` are milliseconds.
    pub(crate) fn is_check_due(&self, now: u64, period: u64) -> bool {
        claim(&self.next_check, now, period)
    }

    /// Bytes that all CPUs keep; may be stale.
    pub fn bytes(&self) -> usize {
        // Relaxed: statistics.
        let pages = self.lists().iter().map(|list| list.pages.load(Relaxed));
        pages.sum::<usize>() * PAGE_SIZE
    }

    /// Bytes that one CPU keeps; may be stale.
    #[inline]
    pub(crate) fn bytes_on(&self, cpu: usize) -> usize {
        // Relaxed: a statistic.
        self.of(cpu).map_or(0, |list| list.pages.load(Relaxed)) * PAGE_SIZE
    }

    /// Counts an allocation (0) or a free (1) without a cache, of which the list does not know.
    pub(crate) fn count(&self, cpu: usize, which: usize) {
        let calls = self.of(cpu).map_or(&self.calls, |list| &list.others);
        // Relaxed: a statistic.
        calls[which].fetch_add(1, Relaxed);
    }

    /// Allocations (0) or frees (1) without a cache.
    pub fn calls(&self, which: usize) -> usize {
        let lists = self.lists().iter();
        let calls = lists.flat_map(|list| [&list.calls[which], &list.others[which]]);
        let calls = calls.chain([&self.calls[which]]);
        // Relaxed: statistics.
        calls.fold(0, |sum, calls| sum.wrapping_add(calls.load(Relaxed)))
    }

    /// The locks without their values, for a fork.
    pub(crate) fn raw_locks(&self) -> impl Iterator<Item = &RawLock<P>> {
        self.lists().iter().map(|list| list.kept.raw())
    }

    /// Forgets all runs, in a child that gives up the arena they lie in.
    pub(crate) fn forget(&self) {
        for list in self.lists() {
            if let Some(mut kept) = list.kept.try_lock() {
                kept.len = 0;
            }
            // Relaxed: the child has one thread.
            list.pages.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn nothing() -> Kept {
        Kept {
            firsts: [0; PCP_LIST_RUNS],
            counts: [0; PCP_LIST_RUNS],
            nodes: [0; PCP_LIST_RUNS],
            len: 0,
            alloc_factor: 0,
            used: false,
        }
    }

    #[test]
    fn the_newest_run_of_a_length_and_a_node_comes_first() {
        let mut kept = nothing();
        for (page, pages, nid) in [(10, 3, 0), (20, 4, 0), (30, 3, 1), (40, 3, 0)] {
            kept.push(PageIndex(page), pages, nid);
        }
        assert_eq!(kept.take(5, 0), None);
        assert_eq!(kept.take(3, 0), Some(PageIndex(40)));
        assert_eq!(kept.take(3, 0), Some(PageIndex(10)));
        assert_eq!(kept.take(3, 0), None);
        assert_eq!(kept.take(3, 1), Some(PageIndex(30)));
        assert_eq!((kept.len, kept.pages()), (1, 4));
    }

    #[test]
    fn the_oldest_runs_go_first() {
        let mut kept = nothing();
        for page in 0..8 {
            kept.push(PageIndex(1000 * page), 8, 0);
        }
        let mut out = Runs::default();
        kept.evict(32, &mut out, |_| ());
        let gone: Vec<_> = out.iter().collect();
        assert_eq!(
            gone,
            (0..4).map(|n| (PageIndex(1000 * n), 8)).collect::<Vec<_>>()
        );
        assert_eq!(kept.take(8, 0), Some(PageIndex(7000)));
        assert_eq!(kept.pages(), 24);
    }
}
