//! Refill: chooses the slabs to take objects from.
//!
//! The order is: partial and empty slabs of the CPU's node, partial slabs of other nodes, new
//! slabs.
//!
//! 1. Isolate enough partial slabs under one short hold of the list lock.
//! 2. Take their objects without the lock (`take`).
//! 3. List the slabs that still have free slots again, under a second hold.
//!
//! In a context that may not wait, all of this happens under one hold of a lock that was free
//! (`refill_under_lock`). Callers: `sheaf` (to fill sheaves) and `cache` (bulk and node requests).

use crate::gfp::Gfp;
use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::node::{Node, NodeLists, SlabList};
use crate::slab::state::Slab;
use crate::slab::take::{Ownership, Refill};

impl<P: Platform> Base<P> {
    /// Takes at least `min` objects, at most as many as `out` holds; returns how many. Fewer than
    /// `min` means that memory ran out or that `gfp` forbids to ask for it.
    pub(crate) fn refill_objects(
        &self,
        cache: &SlabCache<P>,
        out: &mut [*mut u8],
        min: usize,
        gfp: Gfp,
    ) -> usize {
        let mut refill = Refill::new(cache, out, min, gfp, None);
        self.refill(&mut refill);
        refill.filled
    }

    /// Takes objects from the lists of this CPU's node, then from other nodes, then from new slabs.
    /// The rest of the last slab may be spilled.
    pub(crate) fn refill(&self, refill: &mut Refill<'_, P>) {
        let nid = self.memory_node(self.nid());
        self.refill_from_node(refill, refill.cache.node(nid));
        if refill.missing() > 0 && self.nr_nodes() > 1 {
            self.refill_from_others(refill, nid);
        }
        self.refill_from_new(refill, nid);
    }

    /// As [`refill`](Self::refill), but from node `nid`; from no other node with
    /// [`THISNODE`](Gfp::THISNODE).
    pub(crate) fn refill_on(&self, refill: &mut Refill<'_, P>, nid: usize) {
        self.refill_from_node(refill, refill.cache.node(nid));
        self.refill_from_new(refill, nid);
    }

    /// Takes from new slabs of node `nid` until there are `min` objects; the last slab may yield
    /// more.
    #[inline(never)]
    fn refill_from_new(&self, refill: &mut Refill<'_, P>, nid: usize) {
        let cache = refill.cache;
        while refill.missing() > 0 {
            let wanted = refill.filled..refill.min;
            let before = refill.filled;
            refill.filled += self.alloc_entire_slabs(cache, nid, &mut refill.out[wanted]);
            if refill.missing() == 0 {
                break;
            }
            let Some(slab) = self.new_slab(cache, nid, refill.gfp) else {
                break;
            };
            let node = cache.node(usize::from(slab.node()));
            self.refill_from_empty(refill, node, slab);
            if refill.filled == before {
                // The constructor failed.
                break;
            }
        }
    }

    /// Takes from an empty slab that we own. A slab with free slots left becomes first in the list.
    #[inline(never)]
    fn refill_from_empty(&self, refill: &mut Refill<'_, P>, node: &Node<P>, slab: &Slab) {
        if self.take_from(refill, slab) == Ownership::Gone {
            return;
        }
        match self.lock_lists(refill.cache, node, refill.gfp.may_spin()) {
            Some(mut lists) => {
                slab.set_partial(true);
                lists.partial.push_front(&self.zone.arena, slab);
                node.update_counts(&lists);
            }
            None => node.push_pending(&self.zone.arena, slab),
        }
    }

    /// Refills in a context that may not wait: takes objects while it holds the list lock, so that
    /// it need not lock again. A free that would list or discard such a slab waits for the lock.
    /// Spills nothing.
    #[inline(never)]
    pub(crate) fn refill_under_lock(&self, refill: &mut Refill<'_, P>, node: &Node<P>) {
        let (arena, has_reserve) = (&self.zone.arena, refill.cache.has_reserve());
        let Some(mut lists) = self.lock_lists(refill.cache, node, false) else {
            return;
        };
        let overflow = refill.overflow.take();
        node.drain_pending(arena, &mut lists, has_reserve);
        while !refill.room().is_empty() {
            if let Some(slab) = lists.empty.first(arena)
                && lists.partial.is_empty()
            {
                lists.empty.remove(arena, slab);
                lists.partial.push_back(arena, slab);
            }
            let Some(slab) = lists.partial.first(arena) else {
                break;
            };
            if self.take_from(refill, slab) == Ownership::Ours {
                break;
            }
            lists.partial.remove(arena, slab);
            slab.set_partial(false);
        }
        node.update_counts(&lists);
        refill.overflow = overflow;
    }

