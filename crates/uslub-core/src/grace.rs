//! Grace periods: waiting until every reader that may still look at an object is gone.
//!
//! The core does not know how readers are told apart; that is the [`GracePeriod`] that a user
//! brings.

/// Room for the record of one who waits; liburcu's `struct rcu_head` fits.
#[repr(C)]
#[derive(Debug)]
pub struct RcuHead([usize; 2]);

impl RcuHead {
    /// A record that is in no use.
    pub const NEW: RcuHead = RcuHead([0; 2]);
}

/// What is called after a grace period, with the record that was given.
pub type RcuCallback = unsafe extern "C" fn(*mut RcuHead);

/// A way to wait until all readers that are inside a read-side section now have left it.
///
/// # Safety
///
/// Implementors promise that a callback runs, and a wait returns, only after all those readers have
/// left.
pub unsafe trait GracePeriod: Sync {
    /// Calls `callback(head)` once, after a grace period, on any thread that holds none of the
    /// allocator's locks. So never from inside `call`, which may be called with locks held and may
    /// not use the allocator.
    ///
    /// # Safety
    ///
    /// `head` is the implementor's until the call, which may be made from any thread.
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback);

    /// Waits until every callback that was given before has returned. Not from inside a read-side
    /// section.
    fn barrier(&self);

    /// Waits for a grace period. Not from inside a read-side section.
    fn synchronize(&self);
}
