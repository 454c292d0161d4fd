//! Grace periods: how this process waits for readers.
//!
//! The way is set once, by [`set_grace_period`] or at the first use; [`WAY`] has the states. Any
//! thread may call.

use uslub_core::grace::GracePeriod;

use crate::instance::{ALLOCATOR, allocator, is_ready};

#[cfg(not(feature = "crossbeam-epoch"))]
use self::without_epoch as epoch;
#[cfg(feature = "crossbeam-epoch")]
use crate::epoch::{self, Epoch};

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Release};

/// | value | way to wait for readers |
/// |---|---|
/// | 0 | none set yet |
/// | 1 | set by the program |
/// | 2 | [`Epoch`], because the program had set none |
static WAY: AtomicU8 = AtomicU8::new(NONE);
const NONE: u8 = 0;
const SET: u8 = 1;
const EPOCH: u8 = 2;

/// Sets the way to wait for readers, before the first object waits. Returns false if a way is
/// already set.
///
/// Without this call the first use installs [`Epoch`]. A program with other readers, such as those
/// of liburcu, sets its own way.
///
/// ```
/// use std::sync::Mutex;
/// use uslub::{GracePeriod, RcuCallback, RcuHead};
///
/// /// For a program with one thread: nobody reads while it frees.
/// struct Alone(Mutex<Vec<(usize, RcuCallback)>>);
///
/// // SAFETY: there are no readers.
/// unsafe impl GracePeriod for Alone {
///     unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
///         // Not from here: the caller may hold locks.
///         self.0.lock().unwrap().push((head as usize, callback));
///     }
///     fn barrier(&self) {
///         let waiting = std::mem::take(&mut *self.0.lock().unwrap());
///         for (head, callback) in waiting {
///             // SAFETY: as `call` promised.
///             unsafe { callback(head as *mut RcuHead) };
///         }
///     }
///     fn synchronize(&self) {}
/// }
///
/// static ALONE: Alone = Alone(Mutex::new(Vec::new()));
/// assert!(uslub::set_grace_period(&ALONE));
/// let cache = uslub::Cache::new("waits")?;
/// uslub::Object::free_rcu(cache.alloc(1u64)?);
/// uslub::rcu_barrier();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn set_grace_period(grace: &'static dyn GracePeriod) -> bool {
    install(grace, SET)
}

fn install(grace: &'static dyn GracePeriod, way: u8) -> bool {
    let installed = allocator().is_some_and(|allocator| allocator.set_grace_period(grace));
    if installed {
        // Release: a thread that sees this value finds the grace period set.
        WAY.store(way, Release);
    }
    installed
}

/// Ensures that a grace period is set.
#[inline]
pub(crate) fn require() {
    // Acquire: pairs with `install`.
    if WAY.load(Acquire) == NONE {
        install_default();
    }
}

#[cfg(feature = "crossbeam-epoch")]
#[cold]
fn install_default() {
    // If another thread was faster, its grace period is as good.
    install(&Epoch, EPOCH);
}

#[cfg(not(feature = "crossbeam-epoch"))]
#[cold]
fn install_default() {
    panic!(
        "no grace period: call uslub::set_grace_period first, or turn the feature `crossbeam-epoch` on"
    );
}

/// Whether this thread is inside a read-side section of [`Epoch`], and `Epoch` is the way set.
pub(crate) fn is_pinned() -> bool {
    // Acquire: pairs with `install`.
    WAY.load(Acquire) == EPOCH && epoch::is_pinned()
}

/// Lets objects begin their wait for readers: [`Epoch`] cannot do this where the core calls it. The
/// caller must hold no lock.
#[inline]
pub(crate) fn hand_over() {
    epoch::hand_over();
}

/// Waits until every object passed to `free_rcu` before is free.
///
/// # Panics
///
/// Inside a read-side section of [`Epoch`], because it would wait for the end of this section.
///
/// ```
/// let cache = uslub::Cache::new("retired")?;
/// for n in 0..1000u64 {
///     uslub::Object::free_rcu(cache.alloc(n)?);
/// }
/// uslub::rcu_barrier();
/// assert_eq!(cache.stats().info.live_objs(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn rcu_barrier() {
    assert!(
        !is_pinned(),
        "rcu_barrier inside a read-side section, for whose end it must wait"
    );
    if is_ready() {
        ALLOCATOR.rcu_barrier();
    }
}

#[cfg(not(feature = "crossbeam-epoch"))]
mod without_epoch {
    pub(crate) fn is_pinned() -> bool {
        false
    }

    pub(crate) fn hand_over() {}
}