    #[inline(never)]
    fn refill_from_node(&self, refill: &mut Refill<'_, P>, node: &Node<P>) {
        if node.nr_partial() == 0 && !node.has_pending() {
            while refill.missing() > 0
                && let Some(slab) = node.take_ready(&self.zone.arena)
            {
                self.refill_from_empty(refill, node, slab);
            }
            if refill.missing() == 0 || node.nr_empty() == 0 {
                return;
            }
        }
        self.refill_from_lists(refill, node);
    }

    /// Takes from a node's listed slabs.
    #[inline(never)]
    fn refill_from_lists(&self, refill: &mut Refill<'_, P>, node: &Node<P>) {
        let (arena, cache) = (&self.zone.arena, refill.cache);
        if !refill.gfp.may_spin() {
            if cache.never_waits() {
                self.refill_under_lock(refill, node);
            }
            return;
        }
        let (min, max) = (refill.missing(), refill.room().len());
        let Some(isolated) = self.detach_partial(cache, node, min, max, refill.gfp) else {
            return;
        };
        let mut rest = SlabList::new();
        for slab in isolated.iter(arena) {
            if refill.room().is_empty() || self.take_from(refill, slab) == Ownership::Ours {
                rest.push_back(arena, slab);
            }
        }
        if !rest.is_empty()
            && let Some(mut lists) = self.lock_lists(cache, node, true)
        {
            self.relist(cache, &mut lists, rest);
            node.update_counts(&lists);
        }
    }

    /// Refills from partial slabs of other nodes than `nid`, the nearest first. Only sometimes
    /// (`remote_node_defrag_ratio` times in 1024), only from nodes with more than `min_partial`
    /// partial slabs, and without waiting.
    #[inline(never)]
    pub(crate) fn refill_from_others(&self, refill: &mut Refill<'_, P>, nid: usize) {
        let cache = refill.cache;
        let ratio = u64::from(cache.tuning.remote_node_defrag_ratio);
        if self.platform.random() % 1024 >= ratio {
            return;
        }
        let mut last = None;
        while !refill.room().is_empty()
            && let Some(other) = self.next_nearest(nid, last)
        {
            let node = cache.node(other);
            if node.nr_partial() > cache.min_partial {
                self.refill_under_lock(refill, node);
            }
            last = Some(other);
        }
    }

    /// Lists isolated slabs with free slots again.
    fn relist(&self, cache: &SlabCache<P>, lists: &mut NodeLists, mut rest: SlabList) {
        let arena = &self.zone.arena;
        if !cache.has_reserve() {
            rest.iter(arena).for_each(|slab| slab.set_partial(true));
            return lists.partial.append(arena, &mut rest);
        }
        for slab in rest.iter(arena) {
            lists.add(arena, slab, true);
        }
    }

    /// Removes slabs with about `min` to `max` free slots from the list.
    fn detach_partial(
        &self,
        cache: &SlabCache<P>,
        node: &Node<P>,
        min: usize,
        max: usize,
        gfp: Gfp,
    ) -> Option<SlabList> {
        let arena = &self.zone.arena;
        let mut lists = self.lock_lists(cache, node, gfp.may_spin())?;
        node.drain_pending(arena, &mut lists, cache.has_reserve());
        let mut isolated = SlabList::new();
        let mut free = 0;
        while free < max
            && let Some(slab) = lists.partial.first(arena)
        {
            // A lower bound: frees may push meanwhile.
            let more = (cache.geometry.objects - slab.state().inuse()) as usize;
            if free >= min && free + more > max {
                break;
            }
            lists.partial.remove(arena, slab);
            slab.set_partial(false);
            isolated.push_back(arena, slab);
            free += more;
        }
        while free < min
            && let Some(slab) = node.take_empty(arena, &mut lists)
        {
            isolated.push_back(arena, slab);
            free += cache.geometry.objects as usize;
            let left = lists.empty.len();
            lists.reserve.took(left, node.nr_slabs() - left);
        }
        node.refill_ready(arena, &mut lists);
        node.update_counts(&lists);
        Some(isolated)
    }
}
