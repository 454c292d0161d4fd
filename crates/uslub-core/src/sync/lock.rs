//! A lock that spins briefly, then sleeps, and that knows its owner.
//!
//! The word of a free lock is 0. The word of a taken lock has three parts:
//!
//! | bits | part | meaning |
//! |---|---|---|
//! | 0 | `CONTENDED` | a thread may sleep until the lock is released |
//! | 1 … 2 | level | 0: a thread works under the lock. 1 to 3: a fork holds it, see below |
//! | 3 … 31 | owner | [`Platform::lock_tag`] of the thread that holds the lock |
//!
//! A fork takes all locks, so that the child finds every structure whole. The forking thread
//! changes nothing under these locks: it only excludes other threads. A signal handler that
//! interrupts a fork may fork too; the level is the number of the thread's forks that ran when it
//! took the lock. Three rules prevent deadlocks:
//!
//! - A fork finds a lock that its own thread holds: it leaves the lock as it is. An outer fork took
//!   the lock, or code that a signal handler interrupted.
//! - The forking thread allocates, as fork handlers of other libraries do: it enters the lock,
//!   whose level is 0 until it leaves.
//! - Another thread waits for a lock that a fork holds: it steals the lock after [`LOCK_STEAL_MS`].
//!
//! Stealing breaks this cycle: a fork waits for a lock of the C library, whose holder allocates and
//! waits for the fork. A lock in use (level 0) is never stolen.
//!
//! Callers that must never wait (`GFP_NOSPIN`) use [`Lock::try_lock`]. `docs/architecture.md`
//! states the lock order.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::platform::Platform;
use crate::policy::{LOCK_SPINS, LOCK_STEAL_MS, LOCK_STEAL_STEP_MS};
use crate::sync::atomic::{self, AtomicU32};

const FREE: u32 = 0;
const CONTENDED: u32 = 1;
const LEVEL_SHIFT: u32 = 1;
const LEVEL: u32 = 3 << LEVEL_SHIFT;
const OWNER_SHIFT: u32 = 3;
/// Bits of an owner's tag in the word.
const TAG_BITS: u32 = u32::BITS - OWNER_SHIFT;

/// Deepest fork that takes locks: a fork that interrupts three forks of its thread takes none.
pub const MAX_LEVEL: u32 = LEVEL >> LEVEL_SHIFT;

fn level_of(word: u32) -> u32 {
    (word & LEVEL) >> LEVEL_SHIFT
}

fn owner_of(word: u32) -> u32 {
    word & !(LEVEL | CONTENDED)
}

/// The state of a lock, as the asking thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Free.
    Not,
    /// Held by a fork; no data is being changed.
    ByFork,
    /// Held by this thread, whose work the caller has interrupted.
    Here,
    /// Held by another thread, which may be in the middle of a change.
    Elsewhere,
}

