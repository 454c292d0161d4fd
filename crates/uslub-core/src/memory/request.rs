//! Allocates runs of pages.
//!
//! A request tries the blocks of its node, then adds a block, then takes pages of other nodes
//! unless `THISNODE` forbids it. Callers: the slab layer (`alloc_runs`) and `kmalloc::large`.

use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::memory::Runs;
use crate::memory::want::{Touched, Want};
use crate::memory::zone::{Run, Zone};
use crate::platform::{FaultSite, Platform};

impl<P: Platform> Zone<P> {
    /// Hands out `count` pages (1 to 512) aligned to `align` pages (a power of two up to 512), of
    /// node 0 if it has any.
    pub fn alloc(&self, platform: &P, count: usize, align: usize, gfp: Gfp) -> Option<Run> {
        let want = Want::new(0, count, align, 1, Touched::All);
        self.alloc_run(platform, want, gfp)
    }

    /// As [`alloc`](Self::alloc), but of the node that `want` names, if it has any pages; of no
    /// other node with [`THISNODE`](Gfp::THISNODE).
    pub(crate) fn alloc_run(&self, platform: &P, want: Want, gfp: Gfp) -> Option<Run> {
        let run = self.alloc_runs(platform, want, gfp);
        if gfp.may_map() {
            self.make_room_for_taken(platform);
        }
        run
    }

    /// As [`alloc_run`](Self::alloc_run), but up to `want.most` such runs at once if the next pages
    /// are free too. The caller must call [`make_room_for_taken`](Self::make_room_for_taken) later,
    /// where it has more stack left.
    #[inline(never)]
    pub(crate) fn alloc_runs(&self, platform: &P, want: Want, gfp: Gfp) -> Option<Run> {
        if platform.should_fail(FaultSite::Pages) {
            return None;
        }
        loop {
            let growths = match self.take_now(platform, want, gfp)? {
                Ok(run) => return Some(run),
                Err(growths) => growths,
            };
            if !self.grow_on(platform, growths, want.nid.into(), want.touched, gfp) {
                break;
            }
        }
        // Remote pages are better than none.
        if gfp.contains(Gfp::THISNODE) || platform.nr_nodes() == 1 {
            return None;
        }
        self.take_now(platform, want.on_any_node(), gfp)?.ok()
    }

    /// Takes existing pages; otherwise returns the number of growths so far. `None` if the caller
    /// may not wait and the page lock is taken.
    #[inline(never)]
    fn take_now(&self, platform: &P, want: Want, gfp: Gfp) -> Option<Result<Run, u32>> {
        let mut lists = self.lists.lock_if(gfp.may_spin())?;
        self.drain_pending(&mut lists, platform);
        let Some(run) = self.take(&mut lists, want) else {
            return Some(Err(lists.growths));
        };
        if gfp.may_map() && self.is_peak(lists.nr_used + lists.nr_dirty) {
            // Relaxed: a hint to `make_room_for_taken`.
            self.peak_run.fetch_max(want.count(), Relaxed);
        }
        Some(Ok(run))
    }

    /// Takes up to `want.most` runs of pages that hold memory, neighbours or not, under one hold of
    /// the page lock. For a caller that may not wait, none if the lock is taken.
    #[inline(never)]
    pub(crate) fn take_dirty_runs(&self, platform: &P, want: Want, gfp: Gfp) -> Runs {
        let mut runs = Runs::default();
        let Some(mut lists) = self.lists.lock_if(gfp.may_spin()) else {
            return runs;
        };
        self.drain_pending(&mut lists, platform);
        let mut left = want.most();
        while left > 0
            && !runs.is_full()
            && let Some(run) = self.take_dirty(&mut lists, want.at_most(left))
        {
            runs.add(run.page, usize::from(run.runs) * want.count());
            left -= usize::from(run.runs);
        }
        runs
    }

    /// Evicts idle pages if runs taken since the last call raised the resident pages to a new peak.
    #[inline]
    pub fn make_room_for_taken(&self, platform: &P) {
        // Relaxed, all: hints and peeks, may be stale.
        if self.peak_run.load(Relaxed) > 0 {
            let count = self.peak_run.swap(0, Relaxed);
            let resident = self.used.load(Relaxed) + self.dirty.load(Relaxed);
            self.evict_at_peak(platform, resident, count);
        }
    }
}
