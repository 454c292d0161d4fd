//! Changes of a pool's size, and the reserve's array.
//!
//! A larger reserve gets a new array, filled before the lock is taken. Then the old elements move
//! behind the new ones. Any thread may call; the lock `resizing` admits one at a time.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::mempool::{Mempool, MempoolError, Source};
use crate::platform::Platform;

impl<P: Platform, S: Source> Mempool<'_, P, S> {
    /// Changes the number of reserved elements, while other threads use the pool. Surplus elements
    /// go to the source, missing ones come from it at once. Afterwards `min_nr` operations can be
    /// in flight. A source must not resize its own pool.
    ///
    /// # Errors
    ///
    /// [`MempoolError::NoMemory`]; the pool is then unchanged. Shrinking does not fail.
    pub fn resize(&self, min_nr: usize) -> Result<(), MempoolError> {
        let _resizing = self.resizing.lock();
        if min_nr > self.min_nr() {
            return self.grow(min_nr);
        }
        let reserve = self.reserve.lock();
        // Relaxed: a reader of the old value takes the lock to add an element, and checks again.
        self.min_nr.store(min_nr, Relaxed);
        // A waiting bulk request may be too large now.
        self.wake_sleepers(reserve);
        while let Some(element) = self.take_surplus() {
            // SAFETY: it was in the reserve, so nobody uses it.
            unsafe { self.source.free(element.as_ptr()) };
        }
        Ok(())
    }

    /// Takes an element beyond the limit. The one element of a `min_nr` of 0 stays: a waiter may be
    /// about to take it.
    fn take_surplus(&self) -> Option<NonNull<u8>> {
        let mut reserve = self.reserve.lock();
        let mut element = [null_mut()];
        if self.curr_nr() > self.limit() {
            self.take(&mut reserve, &mut element);
        }
        NonNull::new(element[0])
    }

    /// Enlarges the reserve with elements of the source. The caller excludes other resizes.
    pub(super) fn grow(&self, min_nr: usize) -> Result<(), MempoolError> {
        let array = self.array(min_nr.max(1))?;
        let before = self.min_nr();
        let more = min_nr - before;
        for i in 0..more {
            let element = self.source.alloc(Gfp::KERNEL);
            if element.is_null() {
                // SAFETY: the first `i` entries are filled, and nobody has them.
                unsafe { self.give_back(array, i) };
                return Err(MempoolError::NoMemory);
            }
            // SAFETY: the array has room for `min_nr` elements.
            unsafe { array.add(i).write(element) };
        }
        let mut reserve = self.reserve.lock();
        let curr = self.curr_nr();
        // The kept element of a `min_nr` of 0 was a surplus; its place may be needed now.
        let kept = curr.min(min_nr.max(1) - more);
        let (old, parked) = (reserve.elements, curr - kept);
        if kept > 0 {
            // SAFETY: the kept elements fit behind the new ones.
            unsafe { (old.add(parked)).copy_to_nonoverlapping(array.add(more), kept) };
        }
        reserve.elements = array;
        // Relaxed: released with `curr_nr`.
        self.min_nr.store(min_nr, Relaxed);
        self.set_curr_nr(kept + more);
        self.wake_sleepers(reserve);
        // SAFETY: no thread can reach the old array any longer; its first entries are the rest.
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
    /// The caller owns both. The array comes from [`array`](Self::array), or is null without
    /// elements.
    pub(super) unsafe fn give_back(&self, array: *mut *mut u8, nr: usize) {
        // SAFETY: passed on.
        unsafe {
            for i in 0..nr {
                self.source.free(*array.add(i));
            }
            self.allocator.kfree(array.cast());
        }
    }
}