/// A [`Lock`] without its value: the word.
pub struct RawLock<P> {
    word: AtomicU32,
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform> RawLock<P> {
    const fn new() -> Self {
        Self {
            word: AtomicU32::new(FREE),
            platform: PhantomData,
        }
    }

    /// This thread's tag as an owner.
    #[inline]
    pub(crate) fn me() -> u32 {
        const { assert!(TAG_BITS == 29) };
        (P::lock_tag() << OWNER_SHIFT).max(1 << OWNER_SHIFT)
    }

    /// Takes the lock, and waits for it if necessary; returns the level to pass to
    /// [`leave`](Self::leave).
    #[inline]
    fn enter(&self) -> u32 {
        let me = Self::me();
        // Acquire: pairs with the last holder's release, whose writes we must see.
        match self.word.compare_exchange(FREE, me, Acquire, Relaxed) {
            Ok(_) => 0,
            Err(_) => self.enter_slow(me),
        }
    }

    #[cold]
    fn enter_slow(&self, me: u32) -> u32 {
        if let Some(level) = self.enter_own(me) {
            return level;
        }
        if self.spin(me) {
            return 0;
        }
        let mut waited = 0;
        loop {
            // Relaxed: a peek; each compare-and-swap below acquires.
            let word = self.word.load(Relaxed);
            let level = level_of(word);
            // Set `CONTENDED`: other threads may sleep, and our release must wake one of them.
            let may_take = word == FREE || (level > 0 && waited >= LOCK_STEAL_MS);
            if may_take {
                // Acquire: the last holder's writes. For a stolen lock too: a fork that allocated
                // under the lock released it with its level.
                let taken = (self.word).compare_exchange(word, me | CONTENDED, Acquire, Relaxed);
                if taken.is_ok() {
                    return 0;
                }
            } else if let Some(word) = self.say_contended(word) {
                let timeout = (level > 0).then_some(LOCK_STEAL_STEP_MS);
                waited = if level > 0 {
                    waited + LOCK_STEAL_STEP_MS
                } else {
                    0
                };
                P::wait(&self.word, word, timeout);
            }
        }
    }

    /// Sets `CONTENDED` in the word `word`, if the lock still has it; returns the new word then.
    fn say_contended(&self, word: u32) -> Option<u32> {
        let contended = word | CONTENDED;
        let said = word == contended
            // Relaxed: the holder sees this bit in the operation that releases the lock.
            || (self.word.compare_exchange(word, contended, Relaxed, Relaxed)).is_ok();
        said.then_some(contended)
    }

    /// Peeks a few times whether the lock is free, and takes it if so.
    fn spin(&self, me: u32) -> bool {
        for _ in 0..LOCK_SPINS {
            atomic::spin_loop();
            // Relaxed: a peek; the compare-and-swap below acquires.
            if self.word.load(Relaxed) == FREE
                // Acquire: as in `enter`.
                && self.word.compare_exchange(FREE, me, Acquire, Relaxed).is_ok()
            {
                return true;
            }
        }
        false
    }

    /// Enters a lock that a fork of this thread holds; returns the fork's level.
    fn enter_own(&self, me: u32) -> Option<u32> {
        loop {
            // Relaxed: this thread's own writes, and a bit that says nothing about the value.
            let word = self.word.load(Relaxed);
            if owner_of(word) != me || level_of(word) == 0 {
                return None;
            }
            // Relaxed: the writes under the lock were this thread's.
            let entered = (self.word).compare_exchange(word, word & !LEVEL, Relaxed, Relaxed);
            if entered.is_ok() {
                return Some(level_of(word));
            }
        }
    }

    #[inline]
    fn try_enter(&self) -> Option<u32> {
        if atomic::is_promised(&self.word) {
            return None;
        }
        let me = Self::me();
        // Acquire: as in `enter`.
        match self.word.compare_exchange(FREE, me, Acquire, Relaxed) {
            Ok(_) => Some(0),
            Err(word) if level_of(word) > 0 => self.enter_own(me),
            Err(_) => None,
        }
    }

    /// Undoes [`enter`](Self::enter): releases the lock, or returns it to the fork that holds it.
    #[inline]
    fn leave(&self, level: u32) {
        if level > 0 {
            // Release: a thread that steals the lock must see our writes.
            let before = self.word.fetch_or(level << LEVEL_SHIFT, Release);
            if before & CONTENDED != 0 {
                // A sleeping thread may steal it now, after a while.
                P::wake(&self.word);
            }
            return;
        }
        // Release: the next holder must see our writes.
        if self.word.swap(FREE, Release) & CONTENDED != 0 {
            P::wake(&self.word);
        }
        atomic::left(&self.word);
    }

    /// Takes the lock without a guard, and waits for it if necessary.
    pub fn acquire(&self) {
        atomic::enter::<()>(&self.word);
        self.enter();
    }

    /// Releases the lock that [`acquire`](Self::acquire) took.
    ///
    /// # Safety
    ///
    /// The caller holds the lock and no longer uses the value.
    pub unsafe fn release(&self) {
        self.leave(0);
    }

    /// Takes the lock for a fork of a level from 1 to [`MAX_LEVEL`], unless this thread holds it.
    /// Waits for at most `patience` milliseconds, and subtracts the time from `patience`.
    pub fn acquire_for_fork(&self, level: u32, patience: &mut u32) {
        debug_assert!((1..=MAX_LEVEL).contains(&level));
        let owner = Self::me();
        let me = owner | level << LEVEL_SHIFT;
        let mut slept = FREE;
        loop {
            // Acquire: as in `enter`.
            match (self.word).compare_exchange(FREE, me | slept, Acquire, Relaxed) {
                Err(word) if owner_of(word) != owner && *patience > 0 => {
                    if self.spin(me | slept) {
                        return;
                    }
                    // Relaxed: a peek.
                    let word = self.word.load(Relaxed);
                    if word != FREE
                        && let Some(word) = self.say_contended(word)
                    {
                        slept = CONTENDED;
                        *patience -= 1;
                        P::wait(&self.word, word, Some(1));
                    }
                }
                _ => return,
            }
        }
    }

    /// Releases the lock if this thread took it for a fork of this level.
    pub fn release_for_fork(&self, level: u32) {
        debug_assert!((1..=MAX_LEVEL).contains(&level));
        let me = Self::me() | level << LEVEL_SHIFT;
        loop {
            // Relaxed: a peek; a thread may steal the lock meanwhile.
            let word = self.word.load(Relaxed);
            if word & !CONTENDED != me {
                return;
            }
            // Release: as in `leave`, for this thread's writes when it entered the lock.
            let released = self.word.compare_exchange(word, FREE, Release, Relaxed);
            if released.is_ok() {
                if word & CONTENDED != 0 {
                    P::wake(&self.word);
                }
                return;
            }
        }
    }

    /// The state of the lock, as this thread sees it.
    pub fn held(&self) -> Held {
        // Relaxed: a peek, may be stale.
        let word = self.word.load(Relaxed);
        match (word == FREE, level_of(word) > 0, owner_of(word)) {
            (true, ..) => Held::Not,
            (_, true, _) => Held::ByFork,
            (.., owner) if owner == Self::me() => Held::Here,
            _ => Held::Elsewhere,
        }
    }

    /// Unlocks the lock in the child of a fork, unless this thread holds it: other holders and
    /// waiters do not exist there.
    ///
    /// # Safety
    ///
    /// Only in a process with one thread.
    pub unsafe fn reset_others(&self) {
        // Relaxed, both: the process has one thread.
        if owner_of(self.word.load(Relaxed)) != Self::me() {
            self.word.store(FREE, Relaxed);
        }
    }
}

/// A value that one thread at a time may use.
pub struct Lock<P, T> {
    raw: RawLock<P>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock admits one thread at a time to the value.
unsafe impl<P, T: Send> Sync for Lock<P, T> {}

impl<P: Platform, T> Lock<P, T> {
    /// Bytes from the lock's start to its value, for readers in another process.
    pub(crate) const VALUE: usize = core::mem::offset_of!(Self, value);

    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            raw: RawLock::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, regardless of the lock's holder.
    ///
    /// # Safety
    ///
    /// No thread changes the value any longer.
    pub(crate) unsafe fn unguarded(&self) -> &T {
        // SAFETY: by the caller's promise.
        unsafe { &*self.value.get() }
    }

