//! What a checker of memory is told: valgrind, or the runtime of a sanitizer.
//!
//! | moment | the checker knows |
//! |---|---|
//! | a new slab | nobody may touch it |
//! | an allocation | the object's bytes may be touched, the red zones around it not |
//! | a free | nobody may touch the slot; a second free is reported |
//! | a slab's pages go | they are memory like any other |
//!
//! Between `Watch::Enter` and `Watch::Leave` the allocator itself touches what nobody may touch.
//! Callers: `object`, and `fresh` for pages that go. Nothing happens in caches without
//! [`WATCHED`](crate::debug::DebugFlags::WATCHED).

use crate::debug::DebugFlags;
use crate::platform::{Block, Platform, Watch};
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;

impl<P: Platform> SlabCache<P> {
    /// The slot of an object.
    pub(super) fn slot_of(&self, object: *mut u8) -> Block {
        Block {
            start: object.wrapping_sub(self.layout.left as usize),
            bytes: self.size as usize,
        }
    }

    /// The slab that begins at `start`.
    pub(crate) fn slab_at(&self, start: *mut u8) -> Block {
        let bytes = self.geometry.bytes();
        Block { start, bytes }
    }
}

impl<P: Platform> Base<P> {
    /// Tells the checker what happens to memory of a cache.
    pub(crate) fn watch(&self, cache: &SlabCache<P>, event: Watch) {
        if cache.debug.get().contains(DebugFlags::WATCHED) {
            self.platform.watch(event);
        }
    }

    /// Bytes that an object was asked for with: the number lies where only the allocator may read.
    pub(crate) fn asked_for(&self, cache: &SlabCache<P>, object: *mut u8) -> usize {
        self.watch(cache, Watch::Enter);
        let bytes = cache.asked_for(object);
        self.watch(cache, Watch::Leave);
        bytes
    }
}
