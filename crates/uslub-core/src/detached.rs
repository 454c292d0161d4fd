//! Detached freelists: objects of one slab, linked with each other before the slab is touched.
//!
//! Objects that are being freed belong to the caller, so nobody sees the links. The whole list is then pushed by one
//! compare-and-swap. Two kinds of push change the node's lists of slabs and need its lock: the first of a full slab,
//! which is listed then, and the one that empties a slab. They wait for each other, `WAITING` at most, and share one hold.

use core::ptr::null_mut;

use crate::allocator::Allocator;
use crate::cache::KmemCache;
use crate::gfp::Gfp;
use crate::node::{Lists, SlabList};
use crate::platform::Platform;
use crate::slab::{Slab, State};
use crate::stats::StatItem;

/// Lists that share one hold of the list lock, at most.
const WAITING: usize = 8;

/// Objects of one slab, linked from `head` to `tail`.
pub(crate) struct Detached<'a> {
    pub(crate) slab: &'a Slab,
    pub(crate) head: *mut u8,
    pub(crate) tail: *mut u8,
    /// Objects in it.
    pub(crate) count: usize,
}

/// Detached lists that wait for the list lock of one node.
pub(crate) struct Waiting<'a> {
    lists: [Option<Detached<'a>>; WAITING],
    len: usize,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new() -> Self {
        Self {
            lists: [const { None }; WAITING],
            len: 0,
        }
    }

    /// The first objects of the lists of this slab: a slab has several where objects of others lie between its own.
    pub(crate) fn heads_of(&self, slab: &Slab) -> impl Iterator<Item = *mut u8> {
        let waiting = self.lists[..self.len].iter().flatten();
        let own = waiting.filter(move |list| core::ptr::eq(list.slab, slab));
        own.map(|list| list.head)
    }

    /// Whether one of the lists is of this slab.
    pub(crate) fn has(&self, slab: &Slab) -> bool {
        self.heads_of(slab).next().is_some()
    }

    /// Whether a list of this slab can wait too.
    fn takes(&self, slab: &Slab) -> bool {
        let first = self.lists[0].as_ref().filter(|_| self.len > 0);
        self.len < WAITING && first.is_none_or(|list| list.slab.node() == slab.node())
    }

    fn drain(&mut self) -> impl Iterator<Item = Detached<'a>> {
        let len = core::mem::take(&mut self.len);
        self.lists[..len].iter_mut().filter_map(Option::take)
    }
}

impl<P: Platform> Allocator<P> {
    /// Pushes a chain of `count` objects, linked from `head` to `tail`, onto a slab's freelist;
    /// the kernel's `__slab_free`.
    pub(crate) fn slab_free(&self, cache: &KmemCache<P>, detached: Detached<'_>, gfp: Gfp) {
        let mut waiting = Waiting::new();
        self.push_or_wait(cache, detached, &mut waiting, gfp);
        self.push_waiting(cache, &mut waiting, gfp);
    }

    /// Pushes a list, now or, where that takes the list lock, with those that wait for it.
    pub(crate) fn push_or_wait<'a>(
        &self,
        cache: &KmemCache<P>,
        detached: Detached<'a>,
        waiting: &mut Waiting<'a>,
        gfp: Gfp,
    ) {
        if !gfp.may_spin() && !cache.never_waits() {
            return self.defer(cache, &detached);
        }
        let Err(detached) = self.push_unlisted(cache, detached) else {
            return;
        };
        if !waiting.takes(detached.slab) {
            self.push_waiting(cache, waiting, gfp);
        }
        waiting.lists[waiting.len] = Some(detached);
        waiting.len += 1;
    }

    /// Pushes all lists that wait, in one hold of the list lock.
    pub(crate) fn push_waiting(&self, cache: &KmemCache<P>, waiting: &mut Waiting<'_>, gfp: Gfp) {
        let mut left = waiting.drain().peekable();
        let Some(first) = left.peek() else {
            return;
        };
        let node = cache.node(usize::from(first.slab.node()));
        let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
            return left.for_each(|detached| self.defer(cache, &detached));
        };
        let mut emptied = SlabList::new();
        for detached in left {
            self.push_listed(cache, &mut lists, &detached, gfp, &mut emptied);
        }
        if emptied.is_empty() {
            node.note(&lists);
        } else {
            self.slabs_emptied(cache, node, lists, emptied);
        }
    }

    /// Pushes a list if no list of slabs changes by that; else gives it back.
    fn push_unlisted<'a>(
        &self,
        cache: &KmemCache<P>,
        detached: Detached<'a>,
    ) -> Result<(), Detached<'a>> {
        let slab = detached.slab;
        let mut old = slab.state();
        while !old.frozen() {
            let new = self.link_behind(cache, &detached, old);
            if old.inuse() == cache.oo.objects || new.inuse() == 0 {
                return Err(detached);
            }
            match cache.change(slab, old, new) {
                Ok(()) => return Ok(()),
                Err(now) => old = now,
            }
            self.count(cache, StatItem::CmpxchgDoubleFail, 1);
        }
        Ok(())
    }

    /// Pushes a list under the list lock. A slab that is not to stay goes from its list to `emptied`.
    fn push_listed(
        &self,
        cache: &KmemCache<P>,
        lists: &mut Lists,
        detached: &Detached<'_>,
        gfp: Gfp,
        emptied: &mut SlabList,
    ) {
        let arena = &self.zone.arena;
        let slab = detached.slab;
        let mut old = slab.state();
        let new = loop {
            if old.frozen() {
                return;
            }
            let new = self.link_behind(cache, detached, old);
            match cache.change(slab, old, new) {
                Ok(()) => break new,
                Err(now) => old = now,
            }
            self.count(cache, StatItem::CmpxchgDoubleFail, 1);
        };
        let was_full = old.inuse() == cache.oo.objects;
        if !was_full && !slab.partial() {
            // Somebody has it isolated and will put it back.
            return;
        }
        let discards = cache.has_reserve() || lists.partial.len() >= cache.min_partial;
        if new.inuse() == 0 && discards && gfp.may_spin() {
            if !was_full {
                lists.partial.remove(arena, slab);
                slab.set_partial(false);
                if !cache.has_reserve() {
                    self.count(cache, StatItem::FreeRemovePartial, 1);
                }
            }
            emptied.push_back(arena, slab);
        } else if was_full {
            lists.add(arena, slab, cache.has_reserve());
            self.count(cache, StatItem::FreeAddPartial, 1);
        }
    }

    /// The state after a push of the list, whose tail is linked to the slab's freelist as `old` has it.
    fn link_behind(&self, cache: &KmemCache<P>, detached: &Detached<'_>, old: State) -> State {
        let Detached {
            slab,
            head,
            tail,
            count,
        } = *detached;
        if old.inuse() < count as u32 {
            self.misuse(
                cache,
                head,
                "double free: its slab has no such object in use",
            );
        }
        let base = self.slab_base(slab);
        let next = old.head().map_or(null_mut(), |o| base.wrapping_add(o));
        // SAFETY: the tail is the caller's until the state says otherwise.
        unsafe { cache.links_of(slab).set(tail, next) };
        let offset = head as usize - base as usize;
        old.with(Some(offset), old.inuse() - count as u32)
    }
}
