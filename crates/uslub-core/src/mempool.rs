//! Memory pools: a reserve that keeps a number of operations going when memory runs out.
//!
//! The kernel's `mempool_t`. A pool holds `min_nr` elements back. An operation that needs one asks
//! the pool's [`Source`] first and the reserve only when that fails; what is freed fills the
//! reserve up before it goes to the source. So `min_nr` operations can always be in flight, and
//! each one that ends lets the next begin: an allocation that may wait ([`Gfp::KERNEL`]) never
//! fails.
//!
//! An allocation tries, in this order:
//!
//! | step | who comes so far |
//! |---|---|
//! | the source, which may not ask the OS | all |
//! | the reserve | all; `GFP_NOSPIN` only if the pool's lock is free |
//! | the source, with all that the flags allow | who may ask the OS |
//! | wait for a free, at most 5 s; then the last two steps again, for ever | `GFP_KERNEL` |
//!
//! The first attempt without the OS is normal, not a failure: it leaves the reserve alone as
//! long as the allocator has memory at hand, and takes from the reserve before it waits for the OS.
//!
//! A pool with `min_nr` 0 reserves nothing, but one element that is freed is parked, or sleepers
//! would never be woken. So the reserve's *limit* is `min_nr`, or 1 if that is 0.
//!
//! # How no wake-up is lost
//!
//! All that counts happens under the pool's lock; `wakes` is the word that is slept on.
//!
//! | who | under the lock | after it |
//! |---|---|---|
//! | a waiter | finds too few elements; `sleepers += 1`; reads `wakes` | sleeps while `wakes` is what it read |
//! | a free | puts an element; if `sleepers > 0`, `wakes += 1` | wakes all |
//! | a resize | changes reserve and `min_nr`; if `sleepers > 0`, `wakes += 1` | wakes all |
//! | a waiter that returns | `sleepers -= 1` | tries again |
//!
//! A thread counts itself in and reads `wakes` in one section. So a free came before that section,
//! and then the waiter saw its element, or it comes after, and then it sees the sleeper and changes
//! `wakes`: the waiter that is not asleep yet finds another value and does not sleep. All are
//! woken, not one, for a bulk request may need more than the one element that came, and must not
//! keep the wake-up from another. The 5 s are for sources that recover by themselves.
//!
//! A free first glances at `curr_nr` without the lock, and passes a full reserve by. It cannot miss
//! the place that its own element left: `curr_nr` went down before that element was handed out, and
//! whoever frees it got it from there, so it reads that value or a later one. With the value it
//! sees the `min_nr` of that time or a later one. So what it passes by was full after its element
//! had left, and whoever emptied it since will fill it again.
//!
//! | word | changed | read without the lock | ordering |
//! |---|---|---|---|
//! | `wakes` | relaxed | by the sleep alone | the lock orders the change and the read before the sleep; the sleep compares by itself |
//! | `curr_nr` | release | acquire | brings `min_nr` along; an own element's place is seen as its element brought it along |
//! | `min_nr` | relaxed, before a larger `curr_nr` | relaxed, after `curr_nr` | that of `curr_nr` |

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::platform::Platform;
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Guard, Lock};

/// Milliseconds that an allocation waits for a free before it asks the source again.
const WAIT_MS: u32 = 5000;

/// Where a pool's elements come from, and go to.
pub trait Source {
    /// An element, or null. What it may do is what `gfp` says, which never has
    /// [`Gfp::ZERO`] or [`Gfp::NOFAIL`].
    fn alloc(&self, gfp: Gfp) -> *mut u8;

    /// Takes an element back.
    ///
    /// # Safety
    ///
    /// The element came from this source, and nobody uses it any more.
    unsafe fn free(&self, element: *mut u8);
}

impl<S: Source + ?Sized> Source for &S {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        (**self).alloc(gfp)
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { (**self).free(element) }
    }
}

/// Elements that are objects of a cache (the kernel's `mempool_alloc_slab`).
pub struct SlabSource<'a, P: Platform> {
    allocator: &'a Allocator<P>,
    cache: &'a KmemCache<P>,
}

impl<'a, P: Platform> SlabSource<'a, P> {
    /// A source over a cache of `allocator`; `None` if the cache has a constructor, as elements
    /// that wait in a reserve are not as it left them.
    pub fn new(allocator: &'a Allocator<P>, cache: &'a KmemCache<P>) -> Option<Self> {
        cache.ctor.is_none().then_some(Self { allocator, cache })
    }
}

