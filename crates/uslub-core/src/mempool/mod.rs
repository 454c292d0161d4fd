//! Memory pools: a reserve that keeps some operations running when memory runs out.
//!
//! This is the kernel's `mempool_t`. A pool reserves `min_nr` elements. An operation asks the
//! pool's [`Source`] first, and the reserve only if the source fails. Freed elements fill the
//! reserve first. So `min_nr` operations can always be in flight, and the end of one lets another
//! begin: an allocation that may wait ([`Gfp::KERNEL`]) never fails. Any thread may call.
//!
//! | file | concept |
//! |---|---|
//! | `source` | where elements come from |
//! | `resize` | the reserve's array, and changes of its size |
//!
//! An allocation tries, in this order:
//!
//! | step | which callers |
//! |---|---|
//! | the source, without asking the system | all |
//! | the reserve | all; `GFP_NOSPIN` only if the pool's lock is free |
//! | the source, with all that the flags allow | callers that may ask the system |
//! | wait for a free, at most 5 s; repeat the last two steps forever | `GFP_KERNEL` |
//!
//! The first attempt without the system is normal, not a failure. It spares the reserve while the
//! allocator has free memory, and uses the reserve before it waits for the system.
//!
//! A pool with `min_nr` 0 reserves nothing, but keeps one freed element; otherwise sleepers would
//! never wake. So the reserve's *limit* is `min_nr`, or 1 if that is 0.
//!
//! # No wake-up is lost
//!
//! All decisions happen under the pool's lock; a waiter sleeps on the word `wakes`.
//!
//! | thread | under the lock | after it |
//! |---|---|---|
//! | a waiter | lacks elements; `sleepers += 1`; reads `wakes` | sleeps if `wakes` is unchanged |
//! | a free | adds an element; if `sleepers > 0`, `wakes += 1` | wakes all |
//! | a resize | changes reserve and `min_nr`; if `sleepers > 0`, `wakes += 1` | wakes all |
//! | a waiter that returns | `sleepers -= 1` | tries again |
//!
//! A waiter adds itself to `sleepers` and reads `wakes` in one critical section. A free before it
//! leaves an element that the waiter sees. A free after it sees the sleeper and changes `wakes`, so
//! the waiter does not sleep. A free wakes all waiters: a bulk request may need several elements,
//! and must not use up another waiter's wake-up. The 5 s are for sources that recover by
//! themselves.
//!
//! A free first peeks at `curr_nr` without the lock, and skips a full reserve. It cannot miss the
//! place that its own element left. `curr_nr` fell before the element was handed out, and the
//! freeing thread got the element from there, so it reads this value or a later one. With the value
//! it sees the `min_nr` of that time or a later one. So a reserve that it skips was full after its
//! element had left; a later taker's free fills it again.
//!
//! | word | changed | read without the lock |
//! |---|---|---|
//! | `wakes` | relaxed: the lock orders it | by the sleep only, which compares |
//! | `curr_nr` | release: publishes `min_nr` | acquire |
//! | `min_nr` | relaxed, before a larger `curr_nr` | relaxed, after `curr_nr` |

mod resize;
mod source;

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::misuse::Misuse;
use crate::platform::Platform;
use crate::policy::MEMPOOL_WAIT_MS;
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{Guard, Lock};

pub use source::{KmallocSource, SlabSource, Source};

/// Why a pool refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MempoolError {
    /// Source and reserve have no memory, and the flags forbid to wait.
    NoMemory,
    /// The request has more elements than the pool reserves.
    TooMany,
    /// The request asks for zeroed elements; elements of a reserve are not zeroed.
    Zero,
}

impl core::fmt::Display for MempoolError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            MempoolError::NoMemory => "no memory for a pool's element",
            MempoolError::TooMany => "more elements at once than the pool reserves",
            MempoolError::Zero => "a pool's elements are not zeroed",
        })
    }
}

impl core::error::Error for MempoolError {}

/// The data under the lock; `curr_nr` and `min_nr` are also changed under it.
struct PoolReserve {
    /// A stack of `curr_nr` elements in an array with room for at least the limit.
    elements: *mut *mut u8,
    /// Number of waiting threads.
    sleepers: u32,
}

// SAFETY: the array is accessed under the lock only; nobody owns elements while they are in it.
unsafe impl Send for PoolReserve {}

