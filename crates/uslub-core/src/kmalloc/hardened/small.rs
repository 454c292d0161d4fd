//! Hardened objects of size classes.
//!
//! The last word of a slot is the trailer. The bytes between the caller's and the trailer are the
//! canary. A free object is filled up to its trailer. While it is in its slab's freelist, its link
//! overwrites one word, which the link's own check covers. Slots have at least 32 bytes, so that
//! the link does not lie in the trailer.

use core::ops::Range;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::kmalloc::hardened::words::{self, CANARY, FILL};
use crate::kmalloc::hardened::{FREE, IN_USE, Says, TRAILER, why_freed};
use crate::misuse::Reason;
use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::size_class::{CLASS_MAX, aligned_class, class_of};

/// The class for `bytes` and their trailer; `None` if that is a large object.
#[inline]
pub(super) fn class_for(bytes: usize, align: usize) -> Option<usize> {
    let bytes = bytes.checked_add(TRAILER)?.max(24);
    if align <= 16 && bytes <= CLASS_MAX {
        // All classes from 32 bytes on are multiples of 16.
        return Some(class_of(bytes).index());
    }
    aligned_class(bytes, align)
}

/// Whether an object stays in its slot of `size` bytes when it gets `bytes` bytes.
pub(super) fn stays(size: usize, bytes: usize) -> bool {
    bytes > 0 && bytes + TRAILER <= size && bytes + TRAILER > size / 2
}

impl<P: Platform> Allocator<P> {
    fn trailer(&self, cache: &KmemCache<P>, object: *mut u8) -> *mut u64 {
        object
            .wrapping_add(cache.size as usize - TRAILER)
            .cast::<u64>()
    }

    fn says(&self, cache: &KmemCache<P>, object: *mut u8) -> Says {
        // SAFETY: the last word of a slot.
        let word = unsafe { self.trailer(cache, object).read() };
        self.code_of(object).decode(word)
    }

    /// Makes the trailer and the canary of an object in use.
    fn set_in_use(&self, cache: &KmemCache<P>, object: *mut u8, bytes: usize) {
        let room = cache.size as usize - TRAILER;
        let word = self.code_of(object).encode(IN_USE, bytes);
        // SAFETY: the caller owns the slot.
        unsafe {
            words::fill(object, bytes..room, CANARY);
            self.trailer(cache, object).write(word);
        }
    }

    pub(super) fn alloc_small(&self, class: usize, bytes: usize, gfp: Gfp) -> *mut u8 {
        let id = CacheId::of_class(class as u8);
        // SAFETY: our table.
        let mut object = unsafe { self.platform.pop(&self.table, id.main()) };
        if object.is_null() {
            object = self.kmalloc_slow(id, bytes, gfp);
        }
        if let Some(cache) = self.cache(id)
            && !object.is_null()
        {
            match self.says(cache, object) {
                Says::Free(_) => {
                    let link = cache.links.offset as usize;
                    self.check_fill(cache, object, link..link + 8);
                }
                Says::Fresh => {}
                _ => self.hard_misuse("allocation of", object, Reason::WrittenAfterFree),
            }
            self.set_in_use(cache, object, bytes);
        }
        object
    }

    pub(super) fn free_small(&self, cache: &KmemCache<P>, object: *mut u8) {
        let kept = &self.quarantine.small;
        let place = kept.next_place(self.secret());
        self.platform.prefetch_line(kept.peek(place));
        let bytes = self.small_bytes(cache, object, "free of");
        self.check_canary(cache, object, bytes, "free of");
        let room = cache.size as usize - TRAILER;
        let word = self.code_of(object).encode(FREE, bytes);
        // SAFETY: a slot that the caller gives up.
        unsafe {
            words::fill(object, 0..room, FILL);
            self.trailer(cache, object).write(word);
        }
        let leaves = kept.exchange(place, object);
        if let Some(cache) = self.cache_of(leaves) {
            self.check_fill(cache, leaves, 0..0);
            let here = self.zone.arena.is_cacheable_in(leaves as usize, cache.id);
            // SAFETY: our table; the object is free.
            if !here || !unsafe { self.platform.push(&self.table, cache.id.main(), leaves) } {
                self.kfree_slow(leaves);
            }
        }
    }

    /// Gives an object other bytes in its slot; `None` if it has to move.
    pub(super) fn resize_small(
        &self,
        cache: &KmemCache<P>,
        object: *mut u8,
        (old, bytes): (usize, usize),
    ) -> Option<*mut u8> {
        if !stays(cache.size as usize, bytes) {
            return None;
        }
        self.set_small(cache, object, old, bytes);
        Some(object)
    }

    /// Gives an object of `old` bytes other bytes in its slot, which has room for them.
    pub(super) fn set_small(
        &self,
        cache: &KmemCache<P>,
        object: *mut u8,
        old: usize,
        bytes: usize,
    ) {
        self.check_canary(cache, object, old, "realloc of");
        self.set_in_use(cache, object, bytes);
    }

    /// Ends the process if a live object of `bytes` bytes was written over its end.
    fn check_canary(&self, cache: &KmemCache<P>, object: *mut u8, bytes: usize, call: &str) {
        let room = cache.size as usize - TRAILER;
        // SAFETY: the slot of a live object.
        if !unsafe { words::are(object, bytes..room, CANARY) } {
            self.hard_misuse(call, object, Reason::WrittenOverEnd);
        }
    }

    /// Bytes of an object in use; ends the process for any other pointer.
    pub(super) fn small_bytes(&self, cache: &KmemCache<P>, object: *mut u8, call: &str) -> usize {
        if !self.is_slot_of(cache, object) {
            self.hard_misuse(call, object, Reason::Interior);
        }
        let room = cache.size as usize - TRAILER;
        match self.says(cache, object) {
            Says::InUse(bytes) if bytes <= room => bytes,
            Says::Free(_) => self.hard_misuse(call, object, why_freed(call)),
            Says::Fresh => self.hard_misuse(call, object, Reason::FreshSlot),
            _ => self.hard_misuse(call, object, Reason::WrittenOverEnd),
        }
    }

    /// Ends the process if a free object is not filled as the free left it, except at `link`.
    fn check_fill(&self, cache: &KmemCache<P>, object: *mut u8, link: Range<usize>) {
        let room = cache.size as usize - TRAILER;
        let (link, behind) = (link.start.min(room), link.end.min(room));
        // SAFETY: a free slot that we own, without its trailer.
        let filled =
            unsafe { words::are(object, 0..link, FILL) && words::are(object, behind..room, FILL) };
        if !filled || !matches!(self.says(cache, object), Says::Free(_)) {
            self.hard_misuse("allocation of", object, Reason::WrittenAfterFree);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size_class::{CLASS_MAX, class_size};

    #[test]
    fn each_class_has_room_for_the_trailer_and_keeps_the_alignment() {
        for bytes in 1..=CLASS_MAX {
            for align in [1, 16, 64, 4096] {
                match class_for(bytes, align) {
                    Some(class) => {
                        let size = class_size(class);
                        assert!(size >= bytes + TRAILER && size.is_multiple_of(align.max(16)));
                    }
                    None => assert!(bytes + TRAILER > 4096),
                }
            }
        }
        assert!(stays(64, 56) && !stays(64, 57) && !stays(64, 20) && !stays(64, 0));
    }
}
