//! Detached freelists: objects of one slab, linked with each other before the slab is touched.
//!
//! The caller owns the objects that it frees, so no other thread sees the links. One
//! compare-and-swap then pushes the whole list.
//!
//! | push | list lock |
//! |---|---|
//! | any other | not taken |
//! | the first into a full slab: lists the slab | held |
//! | the one that empties the slab: unlists it | held |
//!
//! Lists that need the lock wait for each other, at most `PENDING_LISTS` of them, and share one
//! hold. In a context that may not wait, the objects are [deferred](crate::slab::deferred).
//! Callers: `free`, and `take` for a late return.

use core::mem::MaybeUninit;
use core::ptr::null_mut;

use crate::gfp::Gfp;
use crate::memory::{Arena, PageIndex};
use crate::misuse::Reason;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::PENDING_LISTS;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::node::{NodeLists, SlabList};
use crate::slab::state::{Slab, State};
use crate::sync::atomic;
use crate::sync::choice::Choice;

/// Objects of one slab, linked from `head` to `tail`.
pub(crate) struct Detached<'a> {
    pub(crate) slab: &'a Slab,
    pub(crate) head: *mut u8,
    pub(crate) tail: *mut u8,
    /// Objects in the list.
    pub(crate) count: usize,
}

/// A detached list in few bytes, as its user may have little stack: the slab's page, and offsets in
/// units of 8 bytes.
#[derive(Clone, Copy)]
#[repr(Rust, packed(2))]
struct Parked {
    page: PageIndex,
    head: u16,
    tail: u16,
    count: u16,
}

/// Detached lists that wait for the list lock of one node.
pub(crate) struct PendingLists {
    lists: [MaybeUninit<Parked>; PENDING_LISTS],
    len: usize,
}

impl PendingLists {
    pub(crate) fn new() -> Self {
        Self {
            lists: [const { MaybeUninit::uninit() }; PENDING_LISTS],
            len: 0,
        }
    }

    fn lists(&self) -> &[Parked] {
        // SAFETY: the first `len` entries are written.
        unsafe { &*(&raw const self.lists[..self.len] as *const [Parked]) }
    }

    /// The first objects of this slab's lists. A slab has several lists if objects of other slabs
    /// lay between its objects.
    pub(crate) fn heads_of(&self, arena: &Arena, slab: &Slab) -> impl Iterator<Item = *mut u8> {
        let page = arena.page_of_slab(slab);
        let base = arena.address(page).as_ptr();
        let own = self
            .lists()
            .iter()
            .filter(move |list| { list.page } == page);
        own.map(move |list| base.wrapping_add(usize::from(list.head) * 8))
    }

    /// Whether one of the lists belongs to this slab.
    pub(crate) fn has(&self, arena: &Arena, slab: &Slab) -> bool {
        let page = arena.page_of_slab(slab);
        self.lists().iter().any(|list| { list.page } == page)
    }

    /// Whether there is room for a list of this slab.
    pub(crate) fn takes(&self, arena: &Arena, slab: &Slab) -> bool {
        let first = self.lists().first();
        self.len < PENDING_LISTS
            && first.is_none_or(|list| arena.slab(list.page).node() == slab.node())
    }

    pub(crate) fn add(&mut self, arena: &Arena, list: &Detached<'_>) {
        let page = arena.page_of_slab(list.slab);
        let base = arena.address(page).as_ptr() as usize;
        // A slab has at most 256 KiB.
        let offset = |object: *mut u8| ((object as usize - base) / 8) as u16;
        self.lists[self.len].write(Parked {
            page,
            head: offset(list.head),
            tail: offset(list.tail),
            count: list.count as u16,
        });
        self.len += 1;
    }

    /// The list with index `at`.
    fn get<'a>(&self, arena: &'a Arena, at: usize) -> Detached<'a> {
        let list = self.lists()[at];
        let base = arena.address(list.page).as_ptr();
        Detached {
            slab: arena.slab(list.page),
            head: base.wrapping_add(usize::from(list.head) * 8),
            tail: base.wrapping_add(usize::from(list.tail) * 8),
            count: list.count.into(),
        }
    }
}