/// A pool of at least `min_nr` elements, over a source.
///
/// The reserve's array comes from the allocator's kmalloc. A signal handler may call only
/// allocations with `GFP_NOSPIN`. Dropping a pool gives its reserve back to the source.
///
/// ```no_run
/// use uslub_core::mempool::{Mempool, MempoolError, SlabSource};
/// use uslub_core::{Allocator, Gfp, cache::KmemCache, platform::Platform};
///
/// fn write_back<P: Platform>(
///     a: &Allocator<P>,
///     requests: &KmemCache<P>,
/// ) -> Result<(), MempoolError> {
///     let source = SlabSource::new(a, requests).expect("requests have no constructor");
///     let pool = Mempool::new(a, 16, source)?;
///     let request = pool.alloc(Gfp::KERNEL);
///     assert!(!request.is_null(), "which never happens");
///     // SAFETY: just allocated, freed once.
///     unsafe { pool.free(request) };
///     Ok(())
/// }
/// ```
pub struct Mempool<'a, P: Platform, S: Source> {
    allocator: &'a Allocator<P>,
    source: S,
    reserve: Lock<P, PoolReserve>,
    /// Elements in the reserve; changed under its lock.
    curr_nr: AtomicUsize,
    /// Elements to reserve; changed under the reserve's lock.
    min_nr: AtomicUsize,
    /// Changes whenever waiters must check again; changed under the reserve's lock.
    wakes: AtomicU32,
    /// Held while the pool is resized. The outermost lock: the source is called with it held.
    resizing: Lock<P, ()>,
}

impl<'a, P: Platform, S: Source> Mempool<'a, P, S> {
    /// A pool that reserves `min_nr` elements of `source` and takes them at once.
    ///
    /// # Errors
    ///
    /// [`MempoolError::NoMemory`]; elements already taken are then given back.
    pub fn new(
        allocator: &'a Allocator<P>,
        min_nr: usize,
        source: S,
    ) -> Result<Self, MempoolError> {
        let pool = Self {
            allocator,
            source,
            reserve: Lock::new(PoolReserve {
                elements: null_mut(),
                sleepers: 0,
            }),
            curr_nr: AtomicUsize::new(0),
            min_nr: AtomicUsize::new(0),
            wakes: AtomicU32::new(0),
            resizing: Lock::new(()),
        };
        pool.grow(min_nr)?;
        Ok(pool)
    }

    /// Elements that the pool reserves.
    pub fn min_nr(&self) -> usize {
        // Relaxed: at least as new as a `curr_nr` that was read before.
        self.min_nr.load(Relaxed)
    }

    /// Elements in the reserve now.
    pub fn curr_nr(&self) -> usize {
        // Acquire: a peek must see the `min_nr` of that time. Under the lock it is exact.
        self.curr_nr.load(Acquire)
    }

    /// Sets the number of elements in the reserve; only under its lock.
    fn set_curr_nr(&self, nr: usize) {
        // Release: see `curr_nr`.
        self.curr_nr.store(nr, Release);
    }

    /// The source of the elements.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Elements that the reserve can take.
    fn limit(&self) -> usize {
        self.min_nr().max(1)
    }

    /// Allocates an element, and waits for one if necessary. With [`Gfp::KERNEL`] never null,
    /// otherwise null if source and reserve have none. With [`Gfp::ZERO`] always null, with a
    /// warning: an element of the reserve is as it was freed.
    pub fn alloc(&self, gfp: Gfp) -> *mut u8 {
        let mut element = [null_mut()];
        // On an error the entry stays null.
        let _ = self.fill(gfp, &mut element);
        element[0]
    }

    /// Allocates an element for each null entry of `elements`.
    ///
    /// The reserve is used only if it has all elements that the source did not give. So two
    /// requests never hold a part of it each and wait for the other's part.
    ///
    /// # Errors
    ///
    /// - [`MempoolError::TooMany`] for more entries than `min_nr`, also if a resize lowers `min_nr`
    ///   during the wait.
    /// - [`MempoolError::Zero`] for this flag.
    /// - [`MempoolError::NoMemory`], but never with [`Gfp::KERNEL`].
    ///
    /// Entries that were filled before an error stay filled.
    pub fn alloc_bulk(&self, gfp: Gfp, elements: &mut [*mut u8]) -> Result<(), MempoolError> {
        if elements.len() > self.min_nr() {
            return Err(MempoolError::TooMany);
        }
        self.fill(gfp, elements)
    }

    /// Allocates an element of the reserve. Null if the reserve is empty, or if its lock is taken
    /// and `gfp` is `GFP_NOSPIN`, or if `gfp` has [`Gfp::ZERO`].
    pub fn alloc_preallocated(&self, gfp: Gfp) -> *mut u8 {
        let mut element = [null_mut()];
        if self.check(gfp).is_ok() {
            self.fill_from_reserve(gfp, &mut element);
        }
        element[0]
    }

    /// Whether the flags make sense; warns if not.
    fn check(&self, gfp: Gfp) -> Result<(), MempoolError> {
        if gfp.contains(Gfp::ZERO) {
            Misuse::ZeroedElements.warn(&self.allocator.platform);
            return Err(MempoolError::Zero);
        }
        Ok(())
    }

