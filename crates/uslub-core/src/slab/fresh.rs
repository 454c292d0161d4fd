//! Fresh slabs: takes their pages, hands their objects out in the iterator's order, frees them to
//! the page layer.
//!
//! | step | function |
//! |---|---|
//! | pages, for one slab or a batch | `new_pages` |
//! | descriptor, page map | `init_descriptor` |
//! | objects, all fresh | `write_fresh`, or `build_freelist` with `freelist_deferred=0` |
//! | back to the page layer | `discard_list`, `free_slab_now` |
//!
//! The caller owns a new slab; no lock is held. Callers: `refill`, and frees that empty slabs.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use crate::args::{Ctor, Flags};
use crate::gfp::Gfp;
use crate::memory::zone::Run;
use crate::memory::{PageIndex, PageKind, Runs, Touched, Want};
use crate::percpu::stats::StatItem;
use crate::platform::{PAGE_SIZE, Platform, Watch};
use crate::policy::{PAGE_BATCH_SHARE, PAGE_BATCH_SLABS};
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::node::{Node, SlabList};
use crate::slab::state::{Slab, State};

/// Slabs to take at once: one, or where a cache has many, a few.
fn batch_size<P: Platform>(cache: &SlabCache<P>, node: &Node<P>) -> usize {
    if cache.max_slabs < usize::MAX {
        return 1;
    }
    (node.nr_slabs() / PAGE_BATCH_SHARE).clamp(1, PAGE_BATCH_SLABS)
}

impl<P: Platform> Base<P> {
    /// Constructs up to `count` objects of fresh slots from position `first`; returns how many.
    #[inline(never)]
    pub(crate) fn construct(
        &self,
        cache: &SlabCache<P>,
        ctor: Ctor,
        slab: &Slab,
        first: u32,
        count: u32,
    ) -> u32 {
        let (base, start) = (self.slab_base(slab), usize::from(slab.start()));
        for i in 0..count {
            let object = base.wrapping_add(cache.offset_at(start, (first + i) as usize));
            // SAFETY: the object is ours, has the cache's size, and is not constructed yet.
            if !unsafe { (ctor.call)(ctor.data, object) } {
                return i;
            }
        }
        count
    }

    /// The iterator: writes the addresses of `out.len()` fresh slots from `position` on.
    pub(crate) fn write_fresh(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        base: *mut u8,
        position: usize,
        out: &mut [*mut u8],
    ) {
        if let Some(offsets) = cache.random_order() {
            let start = usize::from(slab.start());
            (self.platform).write_at(base, &offsets[start + position..], out);
        } else {
            let size = cache.size as usize;
            let mut at = base.wrapping_add(position * size);
            for place in out {
                *place = at;
                at = at.wrapping_add(size);
            }
        }
    }

    /// Takes all objects of batch slabs, slab by slab, as long as they fit; returns how many
    /// objects.
    #[inline]
    pub(crate) fn alloc_entire_slabs(
        &self,
        cache: &SlabCache<P>,
        nid: usize,
        out: &mut [*mut u8],
    ) -> usize {
        if !cache.can_alloc_entire() {
            return 0;
        }
        let mut filled = 0;
        for whole in out.chunks_exact_mut(cache.geometry.objects as usize) {
            if !self.alloc_entire_slab(cache, nid, whole) {
                break;
            }
            filled += whole.len();
        }
        filled
    }

    /// Takes pages for a slab; the caller owns the slab, and all of its slots are fresh.
    #[inline]
    pub(crate) fn new_slab(&self, cache: &SlabCache<P>, nid: usize, gfp: Gfp) -> Option<&Slab> {
        let node = cache.node(nid);
        if cache.has_reserve() {
            self.on_page_request(node);
        }
        let (page, nid) = match node.ahead.take(cache.geometry.pages()) {
            Some(page) => (page, nid),
            None => self.new_pages(cache, nid, gfp)?,
        };
        let slab = self.init_descriptor(cache, page, nid, 0);
        if cache.is_random() {
            slab.set_start(cache.start_for(nid, page));
        }
        if cache.flags.contains(Flags::PREFAULT) {
            self.prefault(cache, slab);
        }
        if cache.tuning.freelist_deferred == 0 {
            self.build_freelist(cache, slab);
        }
        Some(slab)
    }

