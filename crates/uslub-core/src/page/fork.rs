//! The page layer's locks around a fork.

use crate::page::zone::Zone;
use crate::platform::Platform;

impl<P: Platform> Zone<P> {
    /// Takes the locks of the page layer, for a fork.
    pub fn lock_for_fork(&self) {
        self.growth.acquire();
        self.lists.acquire();
    }

    /// Releases what [`lock_for_fork`](Self::lock_for_fork) took.
    ///
    /// # Safety
    ///
    /// In the parent, after the fork, on the thread that took them.
    pub unsafe fn unlock_after_fork(&self) {
        // SAFETY: the caller holds both.
        unsafe {
            self.lists.release();
            self.growth.release();
        }
    }

    /// Makes the locks free in the child.
    ///
    /// # Safety
    ///
    /// In the child of a fork whose parent held the locks.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: passed on.
        unsafe {
            self.lists.reset();
            self.growth.reset();
        }
    }
}
