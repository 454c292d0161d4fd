//! Grace periods: waits until each reader that may still read an object has left.
//!
//! The core does not know how readers are tracked: a [`GracePeriod`] of the user does this.
//! Callers: `rcu` and `destroy`.

/// Room for a deferral record; liburcu's `struct rcu_head` fits.
#[repr(C)]
#[derive(Debug)]
pub struct RcuHead([usize; 2]);

impl RcuHead {
    /// An unused record.
    pub const NEW: RcuHead = RcuHead([0; 2]);
}

/// A callback after a grace period; it gets the record that was passed to
/// [`call`](GracePeriod::call).
pub type RcuCallback = unsafe extern "C" fn(*mut RcuHead);

/// Waits until all readers that are now in a read-side section have left it.
///
/// # Safety
///
/// Implementors promise that a callback runs, and a wait returns, only after all of these readers
/// have left.
pub unsafe trait GracePeriod: Sync {
    /// Calls `callback(head)` once, after a grace period, on any thread that holds no lock of the
    /// allocator. It must not call it inside `call`: `call` may run with locks held, and must not
    /// use the allocator.
    ///
    /// # Safety
    ///
    /// The implementor owns `head` until the callback, which may run on any thread.
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback);

    /// Waits until each callback passed before has returned. Not inside a read-side section.
    fn barrier(&self);

    /// Waits for a grace period. Not inside a read-side section.
    fn synchronize(&self);
}
