//! Taking objects out of slabs: partial ones first, then fresh ones.
//!
//! A refill isolates as many partial slabs as it needs under one short hold of
//! the list lock, empties them without it, and puts back those that still have
//! free slots under a second hold. A slab's freelist is detached whole by one
//! compare-and-swap; what the caller has no room for goes back by another (the
//! *optimistic return*), without a walk, unless a free came in between.
//!
//! Slots that were never handed out are emitted by the iterator straight into the caller's
//! array: no link is written for them, neither now (as all of them leave) nor for the
//! rest (which stay fresh until somebody asks). A slab that became quite empty starts over
//! as fresh, so its old links are never read.

use core::ptr::null_mut;

use crate::allocator::Allocator;
use crate::args::CACHE_LINE;
use crate::cache::KmemCache;
use crate::detached::Detached;
use crate::gfp::Gfp;
use crate::node::{Lists, Node, SlabList};
use crate::platform::Platform;
use crate::slab::{Slab, State};
use crate::spill::Spill;
use crate::stats::StatItem;

/// Lines that may be asked for, for each link that is read one after the other.
const WORTH: usize = 4;

/// What became of an isolated slab.
#[derive(PartialEq, Eq)]
enum Outcome {
    /// It still has free slots and is still ours.
    Ours,
    /// It is full, or somebody else has listed it.
    Gone,
}

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
        self.refill_spilling(cache, out, min, gfp, &mut Spill::none())
    }

    /// As [`refill_objects`](Self::refill_objects); what the last slab has beyond that may be spilled.
    pub(crate) fn refill_spilling(
        &self,
        cache: &KmemCache<P>,
        out: &mut [*mut u8],
        min: usize,
        gfp: Gfp,
        spill: &mut Spill,
    ) -> usize {
        let nid = self.memory_node(self.nid());
        let mut filled = self.refill_from_node(cache, cache.node(nid), out, min, gfp, spill);
        if filled < min && self.nr_nodes() > 1 {
            filled += self.refill_from_others(cache, nid, &mut out[filled..]);
        }
        filled
            + self.refill_from_new(
                cache,
                nid,
                &mut out[filled..],
                min.saturating_sub(filled),
                gfp,
                spill,
            )
    }

    /// As [`refill_objects`](Self::refill_objects), from a node of the caller's choice; from no other with
    /// [`THISNODE`](Gfp::THISNODE).
    pub(crate) fn refill_on(
        &self,
        cache: &KmemCache<P>,
        nid: usize,
        out: &mut [*mut u8],
        min: usize,
        gfp: Gfp,
    ) -> usize {
        let spill = &mut Spill::none();
        let filled = self.refill_from_node(cache, cache.node(nid), out, min, gfp, spill);
        filled
            + self.refill_from_new(
                cache,
                nid,
                &mut out[filled..],
                min.saturating_sub(filled),
                gfp,
                spill,
            )
    }

    /// Takes from fresh slabs of node `nid` until there are `min` objects; the last may have more than is wanted.
    #[inline(never)]
    fn refill_from_new(
        &self,
        cache: &KmemCache<P>,
        nid: usize,
        out: &mut [*mut u8],
        min: usize,
        gfp: Gfp,
        spill: &mut Spill,
    ) -> usize {
        let mut filled = self.use_up_new_slabs(cache, nid, &mut out[..min], gfp);
        while filled < min {
            let Some(slab) = self.new_slab(cache, nid, gfp) else {
                break;
            };
            let node = cache.node(usize::from(slab.node()));
            let taken = self.refill_from_empty(cache, node, slab, &mut out[filled..], gfp, spill);
            filled += taken;
            if taken == 0 {
                // The constructor gave up.
                break;
            }
        }
        filled
    }

    /// Takes from fresh slabs of node `nid` those objects that come by whole slabs; returns how many.
    #[inline]
    pub(crate) fn use_up_new_slabs(
        &self,
        cache: &KmemCache<P>,
        nid: usize,
        out: &mut [*mut u8],
        gfp: Gfp,
    ) -> usize {
        if !cache.leaves_whole() {
            return 0;
        }
        let objects = cache.oo.objects as usize;
        let (mut filled, mut rest) = (0, out);
        while rest.len() >= objects {
            let (bulk, others) = rest.split_at_mut(objects);
            if !self.use_up_new_slab(cache, nid, gfp, bulk) {
                break;
            }
            (filled, rest) = (filled + objects, others);
        }
        filled
    }

    /// Takes from an empty slab of ours. If it is not used up it goes to the head of the list.
    #[inline(never)]
    fn refill_from_empty(
        &self,
        cache: &KmemCache<P>,
        node: &Node<P>,
        slab: &Slab,
        out: &mut [*mut u8],
        gfp: Gfp,
        spill: &mut Spill,
    ) -> usize {
        let (taken, outcome) = self.take_from(cache, slab, out, gfp, spill);
        if outcome == Outcome::Ours {
            match self.lock_lists(cache, node, gfp.may_spin()) {
                Some(mut lists) => {
                    slab.set_partial(true);
                    lists.partial.push_front(&self.zone.arena, slab);
                    node.note(&lists);
                }
                None => node.stash(&self.zone.arena, slab),
            }
        }
        taken
    }

    /// Refills where nothing may be waited for: slabs are emptied while the list lock is held, which need not be taken
    /// again then. Frees that would list or discard such a slab wait for the lock.
    #[inline(never)]
    pub(crate) fn refill_under_lock(
        &self,
        cache: &KmemCache<P>,
        node: &Node<P>,
        out: &mut [*mut u8],
    ) -> usize {
        let arena = &self.zone.arena;
        let Some(mut lists) = self.lock_lists(cache, node, false) else {
            return 0;
        };
        node.absorb(arena, &mut lists, cache.has_reserve());
        let mut filled = 0;
        while filled < out.len() {
            if let Some(slab) = lists.empty.first(arena)
                && lists.partial.is_empty()
            {
                lists.empty.remove(arena, slab);
                lists.partial.push_back(arena, slab);
            }
            let Some(slab) = lists.partial.first(arena) else {
                break;
            };
            let (taken, outcome) = self.take_from(
                cache,
                slab,
                &mut out[filled..],
                Gfp::NOSPIN,
                &mut Spill::none(),
            );
            filled += taken;
            if outcome == Outcome::Ours {
                break;
            }
            lists.partial.remove(arena, slab);
            slab.set_partial(false);
        }
        node.note(&lists);
        filled
    }

    #[inline(never)]
    fn refill_from_node(
        &self,
        cache: &KmemCache<P>,
        node: &Node<P>,
        out: &mut [*mut u8],
        min: usize,
        gfp: Gfp,
        spill: &mut Spill,
    ) -> usize {
        let arena = &self.zone.arena;
        let listed = node.nr_partial() > 0 || node.has_strays();
        let mut filled = 0;
        if !listed {
            while filled < min
                && let Some(slab) = node.take_at_hand(arena)
            {
                filled += self.refill_from_empty(cache, node, slab, &mut out[filled..], gfp, spill);
            }
            if filled >= min || node.nr_empty() == 0 {
                return filled;
            }
        }
        let (out, min) = (&mut out[filled..], min - filled);
        filled + self.refill_from_lists(cache, node, out, min, gfp, spill)
    }

    /// Takes from listed slabs of a node.
    #[inline(never)]
    fn refill_from_lists(
        &self,
        cache: &KmemCache<P>,
        node: &Node<P>,
        out: &mut [*mut u8],
        min: usize,
        gfp: Gfp,
        spill: &mut Spill,
    ) -> usize {
        let arena = &self.zone.arena;
        if !gfp.may_spin() && !cache.never_waits() {
            return 0;
        }
        if !gfp.may_spin() {
            return self.refill_under_lock(cache, node, out);
        }
        let Some(isolated) = self.isolate(cache, node, min, out.len(), gfp) else {
            return 0;
        };
        let mut filled = 0;
        let mut rest = SlabList::new();
        let mut at = isolated.first(arena);
        while let Some(slab) = at {
            // Read first: a slab that is gone may be linked elsewhere.
            at = SlabList::after(arena, slab);
            let outcome = if filled < out.len() {
                let (taken, outcome) = self.take_from(cache, slab, &mut out[filled..], gfp, spill);
                filled += taken;
                outcome
            } else {
                Outcome::Ours
            };
            if outcome == Outcome::Ours {
                rest.push_back(arena, slab);
            }
        }
        if !rest.is_empty() {
            let lists = self.lock_lists(cache, node, true);
            if let Some(mut lists) = lists {
                self.list_again(cache, &mut lists, rest);
                node.note(&lists);
            }
        }
        filled
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

    /// Takes up to `out.len()` objects out of a slab that we own, and the rest of them if it can be spilled.
    #[inline]
    fn take_from(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        out: &mut [*mut u8],
        gfp: Gfp,
        spill: &mut Spill,
    ) -> (usize, Outcome) {
        let objects = cache.oo.objects as usize;
        if cache.leaves_whole() && out.len() >= objects && slab.state().inuse() == 0 {
            self.take_whole(cache, slab, &mut out[..objects]);
            return (objects, Outcome::Gone);
        }
        self.take_some(cache, slab, out, gfp, spill)
    }

    /// Takes all objects out of a slab that we own, none of which is in use: nobody can push, and its links, if it has any, are forgotten.
    fn take_whole(&self, cache: &KmemCache<P>, slab: &Slab, out: &mut [*mut u8]) {
        slab.set_epoch(slab.epoch().wrapping_add(1));
        slab.set_position(out.len() as u16);
        slab.set_state(State::without_list(out.len() as u32));
        self.emit(cache, slab, self.slab_base(slab), 0, out);
    }

    /// As [`take_from`](Self::take_from), of any slab.
    #[inline(never)]
    fn take_some(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        out: &mut [*mut u8],
        gfp: Gfp,
        spill: &mut Spill,
    ) -> (usize, Outcome) {
        let objects = cache.oo.objects;
        let position = u32::from(slab.position());
        let mut old = slab.state();
        // Constructed objects stay what they are: such a slab does not start over.
        let starts_over = old.inuse() == 0
            && (cache.ctor.is_none() || position == 0)
            && cache.tuning.freelist_deferred == 1;
        if starts_over {
            // Its old links are forgotten.
            slab.set_epoch(slab.epoch().wrapping_add(1));
        }
        let first = if starts_over { 0 } else { position };
        let fresh_left = objects - first;
        let listed = (objects - old.inuse() - fresh_left) as usize;
        self.fetch_links(cache, slab, first as usize, listed.min(out.len()));
        let mut constructed = None;
        let (listed, fresh, spilled, new) = loop {
            let listed = objects - old.inuse() - fresh_left;
            let rest = ((listed + fresh_left) as usize).saturating_sub(out.len());
            let spilled = self.spill_room(cache, spill, rest, gfp);
            let room = (out.len() + spilled) as u32;
            let mut fresh = fresh_left.min(room.saturating_sub(listed));
            if let Some(ctor) = cache.ctor {
                // Once: what is constructed leaves, however many frees come in.
                fresh = *constructed
                    .get_or_insert_with(|| self.construct(cache, ctor, slab, first, fresh));
            }
            let new = State::without_list(old.inuse() + listed + fresh);
            // Before the state: whoever owns the slab next must see it.
            slab.set_position((first + fresh) as u16);
            if old.inuse() == 0 {
                // Nobody holds an object of it, so nobody can push.
                slab.set_state(new);
                break (listed as usize, fresh as usize, spilled, new);
            }
            match cache.change(slab, old, new) {
                Ok(()) => break (listed as usize, fresh as usize, spilled, new),
                Err(now) => {
                    self.count(cache, StatItem::CmpxchgDoubleFail, 1);
                    old = now;
                }
            }
        };
        let base = self.slab_base(slab);
        // Without a spill all fresh objects are wanted, and a free that came in since may have brought more than that leaves room for.
        let kept = if spilled > 0 { 0 } else { fresh };
        let from_list = listed.min(out.len() - kept);
        let fresh_out = fresh.min(out.len() - from_list);
        let mut at = old
            .head()
            .filter(|_| listed > 0)
            .map_or(null_mut(), |o| base.wrapping_add(o));
        for slot in &mut out[..from_list] {
            *slot = at;
            at = self.next_free(cache, slab, base, at);
        }
        let first = first as usize;
        let taken = from_list + fresh_out;
        self.emit(cache, slab, base, first, &mut out[from_list..taken]);
        let outcome = if new.inuse() < objects {
            Outcome::Ours
        } else {
            Outcome::Gone
        };
        let left = listed - from_list;
        if let Some(sheaf) = spill.sheaf.as_mut().filter(|_| spilled > 0) {
            let room = &mut sheaf.room()[..spilled];
            for slot in &mut room[..left] {
                *slot = at;
                at = self.next_free(cache, slab, base, at);
            }
            self.emit(cache, slab, base, first + fresh_out, &mut room[left..]);
            sheaf.grow(spilled);
            self.count(cache, StatItem::SheafSpill, spilled);
        } else if left > 0 {
            return (taken, self.return_rest(cache, slab, base, new, at, left));
        }
        (taken, outcome)
    }

    /// Asks for the lines of a slab's links, as each of those that are `wanted` is found by the one before, and waited for. Whose they
    /// are of the slots that were `used` nobody knows yet, so all are asked for, or none where most would be in vain.
    #[inline]
    fn fetch_links(&self, cache: &KmemCache<P>, slab: &Slab, used: usize, wanted: usize) {
        let size = cache.size as usize;
        let (bytes, step) = (used * size, size.max(CACHE_LINE));
        if wanted <= 2 || wanted * step * WORTH < bytes {
            return;
        }
        let base = self
            .slab_base(slab)
            .wrapping_add(cache.links.offset as usize);
        for link in (0..bytes).step_by(step) {
            self.platform.fetch_line(base.wrapping_add(link));
        }
    }

    /// The object behind `object` in a detached freelist, whose link is wiped.
    fn next_free(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        base: *mut u8,
        object: *mut u8,
    ) -> *mut u8 {
        if object.is_null() {
            self.corrupt(
                cache,
                object,
                "its slab's freelist is shorter than its counter says",
            );
        }
        // SAFETY: a slot of the slab, free, and detached by us.
        let next = unsafe { cache.links_of(slab).take(object) };
        let offset = (next as usize).wrapping_sub(base as usize);
        if !next.is_null() && (offset >= cache.oo.bytes() || !cache.is_slot(offset)) {
            self.corrupt(
                cache,
                object,
                "the link inside this free object was overwritten",
            );
        }
        next
    }

    /// Puts the rest of a detached freelist back.
    ///
    /// This takes no list lock, and the slab is listed afterwards. It is safe, as one rule says who
    /// lists a slab: who makes a full slab partial, by the compare-and-swap that does so. Story,
    /// with a slab that the detach left full:
    ///
    /// 1. Refill A detaches the whole freelist. The slab is full and on no list.
    /// 2. Free F pushes an object under the list lock. It made the slab partial, so it lists it.
    /// 3. Refill B isolates the slab and takes F's object. The slab is full again: its word is that of step 1.
    /// 4. A's compare-and-swap succeeds, though the slab was another's in between. A made the slab partial: it lists it.
    ///    B found no slot left, or fails at its own compare-and-swap, and so does not.
    ///
    /// Had A come between 2 and 3, its compare-and-swap would fail, and its rest be a free like any
    /// other: F or B has the slab. A slab that the detach left partial (slots of it are fresh)
    /// stays with its refill, as no free lists it. What A holds counts as in use all the time. So
    /// no slab empties, or is discarded, under a return.
    #[inline(never)]
    fn return_rest(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        base: *mut u8,
        left: State,
        head: *mut u8,
        count: usize,
    ) -> Outcome {
        let offset = head as usize - base as usize;
        let back = left.with(Some(offset), left.inuse() - count as u32);
        loop {
            match cache.change(slab, left, back) {
                Ok(()) => return Outcome::Ours,
                Err(now) if now == left => {}
                Err(_) => break,
            }
        }
        // A free came in between: find the tail and push the rest behind its list.
        let mut tail = head;
        for _ in 1..count {
            // SAFETY: a slot of the slab, free, and detached by us.
            tail = unsafe { cache.links_of(slab).get(tail) };
            let offset = (tail as usize).wrapping_sub(base as usize);
            if offset >= cache.oo.bytes() {
                self.corrupt(cache, tail, "a freelist ends before its count");
            }
        }
        if left.inuse() == cache.oo.objects {
            // It looked full, so that free has listed it.
            let detached = Detached {
                slab,
                head,
                tail,
                count,
            };
            self.slab_free(cache, detached, Gfp::KERNEL);
            return Outcome::Gone;
        }
        let mut old = slab.state();
        loop {
            // SAFETY: the tail is ours until the state says otherwise.
            unsafe {
                let next = old.head().map_or(null_mut(), |o| base.wrapping_add(o));
                cache.links_of(slab).set(tail, next);
            }
            match cache.change(
                slab,
                old,
                old.with(Some(offset), old.inuse() - count as u32),
            ) {
                Ok(()) => return Outcome::Ours,
                Err(now) => old = now,
            }
        }
    }

    /// Ends the process: the memory of a free object was written to.
    #[cold]
    #[inline(never)]
    pub(crate) fn corrupt(&self, cache: &KmemCache<P>, object: *mut u8, why: &str) -> ! {
        self.platform.fatal(format_args!(
            "cache '{}': object {object:p} is corrupt: {why}",
            cache.name()
        ))
    }
}
