//! A cache's share of one memory node: slabs with free slots, and the barn.
//!
//! | empty or partial slab | where | protected by |
//! |---|---|---|
//! | partial | `lists.partial` | the list lock |
//! | empty, listed | `lists.empty` (only with a reserve) | the list lock |
//! | empty, ready | `ready`, at most 4 slabs | compare-and-swap and swap of one word |
//! | pending | `pending`, a stack: a context that may not wait freed into it | lock-free |
//! | future | `ahead`: pages without a descriptor | compare-and-swap of one word |
//!
//! The next thread that holds the list lock lists the pending slabs. The counters `nr_partial` and
//! `nr_empty` are copies for lock-free readers. Callers: `slab`; `cache` shrinks and validates.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::layout::{Row, rows};
use crate::memory::{Arena, PageIndex};
use crate::platform::Platform;
use crate::policy::READY_SLABS;
use crate::slab::empty_reserve::EmptyReserve;
use crate::slab::page_batch::PageBatch;
use crate::slab::state::{NO_SLAB, Slab};
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{DeferStack, Lock};

/// A list of slabs, linked by page number through their descriptors. The owner of the list protects
/// it.
#[derive(Debug)]
pub struct SlabList {
    head: u32,
    tail: u32,
    len: usize,
}

impl SlabList {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self {
            head: NO_SLAB,
            tail: NO_SLAB,
            len: 0,
        }
    }

    /// Slabs in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first slab.
    pub fn first<'a>(&self, arena: &'a Arena) -> Option<&'a Slab> {
        (self.head != NO_SLAB).then(|| arena.slab(PageIndex(self.head)))
    }

    /// The slabs, the first one first. The iterator reads a slab's link before it returns the slab,
    /// so the caller may move or free the slab.
    #[inline]
    pub fn iter<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = &'a Slab> + use<'a> {
        let slab = |page| (page != NO_SLAB).then(|| arena.slab(PageIndex(page)));
        core::iter::successors(slab(self.head), move |at| slab(at.next()))
    }

    /// Empties the list; returns its slabs.
    #[inline]
    pub fn drain<'a>(&mut self, arena: &'a Arena) -> impl Iterator<Item = &'a Slab> + use<'a> {
        core::mem::replace(self, SlabList::new()).iter(arena)
    }

    /// The last slab.
    pub fn last<'a>(&self, arena: &'a Arena) -> Option<&'a Slab> {
        (self.tail != NO_SLAB).then(|| arena.slab(PageIndex(self.tail)))
    }

    /// Adds a slab as the last.
    pub fn push_back(&mut self, arena: &Arena, slab: &Slab) {
        let page = arena.page_of_slab(slab).0;
        slab.set_prev(self.tail);
        slab.set_next(NO_SLAB);
        match self.tail {
            NO_SLAB => self.head = page,
            tail => arena.slab(PageIndex(tail)).set_next(page),
        }
        self.tail = page;
        self.len += 1;
    }

    /// Adds a slab as the first.
    pub fn push_front(&mut self, arena: &Arena, slab: &Slab) {
        let page = arena.page_of_slab(slab).0;
        slab.set_prev(NO_SLAB);
        slab.set_next(self.head);
        match self.head {
            NO_SLAB => self.tail = page,
            head => arena.slab(PageIndex(head)).set_prev(page),
        }
        self.head = page;
        self.len += 1;
    }

    /// Removes a slab of this list.
    pub fn remove(&mut self, arena: &Arena, slab: &Slab) {
        let (prev, next) = (slab.prev(), slab.next());
        match prev {
            NO_SLAB => self.head = next,
            prev => arena.slab(PageIndex(prev)).set_next(next),
        }
        match next {
            NO_SLAB => self.tail = prev,
            next => arena.slab(PageIndex(next)).set_prev(prev),
        }
        self.len -= 1;
    }

    /// Moves all slabs of `other` to the end of this list.
    pub fn append(&mut self, arena: &Arena, other: &mut SlabList) {
        if other.is_empty() {
            return;
        }
        arena.slab(PageIndex(other.head)).set_prev(self.tail);
        match self.tail {
            NO_SLAB => self.head = other.head,
            tail => arena.slab(PageIndex(tail)).set_next(other.head),
        }
        self.tail = other.tail;
        self.len += other.len;
        *other = SlabList::new();
    }
}

