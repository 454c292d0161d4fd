//! Forks: what happens to an allocator when its process is copied.
//!
//! A child has one thread, and the memory as it was at one moment. What other threads were doing
//! then is never finished there. So a fork takes all locks first ([`Allocator::lock_for_fork`]),
//! and the child finds every structure whole. Three things stand in the way:
//!
//! - Waiting for a lock without a bound would be a deadlock where the holder waits for the thread
//!   that forks: its locks of the C library, or what it was doing when a signal came. So a fork
//!   waits for `PATIENCE_MS` in all and goes on without the rest.
//! - A thread that waits for a lock which a fork holds may [steal](crate::sync) it, for the same
//!   reason.
//! - Children of system calls made directly come without warning.
//!
//! So a child looks at the locks. A lock that another thread held, other than for a fork, says that
//! structures may be half changed: the child is [torn](Allocator::is_torn). Then it can [start
//! over](Allocator::start_over): it gives the whole old world up, with all objects in it, and
//! begins a new one. Old objects stay what they are. Their frees are ignored, and their sizes are
//! still known, so that a `realloc` can move them.

use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::cache_list::CacheList;
use crate::memory::arena::Arena;
use crate::memory::mapped::Huge;
use crate::memory::metadata::Meta;
use crate::memory::zone::Zone;
use crate::memory::{PageIndex, PageKind};
use crate::platform::{PAGE_SIZE, Platform};
use crate::size_class::{NR_CLASSES, class_size};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use crate::sync::{Held, Lock, MAX_LEVEL, RawLock};

/// Milliseconds that a fork waits for locks, in all.
const PATIENCE_MS: u32 = 100;
/// Threads that can be inside a fork at once; others fork without the locks.
const PLACES: usize = 32;

/// Forks under way, and worlds that were given up.
///
/// A record is a thread's lock tag in the upper half, and in the lower half how many forks of the
/// thread are under way: more than one where signal handlers fork. Only that thread changes it.
pub(crate) struct Forks<P> {
    records: [AtomicU64; PLACES],
    /// Whether structures may be half changed: another thread worked on them when this process was
    /// born.
    torn: AtomicBool,
    formers: AtomicPtr<Former<P>>,
}

/// A world that was given up.
struct Former<P> {
    arena: Arena,
    huge: Huge<P>,
    next: *const Former<P>,
}

impl<P: Platform> Forks<P> {
    /// None.
    pub(crate) const fn new() -> Self {
        Self {
            records: [const { AtomicU64::new(0) }; PLACES],
            torn: AtomicBool::new(false),
            formers: AtomicPtr::new(null_mut()),
        }
    }

    fn me() -> u64 {
        u64::from(RawLock::<P>::me()) << 32
    }

    fn is_mine(record: &AtomicU64) -> bool {
        // Relaxed: only a thread itself writes its own tag.
        record.load(Relaxed) >> 32 == Self::me() >> 32
    }

    /// Begins a fork of this thread; returns its depth, from 1, or 0 where there is no place for a
    /// record.
    fn begin(&self) -> u32 {
        if let Some(record) = self.records.iter().find(|record| Self::is_mine(record)) {
            // Relaxed: only this thread changes it.
            return record.fetch_add(1, Relaxed) as u32 + 1;
        }
        let claim = |record: &AtomicU64| {
            let first = Self::me() | 1;
            // Relaxed: a record says nothing of other memory.
            (record.compare_exchange(0, first, Relaxed, Relaxed)).is_ok()
        };
        u32::from(self.records.iter().any(claim))
    }

    /// Forks of this thread under way.
    fn depth(&self) -> u32 {
        let mut mine = self.records.iter().filter(|record| Self::is_mine(record));
        // Relaxed: only this thread changes it.
        mine.next().map_or(0, |record| record.load(Relaxed) as u32)
    }

    /// Ends the innermost fork of this thread.
    fn end(&self) {
        if let Some(record) = self.records.iter().find(|record| Self::is_mine(record)) {
            // Relaxed, both: as above.
            if record.fetch_sub(1, Relaxed) as u32 == 1 {
                record.store(0, Relaxed);
            }
        }
    }