impl<P: Platform> Source for SlabSource<'_, P> {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        self.allocator.alloc(self.cache, gfp)
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.allocator.free(self.cache, element) }
    }
}

/// Elements of any size, runs of pages among them (the kernel's `mempool_kmalloc` and
/// `mempool_alloc_pages`).
pub struct KmallocSource<'a, P: Platform> {
    allocator: &'a Allocator<P>,
    bytes: usize,
}

impl<'a, P: Platform> KmallocSource<'a, P> {
    /// A source of elements of `bytes`.
    pub fn new(allocator: &'a Allocator<P>, bytes: usize) -> Self {
        Self { allocator, bytes }
    }
}

impl<P: Platform> Source for KmallocSource<'_, P> {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        self.allocator.kmalloc(self.bytes, gfp)
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.allocator.kfree(element) }
    }
}

/// Why a pool did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MempoolError {
    /// The source has no memory, nor has the reserve, and the flags forbid to wait.
    NoMemory,
    /// More elements were asked for at once than the pool reserves.
    TooMany,
    /// The elements were to be zero, which those of a reserve are not.
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

/// What the lock guards, besides changes of `curr_nr` and `min_nr`.
struct Reserve {
    /// A stack of `curr_nr` elements in an array with room for the limit at least.
    elements: *mut *mut u8,
    /// Threads that wait.
    sleepers: u32,
}

// SAFETY: the array is reached through the lock alone; elements belong to nobody while they are in
// it.
unsafe impl Send for Reserve {}

/// A pool of at least `min_nr` elements, over a source.
///
/// The array of the reserve comes from the allocator by kmalloc. No function may be called in a
/// signal handler but allocations with `GFP_NOSPIN`. Dropping a pool gives its reserve back to the
/// source.
///
/// ```no_run
/// use uslub_core::mempool::{Mempool, MempoolError, SlabSource};
/// use uslub_core::{Allocator, Gfp, cache::KmemCache, platform::Platform};
///
/// fn write_back<P: Platform>(a: &Allocator<P>, requests: &KmemCache<P>) -> Result<(), MempoolError> {
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
    reserve: Lock<P, Reserve>,
    /// Elements in the reserve; changed under its lock.
    curr_nr: AtomicUsize,
    /// Elements to reserve; changed under the reserve's lock.
    min_nr: AtomicUsize,
    /// Changes whenever those who wait shall look again; changed under the reserve's lock.
    wakes: AtomicU32,
    /// Held while the pool is resized. Outside all other locks: the source is asked meanwhile.
    resizing: Lock<P, ()>,
}

