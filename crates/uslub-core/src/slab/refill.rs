//! Which slabs a refill takes objects from: partial ones first, then fresh ones.
//!
//! A refill isolates as many partial slabs as it needs under one short hold of the list lock,
//! empties them without it ([`crate::slab::take`]), and puts back those that still have free slots
//! under a second hold.

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::platform::Platform;
use crate::slab::node::{Lists, Node, SlabList};
use crate::slab::state::Slab;
use crate::slab::take::{Outcome, Refill};

impl<P: Platform> Allocator<P> {
    /// Takes at least `min` objects, at most as many as `out` holds; returns how many.
    /// Fewer than `min` means that memory ran out (or may not be asked for).
    pub(crate) fn refill_objects(
        &self,
        cache: &KmemCache<P>,
        out: &mut [*mut u8],
        min: usize,
        gfp: Gfp,
    ) -> usize {
        let mut refill = Refill::new(cache, out, min, gfp, None);
        self.refill(&mut refill);
        refill.filled
    }

    /// Takes objects from the lists of this CPU's node, then from other nodes, then from new slabs.
    /// What the last slab has beyond them may be spilled.
    pub(crate) fn refill(&self, refill: &mut Refill<'_, P>) {
        let nid = self.memory_node(self.nid());
        self.refill_from_node(refill, refill.cache.node(nid));
        if refill.missing() > 0 && self.nr_nodes() > 1 {
            self.refill_from_others(refill, nid);
        }
        self.refill_from_new(refill, nid);
    }

    /// As [`refill`](Self::refill), from a node of the caller's choice; from no other with
    /// [`THISNODE`](Gfp::THISNODE).
    pub(crate) fn refill_on(&self, refill: &mut Refill<'_, P>, nid: usize) {
        self.refill_from_node(refill, refill.cache.node(nid));
        self.refill_from_new(refill, nid);
    }

    /// Takes from fresh slabs of node `nid` until there are `min` objects; the last may have more
    /// than is wanted.
    #[inline(never)]
    fn refill_from_new(&self, refill: &mut Refill<'_, P>, nid: usize) {
        let cache = refill.cache;
        while refill.missing() > 0 {
            let wanted = refill.filled..refill.min;
            let before = refill.filled;
            refill.filled += self.use_up_new_slabs(cache, nid, &mut refill.out[wanted]);
            if refill.missing() == 0 {
                break;
            }
            let Some(slab) = self.new_slab(cache, nid, refill.gfp) else {
                break;
            };
            let node = cache.node(usize::from(slab.node()));
            self.refill_from_empty(refill, node, slab);
            if refill.filled == before {
                // The constructor gave up.
                break;
            }
        }
    }

    /// Takes from an empty slab of ours. If it is not used up it goes to the head of the list.
    #[inline(never)]
    fn refill_from_empty(&self, refill: &mut Refill<'_, P>, node: &Node<P>, slab: &Slab) {
        if self.take_from(refill, slab) == Outcome::Gone {
            return;
        }
        match self.lock_lists(refill.cache, node, refill.gfp.may_spin()) {
            Some(mut lists) => {
                slab.set_partial(true);
                lists.partial.push_front(&self.zone.arena, slab);
                node.note(&lists);
            }
            None => node.stash(&self.zone.arena, slab),
        }
    }

    /// Refills where nothing may be waited for: slabs are emptied while the list lock is held,
    /// which need not be taken again then. Frees that would list or discard such a slab wait for
    /// the lock. Nothing is spilled.
    #[inline(never)]
    pub(crate) fn refill_under_lock(&self, refill: &mut Refill<'_, P>, node: &Node<P>) {
        let (arena, has_reserve) = (&self.zone.arena, refill.cache.has_reserve());
        let Some(mut lists) = self.lock_lists(refill.cache, node, false) else {
            return;
        };
        let overflow = refill.overflow.take();
        node.absorb(arena, &mut lists, has_reserve);
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
            if self.take_from(refill, slab) == Outcome::Ours {
                break;
            }
            lists.partial.remove(arena, slab);
            slab.set_partial(false);
        }
        node.note(&lists);
        refill.overflow = overflow;
    }

    #[inline(never)]
    fn refill_from_node(&self, refill: &mut Refill<'_, P>, node: &Node<P>) {
        if node.nr_partial() == 0 && !node.has_strays() {
            while refill.missing() > 0
                && let Some(slab) = node.take_at_hand(&self.zone.arena)
            {
                self.refill_from_empty(refill, node, slab);
            }
            if refill.missing() == 0 || node.nr_empty() == 0 {
                return;
            }
        }
        self.refill_from_lists(refill, node);
    }

    /// Takes from listed slabs of a node.
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
        let Some(isolated) = self.isolate(cache, node, min, max, refill.gfp) else {
            return;
        };
        let mut rest = SlabList::new();
        let mut at = isolated.first(arena);
        while let Some(slab) = at {
            // Read first: a slab that is gone may be linked elsewhere.
            at = SlabList::after(arena, slab);
            if refill.room().is_empty() || self.take_from(refill, slab) == Outcome::Ours {
                rest.push_back(arena, slab);
            }
        }
        if !rest.is_empty()
            && let Some(mut lists) = self.lock_lists(cache, node, true)
        {
            self.list_again(cache, &mut lists, rest);
            node.note(&lists);
        }
    }

    /// Takes from other nodes than `nid`, the nearest first: only now and then
    /// (`remote_node_defrag_ratio` times in 1024), only where there are more slabs than the node's
    /// reserve, and without waiting.
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

    /// Lists slabs again that were isolated and still have free slots.
    fn list_again(&self, cache: &KmemCache<P>, lists: &mut Lists, mut rest: SlabList) {
        let arena = &self.zone.arena;
        let mut at = rest.first(arena);
        if !cache.has_reserve() {
            while let Some(slab) = at {
                slab.set_partial(true);
                at = SlabList::after(arena, slab);
            }
            return lists.partial.append(arena, &mut rest);
        }
        while let Some(slab) = at {
            at = SlabList::after(arena, slab);
            lists.add(arena, slab, true);
        }
    }

    /// Takes slabs with about `min` to `max` free slots off the list.
    fn isolate(
        &self,
        cache: &KmemCache<P>,
        node: &Node<P>,
        min: usize,
        max: usize,
        gfp: Gfp,
    ) -> Option<SlabList> {
        let arena = &self.zone.arena;
        let mut lists = self.lock_lists(cache, node, gfp.may_spin())?;
        node.absorb(arena, &mut lists, cache.has_reserve());
        let mut isolated = SlabList::new();
        let mut free = 0;
        while free < max
            && let Some(slab) = lists.partial.first(arena)
        {
            // A lower bound: frees may come in.
            let more = (cache.oo.objects - slab.state().inuse()) as usize;
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
            free += cache.oo.objects as usize;
            let left = lists.empty.len();
            lists.reserve.took(left, node.nr_slabs() - left);
        }
        node.offer(arena, &mut lists);
        node.note(&lists);
        Some(isolated)
    }
}
