//! The base that all caches share: the system below, pages, per-CPU slots, tunables.
//!
//! [`Memory`] ⊂ [`Base`] ⊂ [`Allocator`](crate::Allocator), and [`SlabCache`] ⊂
//! [`SheafCache`](crate::sheaf::SheafCache) ⊂ [`KmemCache`](crate::cache::KmemCache): the methods
//! of a layer take the parts of that layer, so slabs and sheaves cannot name what stands above
//! them. `Deref` leads downward: an allocator is also a base, and a base is also memory. Any thread
//! may call once it is ready.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::gfp::Gfp;
use crate::groups::MAX_GROUPS;
use crate::layout::{Row, rows};
use crate::memory::{MAX_NODES, Memory};
use crate::percpu::closed::ClosedCaches;
use crate::percpu::stats::StatItem;
use crate::percpu::{APART, CacheId, MAX_CACHES, Table};
use crate::platform::Platform;
use crate::slab::cache::SlabCache;
use crate::slab::debug::state::DebugState;
use crate::slab::grace_slot::GraceSlot;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use crate::tunables::Tunables;

/// What all caches share.
///
/// The fields that fast paths read come first, at the page offset [`APART`], to avoid 4 KiB
/// aliasing with the words that fast paths write: a processor takes a load for one of a recent
/// store at the same page offset, and waits. None of these fields is the second word of a 32-byte
/// block, because fast paths write such a word in the thread's area, which may lie anywhere in its
/// page.
#[repr(C, align(4096))]
pub struct Base<P: Platform> {
    _apart: [u8; APART - 8],
    /// A random word that the hardened mode combines with others.
    secret: AtomicU64,
    /// Per-CPU slots.
    pub table: Table,
    /// Number of memory nodes.
    pub(crate) nodes: AtomicUsize,
    /// The system and CPUs below.
    pub platform: P,
    /// Pages.
    pub memory: Memory<P>,
    /// Whether a running allocation took pages: its end then checks for cold caches.
    pub(crate) looks_for_cold: AtomicBool,
    /// The caches by identity; each is part of the upper layers' record of it.
    pub(crate) caches: [AtomicPtr<SlabCache<P>>; MAX_CACHES],
    /// Bytes of objects that the sheaves of adaptive caches can hold.
    pub(crate) sheaf_bytes: AtomicUsize,
    /// Held while CPUs are drained, while regions and slots are made, and during every walk of the
    /// caches that may meet a destruction.
    pub(crate) drain: Lock<P, ()>,
    /// The source of grace periods.
    pub(crate) grace: GraceSlot<P>,
    /// What debugged caches share.
    pub debug: DebugState,
    /// Whether a resize to fewer bytes ever kept an object for lack of memory.
    pub(crate) kept_larger: AtomicBool,
    /// Groups of CPUs in each node.
    pub(crate) groups: AtomicUsize,
    tunables: UnsafeCell<Tunables>,
    ready: AtomicBool,
    /// Whether a call that may not ask the system lacked memory for sheaves.
    awaited: AtomicBool,
    /// The caches without sheaves, because their twins serve them.
    pub(crate) closed: ClosedCaches,
}

// SAFETY: the tunables are written before `ready` only.
unsafe impl<P: Platform> Sync for Base<P> {}

impl<P: Platform> Deref for Base<P> {
    type Target = Memory<P>;

    #[inline]
    fn deref(&self) -> &Memory<P> {
        &self.memory
    }
}

impl<P: Platform> Base<P> {
    pub(crate) const ROWS: &'static [Row] = rows!("Base", Self, [table, memory, caches, ready]);