/// The slabs of a node that have free slots; all of them are marked partial.
#[derive(Debug)]
pub struct NodeLists {
    /// Slabs with objects in use and free slots; without a reserve also empty slabs.
    pub partial: SlabList,
    /// Empty slabs, the newest first; only with a reserve.
    pub empty: SlabList,
    /// Full slabs, only of a debugged cache.
    pub full: SlabList,
    /// How many empty slabs to keep.
    pub reserve: EmptyReserve,
}

impl NodeLists {
    const fn new() -> Self {
        Self {
            partial: SlabList::new(),
            empty: SlabList::new(),
            full: SlabList::new(),
            reserve: EmptyReserve::new(),
        }
    }

    /// Lists a slab that the caller owns: an empty one in `empty` if there is a `reserve`.
    pub fn add(&mut self, arena: &Arena, slab: &Slab, reserve: bool) {
        slab.set_partial(true);
        if reserve && slab.state().inuse() == 0 {
            self.empty.push_front(arena, slab);
        } else {
            self.partial.push_back(arena, slab);
        }
    }
}

/// A cache's share of one node.
#[repr(align(64))]
pub struct Node<P> {
    /// Slabs with free slots. Its lock is the kernel's list_lock.
    pub lists: Lock<P, NodeLists>,
    nr_partial: AtomicUsize,
    /// Listed empty slabs only: ready slabs come and go without the lock.
    nr_empty: AtomicUsize,
    /// Pending slabs, by page number.
    pending: DeferStack<{ NO_SLAB as usize }>,
    /// Ready slabs, by page number: empty, taken without the lock.
    ready: [AtomicU32; READY_SLABS],
    /// Pages for future slabs.
    pub(crate) ahead: PageBatch,
    /// Slabs on this node, with those whose pages wait in `ahead`.
    pub nr_slabs: AtomicUsize,
    /// Empty slabs of these whose pages wait for their readers, on no list.
    pub(crate) nr_waiting: AtomicUsize,
}

impl<P: Platform> Node<P> {
    pub(crate) const ROWS: &'static [Row] =
        rows!("Node", Self, [nr_partial, nr_empty, ready, ahead, nr_slabs]);

    /// A node without slabs.
    pub(crate) const fn new() -> Self {
        Self {
            lists: Lock::new(NodeLists::new()),
            nr_partial: AtomicUsize::new(0),
            nr_empty: AtomicUsize::new(0),
            pending: DeferStack::new(),
            ready: [const { AtomicU32::new(NO_SLAB) }; READY_SLABS],
            ahead: PageBatch::new(),
            nr_slabs: AtomicUsize::new(0),
            nr_waiting: AtomicUsize::new(0),
        }
    }

    /// Pushes a slab of the caller's as pending; the next holder of the list lock lists it.
    pub(crate) fn push_pending(&self, arena: &Arena, slab: &Slab) {
        let page = arena.page_of_slab(slab).0;
        let link = |next| slab.set_next(next as u32);
        self.pending.push(page as usize, link);
    }

    /// Whether there are pending slabs; may be stale.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Makes empty slabs of the reserve ready, as far as there is room; under the list lock.
    pub(crate) fn refill_ready(&self, arena: &Arena, lists: &mut NodeLists) {
        while self.nr_ready() < READY_SLABS
            && let Some(slab) = lists.empty.first(arena)
        {
            lists.empty.remove(arena, slab);
            if !self.put_ready(arena, slab) {
                return lists.empty.push_front(arena, slab);
            }
        }
    }

