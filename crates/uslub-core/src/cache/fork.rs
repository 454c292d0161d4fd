//! Forks: an allocator whose process is copied.
//!
//! A child has one thread, and the memory of one moment. The operations of other threads never
//! finish in it. So a fork takes all locks first ([`Allocator::lock_for_fork`]), and the child
//! finds every structure whole. Three cases need more:
//!
//! - A wait for a lock without a bound may be a deadlock: the holder may wait for the forking
//!   thread, for one of its C library locks or for code that a signal interrupted. A fork therefore
//!   waits for at most `FORK_WAIT_MS` in all and then continues without the missing locks.
//! - For the same reason a thread that waits for a lock held by a fork may [steal](crate::sync) it.
//! - Children of direct system calls come without a warning.
//!
//! So a child checks the locks:
//!
//! | locks in the child | state | action |
//! |---|---|---|
//! | free, or held for a fork | whole | [`reset_after_fork`](Allocator::reset_after_fork) |
//! | held by another thread, not for a fork | torn | [`start_over`](Allocator::start_over) |
//!
//! The structures of a [torn](Allocator::is_torn) child may be half changed. It gives up the whole
//! old world with its objects and begins a new one. Old objects keep their contents. Their frees
//! are ignored, and their sizes are still known, so a `realloc` can move them. Callers: fork
//! handlers of the faces.

use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::cache::allocator::Allocator;
use crate::cache::cache_list::CacheList;
use crate::cache::forks::Former;
use crate::memory::arena::Arena;
use crate::memory::mapped::MappedObjects;
use crate::memory::metadata::MetadataStore;
use crate::memory::zone::Zone;
use crate::memory::{PageIndex, PageKind};
use crate::percpu::MAX_CACHES;
use crate::platform::{PAGE_SIZE, Platform};
use crate::policy::FORK_WAIT_MS;
use crate::size_class::{NR_CLASSES, class_size};
use crate::sync::{Held, Lock, MAX_LEVEL, RawLock};