    /// Hands out all objects of a new slab of the batch; `out` has exactly their number. False if
    /// the batch is empty. Only for caches whose slabs can be [handed out
    /// whole](SlabCache::can_alloc_entire).
    #[inline(never)]
    fn alloc_entire_slab(&self, cache: &SlabCache<P>, nid: usize, out: &mut [*mut u8]) -> bool {
        let is_plain = !(cache.has_reserve() || cache.flags.contains(Flags::PREFAULT));
        if is_plain && let Some(page) = cache.node(nid).ahead.take(cache.geometry.pages()) {
            let slab = self.init_descriptor(cache, page, nid, out.len() as u16);
            if cache.is_random() {
                slab.set_start(cache.start_for(nid, page));
            }
            self.write_fresh(cache, slab, self.zone.arena.address(page).as_ptr(), 0, out);
            return true;
        }
        false
    }

    /// Tells a node's reserve about a request to the page layer.
    #[inline(never)]
    fn on_page_request(&self, node: &Node<P>) {
        if let Some(mut lists) = node.lists.try_lock() {
            lists.reserve.asked(self.platform.now_ms());
        }
    }

    /// Takes pages for a slab, and for a batch if the cache has many slabs; returns the first page
    /// and its node.
    #[inline(never)]
    fn new_pages(&self, cache: &SlabCache<P>, nid: usize, gfp: Gfp) -> Option<(PageIndex, usize)> {
        let run = self.take_pages(cache, nid, gfp)?;
        let node = cache.node(usize::from(run.node));
        let first = PageIndex(run.page.0 + cache.geometry.pages() as u32);
        let ahead = usize::from(run.runs) - 1;
        if ahead > 0 && !node.ahead.put(first, ahead) {
            self.defer_unused(cache, node, first, ahead);
        }
        Some((run.page, usize::from(run.node)))
    }

    /// Takes pages for as many slabs as the next batch should have, as far as they are adjacent.
    #[inline(always)]
    fn take_pages(&self, cache: &SlabCache<P>, nid: usize, gfp: Gfp) -> Option<Run> {
        let (pages, node) = (cache.geometry.pages(), cache.node(nid));
        let wanted = if gfp.may_spin() {
            batch_size(cache, node)
        } else {
            1
        };
        // Relaxed: a count. No thread exceeds the limit, since each adds before it compares.
        node.nr_slabs.fetch_add(wanted, Relaxed);
        let run = (cache.nr_slabs() <= cache.max_slabs)
            .then(|| {
                let want = Want::new(nid, pages, pages, wanted, Touched::All);
                self.zone.alloc_runs(&self.platform, want, gfp)
            })
            .flatten();
        let got = run.map_or(0, |run| run.runs.into());
        let home = run.map_or(nid, |run| usize::from(run.node));
        let missing = if home == nid { wanted - got } else { wanted };
        if missing > 0 {
            // Relaxed: a count.
            node.nr_slabs.fetch_sub(missing, Relaxed);
        }
        let run = run?;
        if home != nid {
            // Relaxed: a count.
            cache.node(home).nr_slabs.fetch_add(got, Relaxed);
        }
        cache.note_peak();
        self.count(cache, StatItem::AllocSlab, got);
        cache.range.add(run.page, got * pages);
        // For one slab in eight or so: reading the clock costs time.
        let one_in_eight = got > 1 || (run.page.0 as usize / pages).is_multiple_of(8);
        if gfp.contains(Gfp::KERNEL) && one_in_eight {
            // Relaxed: a hint; the first allocation that ends acts on it.
            self.looks_for_cold.store(true, Relaxed);
        }
        Some(run)
    }

    /// Frees the pages of a node's batch.
    pub(crate) fn discard_ahead(&self, cache: &SlabCache<P>, node: &Node<P>) {
        if let Some((first, slabs)) = node.ahead.take_all() {
            let now = self.give_batch(cache, node, first, slabs);
            // Not inside, since both take stack.
            self.decay_after(cache, now);
        }
    }