    /// A base that is not set up, with a table that is not set up either.
    pub(crate) const fn new(platform: P, table: Table) -> Self {
        Self {
            _apart: [0; APART - 8],
            secret: AtomicU64::new(0),
            table,
            nodes: AtomicUsize::new(1),
            platform,
            memory: Memory::new(),
            looks_for_cold: AtomicBool::new(false),
            caches: [const { AtomicPtr::new(null_mut()) }; MAX_CACHES],
            sheaf_bytes: AtomicUsize::new(0),
            drain: Lock::new(()),
            grace: GraceSlot::new(),
            debug: DebugState::new(),
            kept_larger: AtomicBool::new(false),
            groups: AtomicUsize::new(1),
            tunables: UnsafeCell::new(Tunables::DEFAULT),
            ready: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            closed: ClosedCaches::new(),
        }
    }

    /// Sets the base up with `reserve` bytes of address space, or less if the system refuses.
    /// Returns false if the system refuses the smallest reservation.
    ///
    /// # Safety
    ///
    /// Once, before any other thread uses the base.
    pub unsafe fn init(&self, reserve: usize, tunables: Tunables) -> bool {
        let mut tunables = tunables;
        if tunables.hardened == 1 {
            tunables.tuning.slab_freelist_random = 1;
            tunables.tuning.slab_freelist_hardened = 1;
        }
        // SAFETY: no other thread uses the base.
        unsafe { *self.tunables.get() = tunables };
        self.debug.fail.set(tunables.failslab());
        let nodes = self.platform.nr_nodes().clamp(1, MAX_NODES);
        // Relaxed, both: published with `ready`.
        self.nodes.store(nodes, Relaxed);
        let groups = self.platform.make_groups(tunables.barn_cpus as usize);
        // Relaxed: as above.
        self.groups.store(groups.clamp(1, MAX_GROUPS), Relaxed);
        self.secret.store(self.platform.random(), Relaxed);
        self.zone.set_thp_from(tunables.huge_pages_mb);
        let mut done = self.table.init(&self.platform);
        if done && !self.zone.arena.init(&self.platform, reserve) {
            self.table.undo(&self.platform);
            done = false;
        }
        if done {
            self.memory.pcp.init(&self.platform, &self.meta);
        }
        // Objects of the hardened mode have guards of their own.
        if done && tunables.hardened == 0 {
            self.debug.guard.begin(&self.platform, tunables.guard);
        }
        // Release: pairs with `ready`.
        self.ready.store(done, Release);
        if done {
            self.platform.slots_are_ready();
        }
        done
    }

    /// Whether [`init`](Self::init) has succeeded.
    #[inline]
    pub fn ready(&self) -> bool {
        // Acquire: pairs with `init`.
        self.ready.load(Acquire)
    }

    /// A random word, constant once the allocator is ready.
    pub(crate) fn secret(&self) -> u64 {
        // Relaxed: set before the allocator was ready.
        self.secret.load(Relaxed)
    }

    /// The tunables in force.
    pub fn tunables(&self) -> &Tunables {
        // SAFETY: written before `ready` only.
        unsafe { &*self.tunables.get() }
    }

    /// The slabs of the cache with an identity.
    #[inline]
    pub(crate) fn slabs_of(&self, id: CacheId) -> Option<&SlabCache<P>> {
        // Acquire: pairs with the creation. SAFETY: records of caches are never freed.
        unsafe { self.caches[id.index()].load(Acquire).as_ref() }
    }

    /// Adds `n` to a counter, on this CPU.
    #[inline]
    pub(crate) fn count(&self, cache: &SlabCache<P>, item: StatItem, n: usize) {
        if n > 0 {
            (self.platform).count(&self.table, cache.counters.counter(item), n);
        }
    }

    /// Runs `work` under the drain lock.
    pub(crate) fn while_draining<T>(&self, work: impl FnOnce() -> T) -> T {
        let _drain = self.drain.lock();
        work()
    }

