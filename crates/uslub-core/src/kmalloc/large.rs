//! Large objects: allocated as a run of pages or as a mapping.
//!
//! | object | source, first choice | second choice |
//! |---|---|---|
//! | at most `LARGE_MAX` bytes | arena | mapping |
//! | larger | mapping, while there are few mappings | arena |
//! | larger, with at least `MAPPINGS_MAX` live mappings | arena | mapping |
//!
//! The arena holds objects of at most [`ARENA_OBJECT_MAX_BYTES`] bytes. If the system refuses both,
//! unused memory goes back to the system, and the request is tried once more. Callers: `alloc` and
//! `resize`.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::kmalloc::{Fresh, LARGE_MAX, NO_OBJECT, SIZE_MAX};
use crate::memory::arena::BLOCK_BYTES;
use crate::memory::block::BLOCK_PAGES;
use crate::memory::pcp::Put;
use crate::memory::{PageIndex, PageKind, Runs, Touched, Want};
use crate::platform::{PAGE_SIZE, Platform};
use crate::policy::{
    ARENA_OBJECT_MAX_BYTES, LARGE_MODEST_BYTES, PCP_BATCH_RUN_MAX_PAGES, PCP_RUN_MAX_PAGES,
};

/// Bytes. A request above this exceeds every address space: it gives no memory back.
const POSSIBLE: usize = 1 << 47;
/// Pages of an object of `LARGE_MAX` bytes.
const LARGE_PAGES: usize = LARGE_MAX / PAGE_SIZE;
/// What reports call objects above the size classes.
const LARGE_NAME: &str = "large object";

impl<P: Platform> Allocator<P> {
    /// Clears whole pages that were just allocated.
    pub(crate) fn clear(&self, start: *mut u8, whole: usize, gfp: Gfp) {
        if whole > LARGE_MAX
            && gfp.may_map()
            && self.zone.arena.page_of(start as usize).is_some()
            && (start as usize | whole).is_multiple_of(self.platform.system_page())
            && let Some(start) = NonNull::new(start)
            // A purge is cheaper: few of the pages may hold memory. SAFETY: ours, whole pages.
            && unsafe { self.platform.purge(start, whole) }
        {
            return;
        }
        // SAFETY: ours, whole pages.
        unsafe { start.write_bytes(0, whole) };
    }

    pub(crate) fn alloc_pages_or_mapping(&self, bytes: usize, align: usize, gfp: Gfp) -> Fresh {
        if bytes > SIZE_MAX || align > SIZE_MAX / 2 {
            return NO_OBJECT;
        }
        if self.debug.fail.is_on()
            && self.tunables().failslab_cache == 0
            && self.fails_on_purpose(LARGE_NAME, bytes, gfp)
        {
            return NO_OBJECT;
        }
        if let Some(kept) = self.take_kept(bytes, align, gfp) {
            return kept;
        }
        let mut fresh = self.try_pages_or_mapping(bytes, align, gfp);
        if fresh.is_none() && gfp.may_map() && gfp.may_spin() && bytes <= POSSIBLE {
            let was_lean = self.zone.arena.is_lean();
            if self.release_unused() {
                fresh = self.try_pages_or_mapping(bytes, align, gfp);
            }
            if fresh.is_none() && !was_lean && bytes > LARGE_MODEST_BYTES {
                // The request was too large; memory need not be short.
                self.zone.arena.be_ample();
            }
        }
        if fresh.is_some() {
            self.count_large(0);
        }
        fresh.unwrap_or(NO_OBJECT)
    }

    /// An object in pages that this CPU keeps; counts the allocation.
    #[inline(never)]
    fn take_kept(&self, bytes: usize, align: usize, gfp: Gfp) -> Option<Fresh> {
        let pages = bytes.div_ceil(PAGE_SIZE);
        if pages > PCP_RUN_MAX_PAGES || align > PAGE_SIZE {
            return None;
        }
        let nid = self.memory_node(self.nid());
        let cpu = self.platform.cpu();
        let kept = self.memory.pcp.take(cpu, pages, nid);
        let page = kept.or_else(|| self.refill_kept(cpu, pages, nid, gfp))?;
        self.zone.arena.slab(page).set_kind(PageKind::Large);
        Some(Fresh {
            start: self.zone.arena.address(page).as_ptr(),
            zero: false,
        })
    }

    /// Fills a CPU's list with runs of `pages` pages, and takes one; `None` if it should not have
    /// more than one.
    #[inline(never)]
    fn refill_kept(&self, cpu: usize, pages: usize, nid: usize, gfp: Gfp) -> Option<PageIndex> {
        if pages > PCP_BATCH_RUN_MAX_PAGES || self.zone.dirty_bytes() < pages * PAGE_SIZE {
            return None;
        }
        let batch = self.memory.pcp.batch(cpu, pages, self.pages_to_keep());
        if batch < 2 {
            return None;
        }
        let want = Want::new(nid, pages, 1, batch, Touched::All);
        let runs = self.zone.take_dirty_runs(&self.platform, want, gfp);
        for page in runs.split(pages) {
            let slab = self.zone.arena.slab(page);
            slab.set_large_pages(pages);
            slab.set_node(nid as u8);
            slab.set_kind(PageKind::Kept);
        }
        // Relaxed: a statistic.
        self.large_pages.fetch_add(runs.pages(), Relaxed);
        let page = self.memory.pcp.refill(cpu, &runs, pages, nid);
        if page.is_none() {
            let slabs = runs.split(pages).map(|page| self.zone.arena.slab(page));
            slabs.for_each(|slab| slab.set_kind(PageKind::None));
            self.give_back(&runs, gfp);
        }
        page
    }