    /// Frees the unused pages of `slabs` slabs; returns the time in milliseconds.
    #[inline(never)]
    fn give_batch(
        &self,
        cache: &SlabCache<P>,
        node: &Node<P>,
        first: PageIndex,
        slabs: usize,
    ) -> u64 {
        let mut runs = Runs::default();
        runs.add(first, slabs * cache.geometry.pages());
        self.give_runs(cache, node, slabs, &runs)
    }

    /// Frees the unused pages of `slabs` slabs in the next hold of the page lock: now it would take
    /// stack.
    fn defer_unused(&self, cache: &SlabCache<P>, node: &Node<P>, first: PageIndex, slabs: usize) {
        let pages = slabs * cache.geometry.pages();
        // Relaxed: a statistic.
        node.nr_slabs.fetch_sub(slabs, Relaxed);
        self.count(cache, StatItem::FreeSlab, slabs);
        cache.range.remove(first, pages);
        self.zone.push_pending(first, pages);
    }

    /// Makes pages of node `nid` a slab with its slots in order; `inuse` is 0 or all of them.
    #[inline]
    fn init_descriptor(
        &self,
        cache: &SlabCache<P>,
        page: PageIndex,
        nid: usize,
        inuse: u16,
    ) -> &Slab {
        let arena = &self.zone.arena;
        let slab = arena.slab(page);
        slab.set_position(inuse);
        slab.set_partial(false);
        slab.set_node(nid as u8);
        slab.set_state(State::without_list(inuse.into()));
        slab.set_kind(PageKind::Slab);
        arena.set_cache(page, cache.geometry.pages() as u32, Some(cache.id));
        if self.tunables().hardened == 1 {
            self.wipe_trailers(cache, slab);
        }
        slab
    }

    /// Clears the last word of each slot of a new slab: the hardened mode then knows a fresh slot.
    #[cold]
    #[inline(never)]
    fn wipe_trailers(&self, cache: &SlabCache<P>, slab: &Slab) {
        let (base, size) = (self.slab_base(slab), cache.size as usize);
        for slot in 1..=cache.geometry.objects as usize {
            // SAFETY: the last word of a slot of the slab; all of it is free.
            unsafe { base.add(slot * size - 8).cast::<u64>().write(0) };
        }
    }

    /// Writes to each page of a new slab. Must come first: links and constructed objects may begin
    /// a page.
    #[cold]
    fn prefault(&self, cache: &SlabCache<P>, slab: &Slab) {
        let start = self.slab_base(slab);
        for page in 0..cache.geometry.pages() {
            // SAFETY: a page of the slab; all of it is free.
            unsafe { start.add(page * PAGE_SIZE).write_volatile(0) };
        }
    }

    /// Links all slots of a new slab in the iterator's order (`freelist_deferred=0`). No slot is
    /// fresh then, except those from the first failure of the constructor on.
    #[inline(never)]
    fn build_freelist(&self, cache: &SlabCache<P>, slab: &Slab) {
        let (base, start) = (self.slab_base(slab), usize::from(slab.start()));
        let count = match cache.ctor {
            Some(ctor) => self.construct(cache, ctor, slab, 0, cache.geometry.objects),
            None => cache.geometry.objects,
        };
        let links = cache.links_of(slab);
        let mut next = null_mut();
        for position in (0..count as usize).rev() {
            let object = base.wrapping_add(cache.offset_at(start, position));
            // SAFETY: a slot of a slab that we own.
            unsafe { links.set(object, next) };
            next = object;
        }
        slab.set_position(count as u16);
        let head = (count > 0).then(|| next as usize - base as usize);
        slab.set_state(State::without_list(0).with(head, 0));
    }

    /// Frees the pages of an empty slab that we own after a grace period; if that is refused, lists
    /// the slab again.
    #[inline(never)]
    fn free_slab_rcu_or_keep(&self, cache: &SlabCache<P>, node: &Node<P>, slab: &Slab) {
        if !self.free_slab_rcu(cache, slab, Gfp::KERNEL) {
            // Readers may still use it: it must stay a slab of this cache.
            let mut lists = node.lists.lock();
            lists.add(&self.zone.arena, slab, cache.has_reserve());
            node.update_counts(&lists);
        }
    }