    /// Forgets the forks of all other threads, in a child.
    fn forget_others(&self) {
        let others = (self.records.iter()).filter(|record| !Self::is_mine(record));
        // Relaxed: the only thread.
        others.for_each(|record| record.store(0, Relaxed));
    }
}

/// Writes a new value over an old one; returns the old one.
///
/// # Safety
///
/// Nobody else uses the place, no reference into it lives, and all of it lies in cells.
unsafe fn replace<T>(place: &T, new: T) -> T {
    let place = ptr::from_ref(place).cast_mut();
    // SAFETY: by the caller's promise.
    unsafe {
        let old = place.read();
        place.write(new);
        old
    }
}

impl<P: Platform> Allocator<P> {
    /// Calls `visit` with each lock that a fork takes, the outermost first.
    pub fn for_each_lock(&self, mut visit: impl FnMut(&RawLock<P>)) {
        visit(self.slab_mutex.raw());
        visit(self.drain.raw());
        self.caches()
            .flat_map(KmemCache::barns)
            .for_each(|barn| visit(barn.raw_lock()));
        self.caches()
            .flat_map(KmemCache::nodes)
            .for_each(|node| visit(node.lists.raw()));
        visit(self.huge.raw_lock());
        self.zone.raw_locks().into_iter().for_each(&mut visit);
        visit(self.meta.raw_lock());
    }

    /// Forks of this thread under way: more than one where a signal handler forks in the middle of
    /// a fork.
    pub fn fork_depth(&self) -> u32 {
        self.forks.depth()
    }

    /// Takes all locks that this thread does not hold, so that a fork finds every structure whole.
    /// Gives up after a while; the child sees what is missing.
    ///
    /// This thread may allocate and free until [`unlock_after_fork`](Self::unlock_after_fork), and
    /// it may fork again in a signal handler.
    pub fn lock_for_fork(&self) {
        let level = self.forks.begin();
        if (1..=MAX_LEVEL).contains(&level) {
            let mut patience = PATIENCE_MS;
            self.for_each_lock(|lock| lock.acquire_for_fork(level, &mut patience));
        }
    }

    /// Releases in the parent what [`lock_for_fork`](Self::lock_for_fork) took.
    ///
    /// # Safety
    ///
    /// After [`lock_for_fork`](Self::lock_for_fork), on the same thread.
    pub unsafe fn unlock_after_fork(&self) {
        let level = self.forks.depth();
        if (1..=MAX_LEVEL).contains(&level) {
            self.for_each_lock(|lock| lock.release_for_fork(level));
        }
        self.forks.end();
    }

