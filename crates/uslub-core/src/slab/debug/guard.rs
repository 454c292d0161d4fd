//! Guarded objects: a few allocations, each with a page of its own between closed pages.
//!
//! The kernel's KFENCE, for a process. A read or write beyond the object's page, and any use after
//! the free, faults at the instruction that does it.
//!
//! ```text
//!  closed │ slot 0 │ closed │ slot 1 │ closed │ …      system pages
//!
//!  right  │ canary ………………… object │     the end as close to the page's end as the alignment lets
//!  left   │ object ………………… canary │     the sides alternate
//! ```
//!
//! | state of a slot | page | how it changes |
//! |---|---|---|
//! | `UNUSED` | closed, never opened | the first allocation |
//! | `BUSY` | open | one thread allocates or frees: the others leave it alone |
//! | `IN_USE` | open | the free |
//! | `FREED` | closed | an allocation, if no other slot was freed earlier |
//!
//! A fault in [recover mode](crate::tunables::Tunables::guard_recover) opens the page; the next
//! free of a neighbour, or the next use of the slot, closes it again. Each change of the state is a
//! compare-and-swap, so there is no lock: a signal handler and the child of a fork may come at any
//! time. In a child, a slot that another thread had made `BUSY` stays out of use.
//!
//! Callers: `kmalloc::guard` allocates and frees on slow paths only; the platform's fault handler
//! asks [`Guard::owns`].

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use crate::platform::{Access, Platform};
use crate::policy::{GUARD_BURST_US, GUARD_COVERED_PART, GUARD_SLOTS};
use crate::slab::debug::guard_slot::{FREED, IN_USE, Request, Slot, Stack, UNUSED};

/// Value of `next` without guarded objects.
const OFF: u64 = u64::MAX;

/// The byte of a page outside its object.
pub(crate) fn canary(address: usize) -> u8 {
    0xaa ^ (address as u8 & 7)
}

/// What the pool finds at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the page of this slot.
    Slot(usize),
    /// In the closed page in front of this slot, and behind the one before it.
    Between(usize),
}

/// Bytes outside the object that were overwritten: the first one, and the bytes that are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overwritten {
    pub(crate) address: usize,
    pub(crate) found: [u8; 16],
    pub(crate) len: usize,
}

/// The pool of guarded objects of an allocator.
pub struct Guard {
    /// Microseconds: when the next object is due; [`OFF`] without guarded objects.
    next: AtomicU64,
    /// Microseconds between two objects.
    interval: AtomicU64,
    /// Address of the first closed page; 0 before the pool is made.
    start: AtomicUsize,
    slots: AtomicPtr<Slot>,
    /// Bytes of a system page.
    page: AtomicUsize,
    turns: AtomicU64,
    /// Objects guarded so far.
    guarded: AtomicUsize,
    /// Reports so far.
    hits: AtomicUsize,
    in_use: AtomicUsize,
}

impl Guard {
    pub(crate) const fn new() -> Self {
        Self {
            next: AtomicU64::new(OFF),
            interval: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            slots: AtomicPtr::new(null_mut()),
            page: AtomicUsize::new(0),
            turns: AtomicU64::new(1),
            guarded: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
        }
    }

    /// Makes the pool, for `rate` objects a second. Without address space for it, nothing is
    /// guarded. Called once, before the allocator is ready.
    #[cold]
    pub(crate) fn begin(&self, platform: &impl Platform, rate: u32) {
        let page = platform.system_page();
        let records = platform.whole_pages(GUARD_SLOTS * size_of::<Slot>());
        if rate == 0 {
            return;
        }
        let Some(slots) = platform.map(records) else {
            return;
        };
        let Some(start) = platform.reserve((2 * GUARD_SLOTS + 1) * page, page) else {
            // SAFETY: just mapped, not used.
            return unsafe { platform.unmap(slots, records) };
        };
        // Relaxed, all: no other thread uses the allocator yet.
        self.page.store(page, Relaxed);
        self.slots.store(slots.as_ptr().cast(), Relaxed);
        self.start.store(start.as_ptr() as usize, Relaxed);
        self.interval.store(1_000_000 / u64::from(rate), Relaxed);
        self.next.store(0, Relaxed);
    }

    /// Whether some allocations are guarded.
    #[inline]
    pub fn is_on(&self) -> bool {
        // Relaxed: changed before the allocator is ready only.
        self.next.load(Relaxed) != OFF
    }

    /// Whether an address lies in the pool, closed pages included.
    #[inline]
    pub fn owns(&self, address: usize) -> bool {
        // Relaxed, both: written before the allocator is ready only.
        let start = self.start.load(Relaxed);
        start != 0 && address.wrapping_sub(start) < (2 * GUARD_SLOTS + 1) * self.page.load(Relaxed)
    }

