//! The zone's locks, for a fork.
//!
//! The fork code takes them in the parent before a fork and resets them in the child.

use crate::memory::zone::Zone;
use crate::platform::Platform;
use crate::sync::RawLock;

impl<P: Platform> Zone<P> {
    /// The locks of the page layer, the outer one first.
    pub fn raw_locks(&self) -> [&RawLock<P>; 2] {
        [self.growth.raw(), self.lists.raw()]
    }
}