impl<'a, P: Platform, S: Source> Mempool<'a, P, S> {
    /// A pool that reserves `min_nr` elements of `source`, all of which it takes at once.
    ///
    /// # Errors
    ///
    /// [`MempoolError::NoMemory`]; what was taken is given back then.
    pub fn new(
        allocator: &'a Allocator<P>,
        min_nr: usize,
        source: S,
    ) -> Result<Self, MempoolError> {
        let pool = Self {
            allocator,
            source,
            reserve: Lock::new(Reserve {
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
        // Acquire: a glance shall see the `min_nr` that was in force. Under the lock it is exact.
        self.curr_nr.load(Acquire)
    }

    /// Sets the number of elements in the reserve; only under its lock.
    fn set_curr_nr(&self, nr: usize) {
        // Release: see `curr_nr`.
        self.curr_nr.store(nr, Release);
    }

    /// Where the elements come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Elements that the reserve takes.
    fn limit(&self) -> usize {
        self.min_nr().max(1)
    }

    /// Allocates an element, waiting for one if need be. Never null with [`Gfp::KERNEL`]; else null
    /// when source and reserve have none. With [`Gfp::ZERO`] always null, after a warning: an
    /// element of the reserve is as it was freed.
    pub fn alloc(&self, gfp: Gfp) -> *mut u8 {
        let mut element = [null_mut()];
        // An error leaves null behind.
        let _ = self.fill(gfp, &mut element);
        element[0]
    }

    /// Allocates an element for each entry of `elements` that is null.
    ///
    /// The reserve is used only if it has all that the source did not give, so that two requests
    /// never hold a part of it each and wait for the other's.
    ///
    /// # Errors
    ///
    /// [`MempoolError::TooMany`] for more entries than `min_nr`; if a resize makes them too many while they
    /// are waited for, too. [`MempoolError::Zero`] for that flag. [`MempoolError::NoMemory`], which
    /// with
    /// [`Gfp::KERNEL`] never comes. Entries that were filled before an error stay filled.
    pub fn alloc_bulk(&self, gfp: Gfp, elements: &mut [*mut u8]) -> Result<(), MempoolError> {
        if elements.len() > self.min_nr() {
            return Err(MempoolError::TooMany);
        }
        self.fill(gfp, elements)
    }

    /// Allocates an element of the reserve; null when it is empty, or its lock is busy and `gfp` is
    /// `GFP_NOSPIN`, or `gfp` has [`Gfp::ZERO`].
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
            self.allocator
                .platform
                .warn(format_args!("mempool: {}", MempoolError::Zero));
            return Err(MempoolError::Zero);
        }
        Ok(())
    }

    /// The steps of an allocation, as in the table above.
    fn fill(&self, gfp: Gfp, elements: &mut [*mut u8]) -> Result<(), MempoolError> {
        self.check(gfp)?;
        // Who may wait gets an element anyway; a source that tried for ever would never let the
        // reserve serve.
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

    /// Fills what it can from the source; returns whether that was all.
    fn fill_from_source(&self, gfp: Gfp, elements: &mut [*mut u8]) -> bool {
        for element in elements.iter_mut().filter(|element| element.is_null()) {
            *element = self.source.alloc(gfp);
            if element.is_null() {
                return false;
            }
        }
        true
    }

    /// Fills all from the reserve, or none; returns whether it did.
    fn fill_from_reserve(&self, gfp: Gfp, elements: &mut [*mut u8]) -> bool {
        self.reserve
            .lock_if(gfp.may_spin())
            .is_some_and(|mut reserve| self.take(&mut reserve, elements))
    }

    /// Fills all from the reserve and returns true; or waits for a change and returns false.
    fn take_or_wait(&self, elements: &mut [*mut u8]) -> Result<bool, MempoolError> {
        let mut reserve = self.reserve.lock();
        if self.take(&mut reserve, elements) {
            return Ok(true);
        }
        if missing(elements) > self.limit() {
            return Err(MempoolError::TooMany);
        }
        reserve.sleepers += 1;
        // Relaxed: the lock orders it against those who change it.
        let seen = self.wakes.load(Relaxed);
        drop(reserve);
        P::wait(&self.wakes, seen, Some(WAIT_MS));
        self.reserve.lock().sleepers -= 1;
        Ok(false)
    }

    /// Moves elements of the reserve into the null entries, all or none.
    fn take(&self, reserve: &mut Reserve, elements: &mut [*mut u8]) -> bool {
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

    /// Frees an element; null is ignored. The reserve takes it if it is not full, or else the
    /// source.
    ///
    /// # Safety
    ///
    /// The element came from this pool or its source, and nobody uses it any more.
    pub unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.free_bulk(&[element]) };
    }

    /// Frees elements; null is passed over. The reserve takes as many as it has room for, the
    /// source the rest; returns how many went to the reserve.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free), and none is there twice.
    pub unsafe fn free_bulk(&self, elements: &[*mut u8]) -> usize {
        let mut left = elements
            .iter()
            .copied()
            .filter(|element| !element.is_null());
        let mut kept = 0;
        // A glance, see the module: it does not miss the place of an element of ours.
        if self.curr_nr() < self.limit() {
            let reserve = self.reserve.lock();
            // First the room: an element that is taken out of `left` must go somewhere.
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

    /// Releases the lock and makes all who wait look again.
    fn wake_sleepers(&self, reserve: Guard<'_, P, Reserve>) {
        if reserve.sleepers == 0 {
            return;
        }
        // Relaxed: changed, and read by those who are about to sleep, under the lock.
        self.wakes.fetch_add(1, Relaxed);
        drop(reserve);
        P::wake_all(&self.wakes);
    }

    /// Changes how many elements the pool reserves, while others use it. What is too much goes to
    /// the source; what is missing comes from it at once, so that afterwards so many operations
    /// can be in flight. A source may not resize its own pool.
    ///
    /// # Errors
    ///
    /// [`MempoolError::NoMemory`]; the pool is as before then. Shrinking does not fail.
    pub fn resize(&self, min_nr: usize) -> Result<(), MempoolError> {
        let _resizing = self.resizing.lock();
        if min_nr > self.min_nr() {
            return self.grow(min_nr);
        }
        let reserve = self.reserve.lock();
        // Relaxed: who reads the old one takes the lock to put an element, and looks again.
        self.min_nr.store(min_nr, Relaxed);
        // A bulk request that waits may have become too large.
        self.wake_sleepers(reserve);
        while let Some(element) = self.take_surplus() {
            // SAFETY: it was in the reserve, where nobody uses it.
            unsafe { self.source.free(element.as_ptr()) };
        }
        Ok(())
    }

    /// Takes an element beyond the limit. One that is parked stays: somebody may be on the way to
    /// it.
    fn take_surplus(&self) -> Option<NonNull<u8>> {
        let mut reserve = self.reserve.lock();
        let mut element = [null_mut()];
        if self.curr_nr() > self.limit() {
            self.take(&mut reserve, &mut element);
        }
        NonNull::new(element[0])
    }

    /// Makes the reserve larger, by elements of the source. The caller keeps other resizes out.
    fn grow(&self, min_nr: usize) -> Result<(), MempoolError> {
        let array = self.array(min_nr.max(1))?;
        let before = self.min_nr();
        let more = min_nr - before;
        for i in 0..more {
            let element = self.source.alloc(Gfp::KERNEL);
            if element.is_null() {
                // SAFETY: the first `i` are just filled, and nobody has them.
                unsafe { self.give_back(array, i) };
                return Err(MempoolError::NoMemory);
            }
            // SAFETY: the array has room for `min_nr`.
            unsafe { array.add(i).write(element) };
        }
        let mut reserve = self.reserve.lock();
        let curr = self.curr_nr();
        // A parked element was beyond `min_nr`; its place may be taken now.
        let kept = curr.min(min_nr.max(1) - more);
        let (old, parked) = (reserve.elements, curr - kept);
        if kept > 0 {
            // SAFETY: the elements behind the parked one fit behind the new ones.
            unsafe { (old.add(parked)).copy_to_nonoverlapping(array.add(more), kept) };
        }
        reserve.elements = array;
        // Relaxed: released with `curr_nr`.
        self.min_nr.store(min_nr, Relaxed);
        self.set_curr_nr(kept + more);
        self.wake_sleepers(reserve);
        // SAFETY: nobody can reach the old array any more, and the rest of it is still there.
        unsafe { self.give_back(old, parked) };
        Ok(())
    }

    /// An array for `nr` elements.
    fn array(&self, nr: usize) -> Result<*mut *mut u8, MempoolError> {
        let array = nr
            .checked_mul(size_of::<*mut u8>())
            .map_or(null_mut(), |bytes| {
                self.allocator.kmalloc(bytes, Gfp::KERNEL)
            });
        if array.is_null() {
            return Err(MempoolError::NoMemory);
        }
        Ok(array.cast())
    }

    /// Frees the first `nr` elements of an array, and the array.
    ///
    /// # Safety
    ///
    /// Both are the caller's; the array is null, with no elements, or from [`array`](Self::array).
    unsafe fn give_back(&self, array: *mut *mut u8, nr: usize) {
        // SAFETY: passed on.
        unsafe {
            for i in 0..nr {
                self.source.free(*array.add(i));
            }
            self.allocator.kfree(array.cast());
        }
    }

    /// Gives all that is reserved back to the source, as dropping the pool does (the kernel's
    /// `mempool_destroy`). Elements that are still in flight stay with those who have them, for the
    /// source.
    pub fn destroy(self) {}
}

impl<P: Platform, S: Source> Drop for Mempool<'_, P, S> {
    fn drop(&mut self) {
        let (array, nr) = (self.reserve.lock().elements, self.curr_nr());
        // SAFETY: nobody else has the pool any more.
        unsafe { self.give_back(array, nr) };
    }
}

/// Entries that are null.
fn missing(elements: &[*mut u8]) -> usize {
    elements.iter().filter(|element| element.is_null()).count()
}
