//! Makes room when the system refuses memory, or before a limit is set.
//!
//! A limit may count memory that the allocator holds but does not use: cached mappings, memory
//! reserved or committed ahead of use, free blocks. All of it goes back first. If there is none,
//! the allocator flushes sheaves and empty slabs, which may free more blocks. Callers: any thread
//! that may wait and call the system.

use crate::cache::allocator::Allocator;
use crate::platform::Platform;

impl<P: Platform> Allocator<P> {
    /// Gives back all memory and address space without an object; returns whether there was any.
    /// From then on nothing is reserved or committed ahead of use.
    pub fn release_unused(&self) -> bool {
        self.release_idle() || {
            self.shrink_all();
            self.release_idle()
        }
    }

    /// As [`release_unused`](Self::release_unused), but without a flush of sheaves.
    pub(crate) fn release_idle(&self) -> bool {
        let kept = self
            .mapped
            .purge(&self.platform, self.platform.now_ms(), |_| true);
        if kept {
            self.update_mapped_bytes();
        }
        self.zone.make_room(&self.platform) || kept
    }
}
