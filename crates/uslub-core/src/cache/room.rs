//! What gives room when the system refuses memory, or before a limit is set.
//!
//! A limit may count what the allocator has and does not use: kept mappings, memory reserved or
//! committed ahead, blocks of free pages. All of that goes back first. If there is none, sheaves
//! and empty slabs are flushed, which may free more blocks.

use crate::cache::allocator::Allocator;
use crate::platform::Platform;

impl<P: Platform> Allocator<P> {
    /// Gives back all memory and address space that holds no object; returns whether there was any.
    /// From then on nothing is reserved or committed ahead of use.
    pub fn release_unused(&self) -> bool {
        self.release_idle() || {
            self.shrink_all();
            self.release_idle()
        }
    }

    /// As [`release_unused`](Self::release_unused), without a flush of sheaves.
    pub(crate) fn release_idle(&self) -> bool {
        let kept = self
            .huge
            .purge(&self.platform, self.platform.now_ms(), |_| true);
        if kept {
            self.note_huge();
        }
        self.zone.make_room(&self.platform) || kept
    }
}
