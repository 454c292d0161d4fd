//! A lock that spins briefly and then sleeps.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | free |
//! | 1 | held, nobody sleeps |
//! | 2 | held, somebody may sleep |
//!
//! Callers that must never wait (`GFP_NOSPIN`) use [`Lock::try_lock`]. Locks are
//! taken in the order stated in `docs/architecture.md`; a fork takes them all.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::atomic::{self, AtomicU32, SPINS};
use crate::platform::Platform;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A value that one thread at a time may use.
pub struct Lock<P, T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
    platform: PhantomData<fn() -> P>,
}

// SAFETY: the word admits one thread at a time to the value.
unsafe impl<P, T: Send> Sync for Lock<P, T> {}

impl<P: Platform, T> Lock<P, T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
            platform: PhantomData,
        }
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, P, T> {
        self.acquire();
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, P, T>> {
        // Acquire: pairs with the release of the last holder, whose writes we must see.
        self.word
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .is_ok()
            .then(|| Guard { lock: self })
    }

    /// Takes the lock, waiting only where `spin` allows it.
    #[inline]
    pub fn lock_if(&self, spin: bool) -> Option<Guard<'_, P, T>> {
        if spin {
            Some(self.lock())
        } else {
            self.try_lock()
        }
    }

    /// Takes the lock without a guard, for a fork.
    #[inline]
    pub fn acquire(&self) {
        // Acquire: as in `try_lock`.
        if self
            .word
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .is_err()
        {
            self.acquire_slow();
        }
    }

    #[cold]
    fn acquire_slow(&self) {
        for _ in 0..SPINS {
            atomic::spin_loop();
            // Relaxed: only a look; the exchange below acquires.
            if self.word.load(Relaxed) == FREE
                // Acquire: as in `try_lock`.
                && self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
        }
        // Acquire: as in `try_lock`; the holder will wake us, as the word now says CONTENDED.
        while self.word.swap(CONTENDED, Acquire) != FREE {
            P::wait(&self.word, CONTENDED, None);
        }
    }

    /// Whether somebody holds the lock, at a glance.
    pub fn is_held(&self) -> bool {
        // Relaxed: a glance.
        self.word.load(Relaxed) != FREE
    }

    /// Releases the lock that [`acquire`](Self::acquire) took.
    ///
    /// # Safety
    ///
    /// The caller holds the lock and uses the value no more.
    #[inline]
    pub unsafe fn release(&self) {
        // Release: the next holder must see our writes.
        if self.word.swap(FREE, Release) == CONTENDED {
            P::wake(&self.word);
        }
    }

    /// Makes the lock free in the child of a fork, where its waiters do not exist.
    ///
    /// # Safety
    ///
    /// Only in a process with one thread, whose parent took the lock before the fork.
    pub unsafe fn reset(&self) {
        // Relaxed: there is one thread.
        self.word.store(FREE, Relaxed);
    }
}

/// Access to the value of a [`Lock`]; releases it when dropped.
pub struct Guard<'a, P: Platform, T> {
    lock: &'a Lock<P, T>,
}

impl<P: Platform, T> Deref for Guard<'_, P, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        atomic::reads(self.lock.value.get(), 1);
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<P: Platform, T> DerefMut for Guard<'_, P, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        atomic::writes(self.lock.value.get(), 1);
        // SAFETY: the guard holds the lock, and it is borrowed uniquely.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<P: Platform, T> Drop for Guard<'_, P, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard held the lock and ends here.
        unsafe { self.lock.release() }
    }
}