    /// Tries the arena and a mapping once, in the order that the module describes.
    #[inline(never)]
    fn try_pages_or_mapping(&self, bytes: usize, align: usize, gfp: Gfp) -> Option<Fresh> {
        let (zeroed, pages) = (gfp.contains(Gfp::ZERO), bytes.div_ceil(PAGE_SIZE).max(1));
        let is_large = bytes <= LARGE_MAX && align <= LARGE_MAX;
        let may_be_large = align <= BLOCK_BYTES && bytes <= ARENA_OBJECT_MAX_BYTES;
        let first = is_large || may_be_large && gfp.may_map() && self.mapped.is_full();
        let mut fresh = None;
        if first {
            fresh = self.alloc_large(pages, align, gfp);
        }
        if fresh.is_none() && gfp.may_map() {
            fresh = self.alloc_huge(bytes, align, zeroed);
            // In a limited (lean) address space a mapping takes less than a block of the arena.
            if fresh.is_none() && may_be_large && !first && !self.zone.arena.is_lean() {
                fresh = self.alloc_large(pages, align, gfp);
            }
        }
        fresh
    }

    #[inline(never)]
    fn alloc_huge(&self, bytes: usize, align: usize, zeroed: bool) -> Option<Fresh> {
        let (start, zero) = self.map_huge(bytes, align, zeroed)?;
        if self.zone.arena.page_of(start.as_ptr() as usize).is_some() {
            // The mapping lies in a gap of the arena, where pages are found by address: unusable.
            (self.mapped).free(&self.platform, start.as_ptr() as usize, false);
            return None;
        }
        self.memory.update_mapped_bytes(&self.platform);
        Some(Fresh {
            start: start.as_ptr(),
            zero,
        })
    }

    #[inline(never)]
    fn map_huge(&self, bytes: usize, align: usize, zeroed: bool) -> Option<(NonNull<u8>, bool)> {
        (self.mapped).alloc(&self.platform, bytes, align, zeroed)
    }

    #[inline(never)]
    fn alloc_large(&self, pages: usize, align: usize, gfp: Gfp) -> Option<Fresh> {
        let align = align.div_ceil(PAGE_SIZE);
        let nid = self.memory_node(self.nid());
        let (zone, platform) = (&self.zone, &self.platform);
        let run = if pages > BLOCK_PAGES {
            zone.alloc_several(platform, nid, pages, gfp)?
        } else {
            let touched = match pages {
                ..=LARGE_PAGES => Touched::All,
                _ => Touched::Little,
            };
            zone.alloc_run(platform, Want::new(nid, pages, align, 1, touched), gfp)?
        };
        let slab = self.zone.arena.slab(run.page);
        slab.set_large_pages(pages);
        slab.set_node(run.node);
        slab.set_kind(PageKind::Large);
        // Relaxed: a statistic.
        self.large_pages.fetch_add(pages, Relaxed);
        Some(Fresh {
            start: self.zone.arena.address(run.page).as_ptr(),
            zero: run.zero,
        })
    }

    /// Keeps the pages of a freed large object on this CPU, and counts the free; false if the zone
    /// gets them.
    #[inline]
    pub(super) fn keep_pages(&self, page: PageIndex, pages: usize, gfp: Gfp) -> bool {
        let most = self.pages_to_keep();
        if pages > PCP_RUN_MAX_PAGES.min(most) {
            return false;
        }
        let nid = usize::from(self.zone.arena.slab(page).node());
        if self.nr_nodes() > 1 && nid != self.memory_node(self.nid()) {
            return false;
        }
        self.note_large_peak();
        let slab = self.zone.arena.slab(page);
        slab.set_kind(PageKind::Kept);
        let cpu = self.platform.cpu();
        let put = || self.memory.pcp.put(cpu, (page, pages), nid, most);
        let mut kept = put();
        let was_full = matches!(kept, Put::Full);
        if was_full {
            self.evict_kept(cpu, (most - pages).min(most / 2), gfp);
            kept = put();
        }
        if matches!(kept, Put::Full | Put::InUse) {
            slab.set_kind(PageKind::None);
            return false;
        }
        if (was_full || matches!(kept, Put::KeptAndCheck)) && gfp.may_spin() {
            self.look_after_pages();
        }
        true
    }

    /// Pages of large objects that a CPU keeps at most.
    #[inline]
    fn pages_to_keep(&self) -> usize {
        let tunables = self.tunables();
        match tunables.hardened != 0 || tunables.decay_ms == 0 {
            true => 0,
            false => (tunables.pcp_kb as usize * 1024) / PAGE_SIZE,
        }
    }

    /// Frees the oldest runs that a CPU keeps, until it has `most` pages.
    #[inline(never)]
    fn evict_kept(&self, cpu: usize, most: usize, gfp: Gfp) {
        let runs = self.memory.pcp.evict(&self.zone.arena, cpu, most);
        self.give_back(&runs, gfp);
    }

    /// Frees runs that were kept.
    fn give_back(&self, runs: &Runs, gfp: Gfp) {
        // Relaxed: a statistic.
        self.large_pages.fetch_sub(runs.pages(), Relaxed);
        if gfp.may_spin() {
            self.zone.free_runs(&self.platform, runs);
        } else {
            (runs.iter()).for_each(|(page, pages)| self.zone.push_pending(page, pages));
        }
    }

    /// Gives back memory that has been free for long enough.
    #[cold]
    #[inline(never)]
    fn look_after_pages(&self) {
        let (now, decay) = (self.platform.now_ms(), u64::from(self.tunables().decay_ms));
        self.drain_idle_pages(now);
        self.zone.after_free(&self.platform, now, decay);
        self.decay_mapped();
    }
}