    /// The lock without the value.
    pub const fn raw(&self) -> &RawLock<P> {
        &self.raw
    }

    /// Takes the lock, and waits for it if necessary.
    #[inline]
    pub fn lock(&self) -> Guard<'_, P, T> {
        atomic::enter::<T>(&self.raw.word);
        let level = self.raw.enter();
        Guard { lock: self, level }
    }

    /// Takes the lock if it is free, or if a fork of this thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, P, T>> {
        let level = self.raw.try_enter()?;
        Some(Guard { lock: self, level })
    }

    /// Takes the lock; waits for it only if `spin` is true.
    #[inline]
    pub fn lock_if(&self, spin: bool) -> Option<Guard<'_, P, T>> {
        if spin {
            Some(self.lock())
        } else {
            self.try_lock()
        }
    }

    /// Whether the lock is taken; may be stale.
    pub fn is_held(&self) -> bool {
        self.raw.held() != Held::Not
    }
}

/// Access to the value of a [`Lock`]; releases the lock when dropped.
pub struct Guard<'a, P: Platform, T> {
    lock: &'a Lock<P, T>,
    /// Level of the fork that holds the lock meanwhile; 0 for none.
    level: u32,
}

impl<P: Platform, T> Guard<'_, P, T> {
    /// Releases the lock by a plain store, and wakes nobody: for a lock that all but a fork
    /// [try](Lock::try_lock). A fork that sleeps looks again after a millisecond.
    #[inline]
    pub(crate) fn leave_unawaited(self) {
        if self.level > 0 {
            return;
        }
        let lock = self.lock;
        core::mem::forget(self);
        // Release: the next holder must see our writes.
        lock.raw.word.store(FREE, Release);
        atomic::left(&lock.raw.word);
    }
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
        self.lock.raw.leave(self.level);
    }
}