impl<P: Platform> Base<P> {
    /// Pushes a list of `count` objects, linked from `head` to `tail`, onto a slab's freelist: the
    /// kernel's `__slab_free`. Other objects of the slab must be in use.
    pub(crate) fn slab_free(&self, cache: &SlabCache<P>, detached: Detached<'_>, gfp: Gfp) {
        if !gfp.may_spin() && !cache.never_waits() {
            return self.defer(cache, &detached);
        }
        if self.push_unlisted(cache, &detached) {
            return;
        }
        let node = cache.node(usize::from(detached.slab.node()));
        let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
            return self.defer(cache, &detached);
        };
        let mut emptied = SlabList::new();
        self.push_listed(cache, &mut lists, &detached, gfp, &mut emptied);
        if !emptied.is_empty() {
            self.misuse(cache, detached.head, Reason::EmptySlab);
        }
        node.update_counts(&lists);
    }

    /// Pushes all waiting lists under one hold of the list lock. Slabs that must go back to the
    /// page layer go to `gone`.
    #[inline(never)]
    pub(crate) fn flush_pending(
        &self,
        cache: &SlabCache<P>,
        waiting: &mut PendingLists,
        gone: &mut SlabList,
        gfp: Gfp,
    ) {
        let (arena, len) = (&self.zone.arena, waiting.lists().len());
        let Some(first) = waiting.lists().first() else {
            return;
        };
        let node = cache.node(usize::from(arena.slab(first.page).node()));
        let Some(mut lists) = self.lock_lists(cache, node, gfp.may_spin()) else {
            (0..len).for_each(|at| self.defer(cache, &waiting.get(arena, at)));
            waiting.len = 0;
            return;
        };
        let mut emptied = SlabList::new();
        for at in 0..len {
            self.push_listed(
                cache,
                &mut lists,
                &waiting.get(arena, at),
                gfp,
                &mut emptied,
            );
        }
        waiting.len = 0;
        if emptied.is_empty() {
            node.update_counts(&lists);
        } else {
            self.slabs_emptied(cache, node, lists, emptied, gone);
        }
    }

    /// Pushes a list if the push changes no list of slabs; returns whether it did.
    #[inline(never)]
    pub(crate) fn push_unlisted(&self, cache: &SlabCache<P>, detached: &Detached<'_>) -> bool {
        let slab = detached.slab;
        let mut old = slab.state();
        while !old.frozen() {
            let new = self.link_behind(cache, detached, old);
            if old.inuse() == cache.geometry.objects || new.inuse() == 0 {
                return false;
            }
            match cache.compare_exchange_state(slab, old, new) {
                Ok(()) => return true,
                Err(now) => old = now,
            }
            self.count(cache, StatItem::CmpxchgDoubleFail, 1);
        }
        true
    }

    /// Pushes a list under the list lock. A slab that must not stay moves from its list to
    /// `emptied`.
    #[inline(never)]
    fn push_listed(
        &self,
        cache: &SlabCache<P>,
        lists: &mut NodeLists,
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
            match cache.compare_exchange_state(slab, old, new) {
                Ok(()) => break new,
                Err(now) => old = now,
            }
            self.count(cache, StatItem::CmpxchgDoubleFail, 1);
        };
        let was_full = old.inuse() == cache.geometry.objects;
        if !was_full && !slab.partial() {
            // A refill has isolated it and will list it.
            return;
        }
        let partial = lists.partial.len();
        let keeps = usize::from(partial < cache.min_partial);
        let keeps = atomic::choose(Choice::KeepEmpty { partial }, keeps) > 0;
        let discards = cache.has_reserve() || !keeps;
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

    /// Links the tail to the slab's freelist of state `old`; returns the state after the push.
    fn link_behind(&self, cache: &SlabCache<P>, detached: &Detached<'_>, old: State) -> State {
        let (slab, count) = (detached.slab, detached.count);
        if old.inuse() < count as u32 {
            self.misuse(cache, detached.head, Reason::NotInUse);
        }
        let base = self.slab_base(slab);
        let next = old.head().map_or(null_mut(), |o| base.wrapping_add(o));
        // SAFETY: the caller owns the tail until the state is changed.
        unsafe { cache.links_of(slab).set(detached.tail, next) };
        let offset = detached.head as usize - base as usize;
        old.with(Some(offset), old.inuse() - count as u32)
    }
}