    /// The steps of an allocation, as in the module's table.
    fn fill(&self, gfp: Gfp, elements: &mut [*mut u8]) -> Result<(), MempoolError> {
        self.check(gfp)?;
        // A caller that may wait gets an element anyway. A source that tries forever would never
        // let the reserve serve.
        let gfp = gfp - Gfp::NOFAIL;
        if self.fill_from_source(gfp - Gfp::MAP, elements) || self.fill_from_reserve(gfp, elements)
        {
            return Ok(());
        }
        if !gfp.may_map() {
            return Err(MempoolError::NoMemory);
        }
        while !self.fill_from_source(gfp, elements) {
            if !gfp.contains(Gfp::KERNEL) {
                return Err(MempoolError::NoMemory);
            }
            if self.take_or_wait(elements)? {
                break;
            }
        }
        Ok(())
    }

    /// Fills entries from the source; returns whether it filled all.
    fn fill_from_source(&self, gfp: Gfp, elements: &mut [*mut u8]) -> bool {
        for element in elements.iter_mut().filter(|element| element.is_null()) {
            *element = self.source.alloc(gfp);
            if element.is_null() {
                return false;
            }
        }
        true
    }

    /// Fills all entries from the reserve, or none; returns whether it did.
    fn fill_from_reserve(&self, gfp: Gfp, elements: &mut [*mut u8]) -> bool {
        self.reserve
            .lock_if(gfp.may_spin())
            .is_some_and(|mut reserve| self.take(&mut reserve, elements))
    }

    /// Fills all entries from the reserve and returns true, or waits for a change and returns
    /// false.
    fn take_or_wait(&self, elements: &mut [*mut u8]) -> Result<bool, MempoolError> {
        let mut reserve = self.reserve.lock();
        if self.take(&mut reserve, elements) {
            return Ok(true);
        }
        if missing(elements) > self.limit() {
            return Err(MempoolError::TooMany);
        }
        reserve.sleepers += 1;
        // Relaxed: the lock orders it against changes.
        let seen = self.wakes.load(Relaxed);
        drop(reserve);
        P::wait(&self.wakes, seen, Some(MEMPOOL_WAIT_MS));
        self.reserve.lock().sleepers -= 1;
        Ok(false)
    }

    /// Moves elements of the reserve into the null entries, all or none.
    fn take(&self, reserve: &mut PoolReserve, elements: &mut [*mut u8]) -> bool {
        let mut curr = self.curr_nr();
        if missing(elements) > curr {
            return false;
        }
        for element in elements.iter_mut().filter(|element| element.is_null()) {
            curr -= 1;
            // SAFETY: within the stack.
            *element = unsafe { *reserve.elements.add(curr) };
        }
        self.set_curr_nr(curr);
        true
    }

    /// Frees an element; null is ignored. The element goes to the reserve, or to the source if the
    /// reserve is full.
    ///
    /// # Safety
    ///
    /// The element came from this pool or its source, and nobody uses it any longer.
    pub unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.free_bulk(&[element]) };
    }

    /// Frees elements; null is ignored. As many as possible go to the reserve, the rest to the
    /// source; returns the number that went to the reserve.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free), and no element is there twice.
    pub unsafe fn free_bulk(&self, elements: &[*mut u8]) -> usize {
        let mut left = elements
            .iter()
            .copied()
            .filter(|element| !element.is_null());
        let mut kept = 0;
        // A peek; the module says why it does not miss the place of our own element.
        if self.curr_nr() < self.limit() {
            let reserve = self.reserve.lock();
            // Test the room first: an element taken out of `left` needs a place.
            while self.curr_nr() < self.limit()
                && let Some(element) = left.next()
            {
                let curr = self.curr_nr();
                // SAFETY: the array has room for the limit.
                unsafe { *reserve.elements.add(curr) = element };
                self.set_curr_nr(curr + 1);
                kept += 1;
            }
            if kept > 0 {
                self.wake_sleepers(reserve);
            }
        }
        for element in left {
            // SAFETY: the caller frees it.
            unsafe { self.source.free(element) };
        }
        kept
    }

    /// Releases the lock and makes all waiters check again.
    fn wake_sleepers(&self, reserve: Guard<'_, P, PoolReserve>) {
        if reserve.sleepers == 0 {
            return;
        }
        // Relaxed: waiters read it, and frees change it, under the lock.
        self.wakes.fetch_add(1, Relaxed);
        drop(reserve);
        P::wake_all(&self.wakes);
    }

    /// Gives the reserve back to the source, as dropping the pool does (the kernel's
    /// `mempool_destroy`). Elements in flight stay with their holders, who free them to the source.
    pub fn destroy(self) {}
}

impl<P: Platform, S: Source> Drop for Mempool<'_, P, S> {
    fn drop(&mut self) {
        let (array, nr) = (self.reserve.lock().elements, self.curr_nr());
        // SAFETY: no other thread has the pool any longer.
        unsafe { self.give_back(array, nr) };
    }
}

/// Number of null entries.
fn missing(elements: &[*mut u8]) -> usize {
    elements.iter().filter(|element| element.is_null()).count()
}
