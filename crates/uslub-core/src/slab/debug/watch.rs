//! What a checker of memory is told: valgrind, or the runtime of a sanitizer.
//!
//! | moment | the checker knows |
//! |---|---|
//! | a new slab | nobody may touch it |
//! | an allocation | the object's bytes may be touched, the red zones around it not |
//! | a free | nobody may touch the slot; a second free is reported |
//! | a slab's pages go | they are memory like any other |
//!
//! Between `watch_enter` and `watch_leave` the allocator itself touches what nobody may touch.
//! Callers: `object`, and `fresh` for pages that go. Nothing happens in caches without
//! [`WATCHED`](crate::debug::DebugFlags::WATCHED).

use crate::debug::DebugFlags;
use crate::platform::{Block, Platform, Watch};
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;

impl<P: Platform> SlabCache<P> {
    fn is_watched(&self) -> bool {
        self.debug.get().contains(DebugFlags::WATCHED)
    }

    fn slot_of(&self, object: *mut u8) -> Block {
        Block {
            start: object.wrapping_sub(self.layout.left as usize),
            bytes: self.size as usize,
        }
    }
}

impl<P: Platform> Base<P> {
    pub(super) fn watch_enter(&self, cache: &SlabCache<P>) {
        if cache.is_watched() {
            self.platform.watch(Watch::Enter);
        }
    }

    pub(super) fn watch_leave(&self, cache: &SlabCache<P>) {
        if cache.is_watched() {
            self.platform.watch(Watch::Leave);
        }
    }

    pub(super) fn watch_alloc(&self, cache: &SlabCache<P>, start: *mut u8, bytes: usize) {
        if cache.is_watched() {
            self.platform.watch(Watch::Alloc {
                object: Block { start, bytes },
                slot: cache.slot_of(start),
                is_constructed: cache.ctor.is_some(),
            });
        }
    }

    pub(super) fn watch_free(&self, cache: &SlabCache<P>, object: *mut u8) {
        if cache.is_watched() {
            let left = cache.layout.left as usize;
            self.platform.watch(Watch::Free { object, left });
        }
    }

    pub(super) fn watch_resize(
        &self,
        cache: &SlabCache<P>,
        start: *mut u8,
        old: usize,
        bytes: usize,
    ) {
        if cache.is_watched() {
            self.platform.watch(Watch::Resize {
                object: Block { start, bytes },
                old,
                slot: cache.slot_of(start),
            });
        }
    }

    /// An event of an object's slot.
    pub(super) fn watch_slot(
        &self,
        cache: &SlabCache<P>,
        object: *mut u8,
        event: impl FnOnce(Block) -> Watch,
    ) {
        if cache.is_watched() {
            self.platform.watch(event(cache.slot_of(object)));
        }
    }

    /// An event of a whole slab that begins at `start`.
    pub(crate) fn watch_slab(
        &self,
        cache: &SlabCache<P>,
        start: *mut u8,
        event: impl FnOnce(Block) -> Watch,
    ) {
        if cache.is_watched() {
            let bytes = cache.geometry.bytes();
            self.platform.watch(event(Block { start, bytes }));
        }
    }
}