    /// Makes an empty slab of the caller's ready; false if there is no room.
    pub(crate) fn put_ready(&self, arena: &Arena, slab: &Slab) -> bool {
        let page = arena.page_of_slab(slab).0;
        let put = |ready: &AtomicU32| {
            // Release: the thread that takes the slab sees it as it is now.
            (ready.compare_exchange(NO_SLAB, page, Release, Relaxed)).is_ok()
        };
        self.ready.iter().any(put)
    }

    /// Takes a ready slab, without the list lock.
    pub(crate) fn take_ready<'a>(&self, arena: &'a Arena) -> Option<&'a Slab> {
        let take = |ready: &AtomicU32| {
            // Relaxed: a peek; the swap decides.
            if ready.load(Relaxed) == NO_SLAB {
                return None;
            }
            // Acquire: pairs with `put_ready`.
            let page = ready.swap(NO_SLAB, Acquire);
            (page != NO_SLAB).then(|| arena.slab(PageIndex(page)))
        };
        let slab = self.ready.iter().find_map(take)?;
        slab.set_partial(false);
        Some(slab)
    }

    /// Takes an empty slab, ready or listed; under the list lock.
    pub(crate) fn take_empty<'a>(
        &self,
        arena: &'a Arena,
        lists: &mut NodeLists,
    ) -> Option<&'a Slab> {
        self.take_ready(arena).or_else(|| {
            let slab = lists.empty.first(arena)?;
            lists.empty.remove(arena, slab);
            slab.set_partial(false);
            Some(slab)
        })
    }

    /// Number of ready slabs; may be stale.
    fn nr_ready(&self) -> usize {
        // Relaxed: a peek, may be stale.
        let taken = |ready: &&AtomicU32| ready.load(Relaxed) != NO_SLAB;
        self.ready.iter().filter(taken).count()
    }

    /// Lists the pending and the ready slabs; under the list lock.
    pub(crate) fn drain_all_pending(&self, arena: &Arena, lists: &mut NodeLists, reserve: bool) {
        while let Some(slab) = self.take_ready(arena) {
            lists.add(arena, slab, reserve);
            self.update_counts(lists);
        }
        self.drain_pending(arena, lists, reserve);
    }

    /// Lists the pending slabs; under the list lock.
    pub(crate) fn drain_pending(&self, arena: &Arena, lists: &mut NodeLists, reserve: bool) {
        if !self.has_pending() {
            return;
        }
        let next = |page| arena.slab(PageIndex(page as u32)).next() as usize;
        let list = |page| lists.add(arena, arena.slab(PageIndex(page as u32)), reserve);
        self.pending.drain(next, list);
        self.update_counts(lists);
    }

    /// Number of partial slabs; may be stale.
    #[inline]
    pub fn nr_partial(&self) -> usize {
        // Relaxed: a peek, may be stale.
        self.nr_partial.load(Relaxed)
    }

    /// Number of empty slabs in reserve, listed or ready; may be stale.
    #[inline]
    pub fn nr_empty(&self) -> usize {
        // Relaxed: a peek, may be stale.
        self.nr_empty.load(Relaxed) + self.nr_ready()
    }

    /// Whether the node has no slab with free slots, except future slabs in `ahead`; may be stale.
    /// `reserve` says whether the cache has a reserve.
    #[inline]
    pub(crate) fn lists_nothing(&self, reserve: bool) -> bool {
        let empty = reserve && self.nr_empty() > 0;
        !(self.nr_partial() > 0 || self.has_pending() || empty)
    }

    /// Number of slabs; may be stale.
    #[inline]
    pub fn nr_slabs(&self) -> usize {
        // Relaxed: a peek, may be stale.
        self.nr_slabs.load(Relaxed)
    }

    /// Updates the counters of listed slabs; under the list lock.
    #[inline]
    pub fn update_counts(&self, lists: &NodeLists) {
        // Relaxed, both: copies for lock-free readers.
        self.nr_partial.store(lists.partial.len(), Relaxed);
        self.nr_empty.store(lists.empty.len(), Relaxed);
    }
}