    /// Runs `work` under the drain lock; does nothing if another thread holds it.
    pub(crate) fn try_while_draining<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _drain = self.drain.try_lock()?;
        Some(work())
    }

    /// Gives this CPU its region; returns false without memory. A call that may not ask the system
    /// gets a region that is already mapped, if no thread drains CPUs.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_region(&self, gfp: Gfp) -> bool {
        let cpu = self.platform.cpu();
        // Under the drain lock: otherwise a drain could own the region when its CPU begins to use
        // it.
        if gfp.contains(Gfp::KERNEL) {
            return self.while_draining(|| self.table.make(&self.platform, cpu, &self.closed));
        }
        // A drain holds the lock for longer than a call with `GFP_NOWAIT` may wait.
        let made = self.try_while_draining(|| self.table.make_without_mapping(cpu, &self.closed));
        if made == Some(false) {
            self.await_memory(gfp);
        }
        made == Some(true)
    }

    /// Notes that a call which may not ask the system lacked a region or a window.
    #[cold]
    pub(crate) fn await_memory(&self, gfp: Gfp) {
        if !gfp.may_map() {
            // Relaxed: a hint to later calls.
            self.awaited.store(true, Relaxed);
        }
    }

    /// Maps what earlier calls lacked, if this call may: regions, and memory for windows.
    #[inline]
    pub(crate) fn map_what_is_awaited(&self, gfp: Gfp) {
        // Relaxed: a hint.
        if self.awaited.load(Relaxed) && gfp.contains(Gfp::KERNEL) {
            self.map_awaited();
        }
    }

    #[cold]
    #[inline(never)]
    fn map_awaited(&self) {
        // Relaxed: a hint. A call that finds nothing once more sets it again.
        self.awaited.store(false, Relaxed);
        self.while_draining(|| self.table.make_ahead(&self.platform));
        if let Some(window) = self.meta.window(&self.platform, Gfp::KERNEL) {
            self.meta.give_window(&self.platform, window, true);
        }
    }

    /// Gives back pages that have been free for the decay time, if it is time to check. Slow paths
    /// call it.
    #[inline]
    pub(crate) fn decay_if_due(&self) {
        if self.zone.dirty_bytes() + self.mapped.kept_bytes() == 0 {
            return;
        }
        self.decay();
    }

    // Rarely, and much stack.
    #[inline(never)]
    fn decay(&self) {
        let (now, decay) = (self.platform.now_ms(), u64::from(self.tunables().decay_ms));
        self.zone.decay_if_due(&self.platform, now, decay);
        self.decay_mapped();
    }

    /// Bytes of free memory that is resident: free pages, those that CPUs keep, and mappings.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.zone.dirty_bytes() + self.memory.pcp.bytes() + self.mapped.kept_bytes()
    }

    /// Frees the pages that CPUs keep; with `only_idle` those of lists that were not used since the
    /// last such call.
    #[inline(never)]
    pub(crate) fn drain_pages(&self, only_idle: bool) {
        let arena = &self.zone.arena;
        self.memory.pcp.drain(arena, only_idle, |runs| {
            let pages = runs.iter().map(|(_, pages)| pages).sum();
            // Relaxed: a statistic.
            self.large_pages.fetch_sub(pages, Relaxed);
            self.zone.free_runs(&self.platform, runs);
        });
    }

    /// Frees the pages of lists that are not used, at most twice in the decay time.
    pub(crate) fn drain_idle_pages(&self, now: u64) {
        let decay = u64::from(self.tunables().decay_ms);
        if self.memory.pcp.is_check_due(now, decay / 2 + 1) {
            self.drain_pages(true);
        }
    }

    /// Unmaps cached mappings that have been free for the decay time, or make room at a peak. For
    /// callers that may call the system.
    #[inline]
    pub(crate) fn decay_mapped(&self) {
        if self.mapped.kept_bytes() > 0 {
            let decay = u64::from(self.tunables().decay_ms);
            self.memory.decay_mapped(&self.platform, decay);
        }
    }

    /// Bytes in use of the allocator's own records.
    pub fn metadata_bytes(&self) -> usize {
        self.table.bytes() + self.memory.metadata_bytes()
    }
}