    /// Makes all locks free in the child, but for those of code that this thread has interrupted.
    ///
    /// # Safety
    ///
    /// In the child of a fork whose parent called [`lock_for_fork`](Self::lock_for_fork), before it
    /// has a second thread.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: passed on; the last, as this thread took them.
        unsafe {
            self.reset_after_raw_fork();
            self.unlock_after_fork();
        }
    }

    /// As [`reset_after_fork`](Self::reset_after_fork), where the parent took no locks.
    ///
    /// # Safety
    ///
    /// In the child, before it has a second thread.
    pub unsafe fn reset_after_raw_fork(&self) {
        let mut torn = false;
        self.for_each_lock(|lock| torn |= lock.held() == Held::Elsewhere);
        if torn {
            // Relaxed: the only thread.
            self.forks.torn.store(true, Relaxed);
        }
        self.forks.forget_others();
        // SAFETY: the only thread of the child.
        unsafe {
            self.for_each_lock(|lock| lock.reset_others());
            self.grace.raw().reset_others();
            self.reclaim.reset_after_fork();
        }
        if self.caches().any(|cache| !cache.never_waits()) {
            // A thread that does not exist here may have been changing a state.
            let arena = &self.zone.arena;
            (0..arena.limit() as u32).for_each(|page| arena.slab(PageIndex(page)).reset_lock());
        }
        // The threads that had sheaves in their hands are not here.
        for cache in self.caches() {
            // Relaxed: the only thread.
            cache.in_hand.store(0, Relaxed);
        }
        self.table.resume_all();
    }

    /// Whether structures may be half changed, in the child of a fork: another thread worked on
    /// them when it was born.
    pub fn is_torn(&self) -> bool {
        // Relaxed: written by the only thread.
        self.forks.torn.load(Relaxed)
    }

    /// Whether this thread holds a lock other than for a fork: asked in a signal handler, whether
    /// it has interrupted us.
    pub fn is_interrupted(&self) -> bool {
        let mut interrupted = false;
        self.for_each_lock(|lock| interrupted |= lock.held() == Held::Here);
        interrupted
    }

    /// Gives the whole world up and begins a new one: no cache exists then, and objects of the old
    /// world are nobody's. Returns false when there is no memory for it; then all stays as it is,
    /// and is torn no longer.
    ///
    /// Only for an allocator whose users have no caches of their own, only `kmalloc`.
    ///
    /// # Safety
    ///
    /// In the child of a fork, before it has a second thread; no signal handler comes in between,
    /// and no code that uses the allocator was interrupted.
    #[cold]
    pub unsafe fn start_over(&self) -> bool {
        // Relaxed: the only thread.
        self.forks.torn.store(false, Relaxed);
        let arena = Arena::new();
        if !arena.init(&self.platform, self.zone.arena.reserved_bytes()) {
            return false;
        }
        let bytes = size_of::<Former<P>>().next_multiple_of(PAGE_SIZE);
        let Some(former) = self.platform.map(bytes) else {
            arena.trim_reservation(&self.platform, 0);
            return false;
        };
        if !self.table.init(&self.platform) {
            arena.trim_reservation(&self.platform, 0);
            // SAFETY: just mapped, used by no one.
            unsafe { self.platform.unmap(former, bytes) };
            return false;
        }
        // Relaxed, both: as above.
        self.table.end.store(0, Relaxed);
        self.table.rcu_pages.store(0, Relaxed);
        let mut zone = Zone::new();
        zone.arena = arena;
        let former = former.cast::<Former<P>>();
        // SAFETY: by the caller's promise nobody uses the old world; it consists of cells. The
        // memory is new.
        unsafe {
            let arena = replace(&self.zone, zone).arena;
            // Nobody needs its address space that was never used.
            arena.trim_reservation(&self.platform, 0);
            let huge = replace(&self.huge, Huge::new());
            // Relaxed: as above.
            let next = self.forks.formers.load(Relaxed);
            former.write(Former { arena, huge, next });
            replace(&self.meta, Meta::new());
            replace(&self.slab_mutex, Lock::new(CacheList::new()));
            replace(&self.drain, Lock::new(()));
        }
        // Release: with the record.
        self.forks.formers.store(former.as_ptr(), Release);
        // Relaxed: as above.
        for cache in &self.caches[..self.end.load(Relaxed)] {
            // Relaxed: as above.
            cache.store(null_mut(), Relaxed);
        }
        // Relaxed: as above.
        self.end.store(1, Relaxed);
        self.large_pages.store(0, Relaxed);
        self.sheaf_bytes.store(0, Relaxed);
        self.zone.set_huge_from(self.tunables().huge_pages_mb);
        true
    }

    /// Worlds that this process or its parents gave up.
    fn formers(&self) -> impl Iterator<Item = &Former<P>> {
        // Acquire: pairs with `start_over`.
        let first = NonNull::new(self.forks.formers.load(Acquire));
        // SAFETY: records live for ever.
        let first = first.map(|first| unsafe { first.as_ref() });
        // SAFETY: as above.
        core::iter::successors(first, |former| unsafe { former.next.as_ref() })
    }

    /// How often this process or its parents have [started over](Self::start_over).
    pub fn nr_formers(&self) -> usize {
        self.formers().count()
    }

    /// Bytes that may be used of an object of a world that was given up.
    #[cold]
    pub(crate) fn former_size(&self, object: *mut u8) -> Option<usize> {
        self.formers().find_map(|former| {
            let arena = &former.arena;
            let Some(page) = arena.page_of(object as usize) else {
                // SAFETY: nobody changes it any longer.
                return unsafe { former.huge.former_bytes(object as usize) };
            };
            let slab = arena.slab(page);
            match arena.cache_of(page).map(|id| id.index()) {
                Some(class) => (class <= NR_CLASSES).then(|| class_size(class)),
                None if slab.kind() == PageKind::Large => Some(slab.large_pages() * PAGE_SIZE),
                None => None,
            }
        })
    }
}