    /// Frees the pages of a slab at once, regardless of readers.
    pub(crate) fn free_slab_now(&self, cache: &SlabCache<P>, node: &Node<P>, slab: &Slab) {
        let mut runs = Runs::default();
        self.clear_descriptor(cache, slab, &mut runs);
        let now = self.give_runs(cache, node, 1, &runs);
        self.decay_after(cache, now);
    }

    /// Frees the pages of all slabs of a list; they are empty and the caller owns them.
    #[inline]
    pub(crate) fn discard_list(&self, cache: &SlabCache<P>, list: SlabList) {
        if list.is_empty() {
            return;
        }
        let now = self.unmake_list(cache, list);
        // Not in `unmake_list`: both need much stack.
        self.decay_after(cache, now);
    }

    /// As [`discard_list`](Self::discard_list), but gives nothing back to the system. Returns the
    /// time in milliseconds, 0 if no page was freed.
    #[inline(never)]
    fn unmake_list(&self, cache: &SlabCache<P>, list: SlabList) -> u64 {
        let arena = &self.zone.arena;
        let typesafe = cache.flags.contains(Flags::TYPESAFE_BY_RCU);
        let (mut runs, mut slabs, mut nid, mut now) = (Runs::default(), 0, 0, 0);
        for slab in list.iter(arena) {
            let home = usize::from(slab.node());
            if typesafe {
                self.free_slab_rcu_or_keep(cache, cache.node(home), slab);
                continue;
            }
            if runs.is_full() || (home != nid && !runs.is_empty()) {
                now = self.give_runs(cache, cache.node(nid), slabs, &runs);
                runs.clear();
                slabs = 0;
            }
            nid = home;
            self.clear_descriptor(cache, slab, &mut runs);
            slabs += 1;
        }
        if !runs.is_empty() {
            now = self.give_runs(cache, cache.node(nid), slabs, &runs);
        }
        now
    }

    /// Turns an empty slab that we own back into pages.
    fn clear_descriptor(&self, cache: &SlabCache<P>, slab: &Slab, runs: &mut Runs) {
        let page = self.zone.arena.page_of_slab(slab);
        let pages = cache.geometry.pages();
        if cache.is_debugged() {
            self.watch(cache, Watch::Gone(cache.slab_at(self.slab_base(slab))));
        }
        slab.set_kind(PageKind::None);
        // The next slab here starts over: count the epoch now, as its maker only writes.
        slab.set_epoch(slab.epoch().wrapping_add(1));
        self.zone.arena.set_cache(page, pages as u32, None);
        runs.add(page, pages);
    }

    /// Frees runs that were `slabs` slabs of a node; returns the time in milliseconds.
    fn give_runs(&self, cache: &SlabCache<P>, node: &Node<P>, slabs: usize, runs: &Runs) -> u64 {
        // Relaxed: a statistic.
        node.nr_slabs.fetch_sub(slabs, Relaxed);
        self.count(cache, StatItem::FreeSlab, slabs);
        for (first, pages) in runs.iter() {
            cache.range.remove(first, pages);
        }
        self.zone.free_runs(&self.platform, runs)
    }

    /// Gives old free pages back to the system, after slabs were freed at the time `now`
    /// (milliseconds).
    #[inline(never)]
    fn decay_after(&self, cache: &SlabCache<P>, now: u64) {
        // If this cache's frees may not call the system, other threads do this.
        if now > 0 && cache.free_gfp.may_map() {
            let decay = u64::from(self.tunables().decay_ms);
            self.zone.after_free(&self.platform, now, decay);
        }
    }

    /// Address of a slab's first slot.
    #[inline]
    pub(crate) fn slab_base(&self, slab: &Slab) -> *mut u8 {
        let arena = &self.zone.arena;
        arena.address(arena.page_of_slab(slab)).as_ptr()
    }
}