/// Replaces a value; returns the old one.
///
/// # Safety
///
/// No other thread uses the value, no reference into it lives, and all of it lies in cells.
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
            .flat_map(|cache| cache.barns())
            .for_each(|barn| visit(barn.raw_lock()));
        self.caches()
            .flat_map(|cache| cache.nodes())
            .for_each(|node| visit(node.lists.raw()));
        visit(self.mapped.raw_lock());
        self.memory.pcp.raw_locks().for_each(&mut visit);
        self.zone.raw_locks().into_iter().for_each(&mut visit);
        self.meta.raw_locks().for_each(visit);
    }

    /// Number of forks of this thread that run: more than one if a signal handler forks during a
    /// fork.
    pub fn fork_depth(&self) -> u32 {
        self.forks.depth()
    }

    /// Takes all locks that this thread does not hold, so that a fork finds every structure whole.
    /// Gives up after a time; the child checks which locks are missing.
    ///
    /// This thread may allocate and free until [`unlock_after_fork`](Self::unlock_after_fork), and
    /// may fork again in a signal handler.
    pub fn lock_for_fork(&self) {
        let level = self.forks.begin();
        if (1..=MAX_LEVEL).contains(&level) {
            let mut patience = FORK_WAIT_MS;
            self.for_each_lock(|lock| lock.acquire_for_fork(level, &mut patience));
        }
    }

    /// Releases in the parent the locks that [`lock_for_fork`](Self::lock_for_fork) took.
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

    /// Unlocks all locks in the child, except those of code that this thread has interrupted.
    ///
    /// # Safety
    ///
    /// In the child of a fork whose parent called [`lock_for_fork`](Self::lock_for_fork), before it
    /// has a second thread.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: passed on; `unlock_after_fork` too, as this thread took the locks.
        unsafe {
            self.reset_after_raw_fork();
            self.unlock_after_fork();
        }
    }

    /// As [`reset_after_fork`](Self::reset_after_fork), for a parent that took no locks.
    ///
    /// # Safety
    ///
    /// In the child, before it has a second thread.
    pub unsafe fn reset_after_raw_fork(&self) {
        let mut torn = false;
        self.for_each_lock(|lock| torn |= lock.held() == Held::Elsewhere);
        if torn {
            // Relaxed: the child has one thread.
            self.forks.torn.store(true, Relaxed);
        }
        self.forks.forget_others();
        // SAFETY: the only thread of the child.
        unsafe {
            self.for_each_lock(|lock| lock.reset_others());
            self.grace.raw_lock().reset_others();
            self.reclaim.reset_after_fork();
        }
        if self.caches().any(|cache| !cache.never_waits()) {
            // A thread that does not exist here may have been changing a state.
            let arena = &self.zone.arena;
            (0..arena.limit() as u32).for_each(|page| arena.slab(PageIndex(page)).reset_lock());
        }
        // The threads that held detached sheaves do not exist here.
        for cache in self.caches() {
            // Relaxed: the child has one thread.
            cache.flushes_in_flight.store(0, Relaxed);
        }
        self.table.resume_all();
    }

    /// Whether structures may be half changed, in the child of a fork: another thread was changing
    /// them at the fork.
    pub fn is_torn(&self) -> bool {
        // Relaxed: written by the child's only thread.
        self.forks.torn.load(Relaxed)
    }

    /// Whether this thread holds a lock, other than for a fork. A signal handler asks this to know
    /// whether it interrupted the allocator.
    pub fn is_interrupted(&self) -> bool {
        let mut interrupted = false;
        self.for_each_lock(|lock| interrupted |= lock.held() == Held::Here);
        interrupted
    }

    /// Gives up the whole world and begins a new one: no cache exists then, and objects of the old
    /// world belong to no allocator. Returns false without memory; then everything stays, and
    /// counts as whole.
    ///
    /// Only for an allocator whose users have no caches of their own, only `kmalloc`.
    ///
    /// # Safety
    ///
    /// In the child of a fork, before it has a second thread. No signal handler may run meanwhile,
    /// and no code that uses the allocator may have been interrupted.
    #[cold]
    pub unsafe fn start_over(&self) -> bool {
        // Relaxed: the child has one thread.
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
            // SAFETY: just mapped, not used.
            unsafe { self.platform.unmap(former, bytes) };
            return false;
        }
        // Relaxed, both: the child has one thread.
        self.table.end.store(0, Relaxed);
        self.table.rcu_pages.store(0, Relaxed);
        let mut zone = Zone::new();
        zone.arena = arena;
        let former = former.cast::<Former<P>>();
        // SAFETY: by the caller's promise nobody uses the old world; it consists of cells. The
        // memory is new.
        unsafe {
            let arena = replace(&self.zone, zone).arena;
            // Its unused address space is of no use.
            arena.trim_reservation(&self.platform, 0);
            let mapped = replace(&self.mapped, MappedObjects::new());
            // Relaxed: the child has one thread.
            let next = self.forks.formers.load(Relaxed);
            let at = former.as_ptr();
            (&raw mut (*at).arena).write(arena);
            (&raw mut (*at).mapped).write(mapped);
            (&raw mut (*at).next).write(next);
            self.write_sizes(&raw mut (*at).sizes);
            replace(&self.meta, MetadataStore::new());
            replace(&self.slab_mutex, Lock::new(CacheList::new()));
            replace(&self.drain, Lock::new(()));
        }
        // Release: publishes the record.
        self.forks.formers.store(former.as_ptr(), Release);
        // Relaxed, all: the child has one thread.
        for cache in &self.base.caches[..self.end.load(Relaxed)] {
            cache.store(null_mut(), Relaxed);
        }
        self.end.store(1, Relaxed);
        self.closed.clear();
        self.large_pages.store(0, Relaxed);
        self.memory.pcp.forget();
        self.sheaf_bytes.store(0, Relaxed);
        self.zone.set_thp_from(self.tunables().huge_pages_mb);
        true
    }

    /// Writes the sizes of the objects of the twins into memory that holds zeroes.
    ///
    /// # Safety
    ///
    /// The memory is the caller's.
    unsafe fn write_sizes(&self, sizes: *mut [u16; MAX_CACHES]) {
        for cache in self.caches().filter(|cache| cache.id.index() > NR_CLASSES) {
            // SAFETY: by the caller's promise.
            unsafe { (*sizes)[cache.id.index()] = cache.object_size() as u16 };
        }
    }

    /// Worlds that this process or its ancestors gave up.
    fn formers(&self) -> impl Iterator<Item = &Former<P>> {
        // Acquire: pairs with `start_over`.
        let first = NonNull::new(self.forks.formers.load(Acquire));
        // SAFETY: records are never freed.
        let first = first.map(|first| unsafe { first.as_ref() });
        // SAFETY: as above.
        core::iter::successors(first, |former| unsafe { former.next.as_ref() })
    }

    /// How often this process or its ancestors have [started over](Self::start_over).
    pub fn nr_formers(&self) -> usize {
        self.formers().count()
    }

    /// Usable bytes of an object of a world that was given up.
    #[cold]
    pub(crate) fn former_size(&self, object: *mut u8) -> Option<usize> {
        self.formers().find_map(|former| {
            let arena = &former.arena;
            let Some(page) = arena.page_of(object as usize) else {
                // SAFETY: no thread changes it any longer.
                return unsafe { former.mapped.former_bytes(object as usize) };
            };
            let slab = arena.slab(page);
            match arena.cache_of(page).map(|id| id.index()) {
                Some(class) if class <= NR_CLASSES => Some(class_size(class)),
                Some(twin) => Some(usize::from(former.sizes[twin])).filter(|&bytes| bytes > 0),
                None if slab.kind() == PageKind::Large => Some(slab.large_pages() * PAGE_SIZE),
                None => None,
            }
        })
    }
}