    /// Objects that were guarded so far, and reports about them.
    pub fn counts(&self) -> (usize, usize) {
        // Relaxed: statistics.
        (self.guarded.load(Relaxed), self.hits.load(Relaxed))
    }

    pub(crate) fn count_hit(&self) {
        // Relaxed: a statistic.
        self.hits.fetch_add(1, Relaxed);
    }

    /// All slots; none before the pool is made.
    fn slots(&self) -> &[Slot] {
        // Relaxed: written before the allocator is ready only.
        match NonNull::new(self.slots.load(Relaxed)) {
            // SAFETY: mapped by `begin`, zeroed, never unmapped; the fields are atomic.
            Some(first) => unsafe { core::slice::from_raw_parts(first.as_ptr(), GUARD_SLOTS) },
            None => &[],
        }
    }

    /// Calls `work` with each object in use of a cache. Nobody uses the cache meanwhile.
    pub(crate) fn for_each_of(&self, cache: u16, mut work: impl FnMut(*mut u8)) {
        for slot in self.slots() {
            if slot.state() == IN_USE && slot.cache() == cache {
                work(slot.object() as *mut u8);
            }
        }
    }

    pub(crate) fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots().get(index)
    }

    /// Where an address of the pool lies.
    pub(crate) fn place(&self, address: usize) -> Place {
        // Relaxed, both: written before the allocator is ready only.
        let page = (address - self.start.load(Relaxed)) / self.page.load(Relaxed);
        match page % 2 {
            0 => Place::Between(page / 2),
            _ => Place::Slot(page / 2),
        }
    }

    /// First address of a page of the pool; slot `k` has page `2k + 1`.
    fn page_at(&self, page: usize) -> usize {
        // Relaxed, both: written before the allocator is ready only.
        self.start.load(Relaxed) + page * self.page.load(Relaxed)
    }

    fn protect(&self, platform: &impl Platform, page: usize, access: Access) -> bool {
        // Relaxed: as above.
        let bytes = self.page.load(Relaxed);
        let Some(start) = NonNull::new(self.page_at(page) as *mut u8) else {
            return false;
        };
        // SAFETY: a page of the pool, whose users expect this.
        unsafe {
            match access {
                Access::Open => platform.commit(start, bytes),
                _ => platform.protect(start, bytes, access),
            }
        }
    }

    /// Whether an object is due now; if so the next one is due an interval later.
    #[inline]
    fn is_due(&self, platform: &impl Platform) -> bool {
        // Relaxed, all: a thread that wins the exchange gets the object; no other memory depends
        // on it.
        let next = self.next.load(Relaxed);
        let now = platform.now_ms() * 1000;
        if now < next {
            return false;
        }
        // The clock's steps are longer than short intervals: what was missed is made up for.
        let base = next.max(now.saturating_sub(GUARD_BURST_US));
        // Relaxed: as above.
        let later = base + self.interval.load(Relaxed);
        (self.next.compare_exchange(next, later, Relaxed, Relaxed)).is_ok()
    }

    /// A guarded object, if one is due and there is a slot; its bytes are any, but those of its
    /// first word behind the object are zero.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(&self, platform: &impl Platform, request: Request) -> *mut u8 {
        // Relaxed: as in `page_at`.
        if request.bytes > self.page.load(Relaxed) || !self.is_due(platform) {
            return null_mut();
        }
        if !platform.watch_faults() {
            return null_mut();
        }
        let stack = Stack::here(platform);
        if self.is_covered(&stack) {
            return null_mut();
        }
        let Some((index, slot, state)) = self.take_slot() else {
            return null_mut();
        };
        if !self.protect(platform, 2 * index + 1, Access::Open) {
            slot.end(state);
            return null_mut();
        }
        // Relaxed: a statistic, and the choice of a side.
        let nth = self.guarded.fetch_add(1, Relaxed);
        let object = self.object_in(index, request, nth.is_multiple_of(2));
        self.fill(index, object, request.bytes);
        slot.describe(object, request, &stack);
        slot.freed.set(&Stack::of(platform, &[]));
        // Relaxed: a hint.
        self.in_use.fetch_add(1, Relaxed);
        slot.end(IN_USE);
        object as *mut u8
    }

    /// Whether many slots are in use, and one of them by a caller with the same nearest frames.
    fn is_covered(&self, stack: &Stack) -> bool {
        // Relaxed, both: hints.
        let many =
            self.in_use.load(Relaxed) * GUARD_COVERED_PART.1 > GUARD_SLOTS * GUARD_COVERED_PART.0;
        let hash = stack.hash();
        let same = |slot: &Slot| slot.state() == IN_USE && slot.hash.load(Relaxed) == hash;
        many && self.slots().iter().any(same)
    }

    /// Takes the slot that was freed first, or one that was never used.
    fn take_slot(&self) -> Option<(usize, &Slot, u32)> {
        for _ in 0..4 {
            let free = self.slots().iter().enumerate().filter_map(|(index, slot)| {
                // Relaxed, both: the exchange decides.
                let (state, turn) = (slot.state.load(Relaxed), slot.turn.load(Relaxed));
                matches!(state, UNUSED | FREED).then_some((turn, index, state))
            });
            let (_, index, state) = free.min()?;
            let slot = self.slot(index)?;
            if slot.begin(state) {
                return Some((index, slot, state));
            }
        }
        None
    }

    /// Address of an object in a slot.
    fn object_in(&self, index: usize, request: Request, right: bool) -> usize {
        // Relaxed: as in `page_at`.
        let page = self.page.load(Relaxed);
        // Callers write the first word of each object.
        let bytes = request.bytes.max(size_of::<u64>());
        let offset = if right {
            (page - bytes) & !(request.align - 1)
        } else {
            0
        };
        self.page_at(2 * index + 1) + offset
    }

    /// Fills a page around its object.
    fn fill(&self, index: usize, object: usize, bytes: usize) {
        let start = self.page_at(2 * index + 1);
        // Relaxed: as in `page_at`.
        for address in start..start + self.page.load(Relaxed) {
            if let Some(byte) = expected(address, object, bytes) {
                // SAFETY: an open page of the pool, whose slot this thread owns.
                unsafe { (address as *mut u8).write(byte) };
            }
        }
    }

    /// The first bytes of a page outside its object that are not as [`fill`](Self::fill) left them.
    fn overwritten(&self, index: usize, object: usize, bytes: usize) -> Option<Overwritten> {
        let start = self.page_at(2 * index + 1);
        // Relaxed: as in `page_at`.
        let end = start + self.page.load(Relaxed);
        // SAFETY: an open page of the pool.
        let read = |address: usize| unsafe { (address as *const u8).read_volatile() };
        let is_bad = |&at: &usize| expected(at, object, bytes).is_some_and(|byte| byte != read(at));
        let address = (start..end).find(is_bad)?;
        let behind = if address < object { object } else { end };
        let len = (behind - address).min(16);
        let mut found = [0; 16];
        for (at, to) in (address..).zip(&mut found[..len]) {
            *to = read(at);
        }
        Some(Overwritten {
            address,
            found,
            len,
        })
    }

    /// Begins the free of an object that [`take`](Self::take) gave: checks the page around it.
    /// `None` if no object in use begins there. The caller then calls
    /// [`end_free`](Self::end_free).
    pub(crate) fn begin_free(&self, object: usize) -> Option<(usize, Option<Overwritten>)> {
        let Place::Slot(index) = self.place(object) else {
            return None;
        };
        let slot = self.slot(index)?;
        if slot.state() != IN_USE || slot.object() != object || !slot.begin(IN_USE) {
            return None;
        }
        Some((index, self.overwritten(index, object, slot.size())))
    }

    /// Ends the free of a slot: closes its page. Without `closes` it stays open, because the caller
    /// may not ask the system.
    pub(crate) fn end_free(&self, platform: &impl Platform, index: usize, closes: bool) {
        let Some(slot) = self.slot(index) else {
            return;
        };
        slot.freed.set(&Stack::here(platform));
        if closes {
            // Relaxed: written by the owner of the slot, or by a handler that opens once more.
            let opened = slot.opened.swap(0, Relaxed);
            for (bit, page) in [(1, 2 * index), (2, 2 * index + 2)] {
                if opened & bit != 0 {
                    self.protect(platform, page, Access::Closed);
                }
            }
            self.protect(platform, 2 * index + 1, Access::Closed);
        }
        // Relaxed, both: published by the state.
        slot.turn.store(self.turns.fetch_add(1, Relaxed), Relaxed);
        self.in_use.fetch_sub(1, Relaxed);
        slot.end(FREED);
    }

    /// Opens the page of an address, so that an access there goes on.
    pub(crate) fn open(&self, platform: &impl Platform, address: usize) {
        match self.place(address) {
            Place::Slot(index) => {
                self.protect(platform, 2 * index + 1, Access::Open);
            }
            Place::Between(index) => {
                self.protect(platform, 2 * index, Access::Open);
                let left = index.checked_sub(1).and_then(|left| self.slot(left));
                for (slot, bit) in [(self.slot(index), 1), (left, 2)] {
                    if let Some(slot) = slot {
                        // Relaxed: read by the owner of the slot when it is freed.
                        slot.opened.fetch_or(bit, Relaxed);
                    }
                }
            }
        }
    }
}

/// The byte at an address of a page with an object; `None` within the object.
fn expected(address: usize, object: usize, bytes: usize) -> Option<u8> {
    if address >= object && address < object + bytes {
        return None;
    }
    // Callers zero the first word of each object, also of a shorter one.
    let in_word = address >= object && address < object + size_of::<u64>();
    Some(if in_word { 0 } else { canary(address) })
}
