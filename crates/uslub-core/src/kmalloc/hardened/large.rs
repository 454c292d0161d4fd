//! Hardened objects of pages.
//!
//! ```text
//!  plain  │ header, read only │ … bytes of the caller │ guard, closed │
//!  grown  │ header, read only │ bytes of the caller │ canary │ room │ trailer │ guard, closed │
//! ```
//!
//! An object has two pages more than it needs, the header's and the guard. A plain object ends at
//! the guard, but for the 15 bytes that its alignment may cost, so a write over the end faults. An
//! object that `realloc` made larger gets room for an eighth more, because each change of a page's
//! protection is a system call: it begins a page, grows in place, and has a canary and a trailer as
//! a small object has. A write over its end is seen when it is freed or resized.
//!
//! In quarantine the bytes of an object are closed, so a use after free faults, and the quarantine
//! itself says that the object is free.
//!
//! Objects with an alignment above a page have neither header nor guards. If the system refuses a
//! protection (each guard costs it a mapping), the object serves without.

use core::ops::Range;
use core::ptr::{NonNull, null_mut};

use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::kmalloc::hardened::words::{self, CANARY};
use crate::kmalloc::hardened::{GROWN, IN_USE, Says, TRAILER, why_freed};
use crate::memory::PageKind;
use crate::memory::mapped::Lookup;
use crate::misuse::Reason;
use crate::platform::{Access, PAGE_SIZE, Platform};
use crate::policy::{HARDENED_ROOM_PART, QUARANTINE_LARGE_BYTES};

/// Bytes of the canary of a grown object, at most.
const CANARY_BYTES: usize = 64;

/// A live object between its header and its guard.
#[derive(Clone, Copy)]
struct Guarded {
    bytes: usize,
    /// Bytes between the two pages.
    room: usize,
}

/// Bytes of a guarded object with its two pages.
fn whole(room: usize) -> usize {
    room + 2 * PAGE_SIZE
}

/// Bytes between the two pages of an object, as its header says; `None` if it has none.
fn room_of(header: Says) -> Option<usize> {
    match header {
        Says::InUse(bytes) => Some(bytes.next_multiple_of(PAGE_SIZE)),
        Says::Grown(room) => Some(room),
        _ => None,
    }
}

/// The first page of an object that is guarded.
fn head_of(object: *mut u8) -> *mut u8 {
    let page = object.wrapping_sub(object as usize % PAGE_SIZE);
    page.wrapping_sub(PAGE_SIZE)
}

/// Where the canary of a grown object lies in its room.
fn canary_of(bytes: usize, room: usize) -> Range<usize> {
    let end = (bytes + CANARY_BYTES).next_multiple_of(size_of::<u64>());
    bytes..end.min(room - TRAILER)
}

impl<P: Platform> Allocator<P> {
    fn protect(&self, start: *mut u8, bytes: usize, access: Access) -> bool {
        NonNull::new(start).is_some_and(|start| {
            // SAFETY: whole pages of an object that the caller owns.
            unsafe { self.platform.protect(start, bytes, access) }
        })
    }

    pub(super) fn alloc_guarded(&self, bytes: usize, align: usize, gfp: Gfp) -> *mut u8 {
        if align > PAGE_SIZE {
            return self.kmalloc_aligned(bytes, align, gfp);
        }
        let room = bytes.next_multiple_of(PAGE_SIZE);
        let at = (room - bytes) & !(align.max(16) - 1);
        self.alloc_between(room, at, IN_USE, bytes, gfp)
    }

    /// An object of `bytes` bytes that has room to grow.
    pub(super) fn alloc_grown(&self, bytes: usize, gfp: Gfp) -> *mut u8 {
        let spare = bytes / HARDENED_ROOM_PART + CANARY_BYTES + TRAILER;
        let room = (bytes + spare).next_multiple_of(PAGE_SIZE);
        let object = self.alloc_between(room, 0, GROWN, room, gfp);
        if !object.is_null() {
            self.set_grown(object, bytes, room);
        }
        object
    }

    /// `room` bytes between a header and a guard; returns the address `at` bytes behind the header,
    /// for which the header says `tag` and `bytes`.
    fn alloc_between(&self, room: usize, at: usize, tag: u64, bytes: usize, gfp: Gfp) -> *mut u8 {
        let head = self.kmalloc_aligned(whole(room), PAGE_SIZE, gfp);
        if head.is_null() {
            return null_mut();
        }
        let object = head.wrapping_add(PAGE_SIZE + at);
        let word = self.code_of(object).encode(tag, bytes);
        // SAFETY: ours.
        unsafe { head.cast::<u64>().write(word) };
        self.protect(head, PAGE_SIZE, Access::ReadOnly);
        let guard = head.wrapping_add(PAGE_SIZE + room);
        self.protect(guard, PAGE_SIZE, Access::Closed);
        object
    }

    /// Makes the canary and the trailer of a grown object.
    fn set_grown(&self, object: *mut u8, bytes: usize, room: usize) {
        let word = self.code_of(object).encode(IN_USE, bytes);
        // SAFETY: the room of an object that the caller owns.
        unsafe {
            words::fill(object, canary_of(bytes, room), CANARY);
            object.add(room - TRAILER).cast::<u64>().write(word);
        }
    }

    /// Whether a large object begins at an address.
    fn begins_large(&self, address: *mut u8) -> bool {
        match self.zone.arena.page_of(address as usize) {
            Some(page) => self.zone.arena.slab(page).kind() == PageKind::Large,
            None => matches!(
                self.mapped.find(address as usize, true),
                Some(Lookup::Start(_))
            ),
        }
    }

    /// What the header of a guarded object says.
    fn header(&self, object: *mut u8) -> Says {
        let head = head_of(object);
        if !self.begins_large(head) {
            return Says::Nonsense;
        }
        // SAFETY: the first page of a large object is readable.
        let word = unsafe { head.cast::<u64>().read() };
        self.code_of(object).decode(word)
    }

    /// The object that begins at an address, live or in quarantine; `None` without a header.
    fn guarded(&self, object: *mut u8, call: &str) -> Option<Guarded> {
        let header = self.header(object);
        let room = room_of(header)?;
        if self.quarantine.large.count(object) > 0 {
            self.hard_misuse(call, object, why_freed(call));
        }
        match header {
            Says::InUse(bytes) => Some(Guarded { bytes, room }),
            _ => Some(self.grown(object, room, call)),
        }
    }

    /// A live grown object; ends the process if it was written over its end.
    fn grown(&self, object: *mut u8, room: usize, call: &str) -> Guarded {
        // SAFETY: the last word of the object's room.
        let word = unsafe { object.add(room - TRAILER).cast::<u64>().read() };
        let bytes = match self.code_of(object).decode(word) {
            Says::InUse(bytes) if bytes <= room - TRAILER => bytes,
            _ => self.hard_misuse(call, object, Reason::WrittenOverEnd),
        };
        // SAFETY: all of the room is readable.
        if !unsafe { words::are(object, canary_of(bytes, room), CANARY) } {
            self.hard_misuse(call, object, Reason::WrittenOverEnd);
        }
        Guarded { bytes, room }
    }

    /// Gives a live grown object other bytes in its room; `None` if it has to move.
    pub(super) fn resize_grown(&self, object: *mut u8, bytes: usize) -> Option<*mut u8> {
        let Says::Grown(room) = self.header(object) else {
            return None;
        };
        if bytes + TRAILER > room || bytes <= room / 2 {
            return None;
        }
        self.set_grown(object, bytes, room);
        Some(object)
    }

    /// Gives a live grown object fewer bytes in its room; any other object keeps its bytes.
    pub(super) fn shrink_grown(&self, object: *mut u8, bytes: usize) {
        if let Says::Grown(room) = self.header(object) {
            self.set_grown(object, bytes, room);
        }
    }

    pub(super) fn guarded_bytes(&self, object: *mut u8, call: &str) -> usize {
        match self.guarded(object, call) {
            Some(guarded) => guarded.bytes,
            None => self.unguarded_bytes(object, call),
        }
    }

    /// Bytes of an object without a header, or of a world that this child of a fork has given up.
    #[inline(never)]
    fn unguarded_bytes(&self, object: *mut u8, call: &str) -> usize {
        if let Some(bytes) = self.former_size(object) {
            return bytes;
        }
        match self.former_size(head_of(object)) {
            Some(all) => all.saturating_sub(2 * PAGE_SIZE + object as usize % PAGE_SIZE),
            None => self.sized(object, call, true).map_or(0, |(_, bytes)| bytes),
        }
    }

    pub(super) fn free_guarded(&self, object: *mut u8) {
        let Some(Guarded { room, .. }) = self.guarded(object, "free of") else {
            // It belongs to a world that this child of a fork has given up, or it has no guards, or
            // is wrong.
            return match self.former_size(head_of(object)) {
                Some(_) => {}
                None => self.kfree_slow(object),
            };
        };
        let head = head_of(object);
        if whole(room) > QUARANTINE_LARGE_BYTES {
            return self.release(head, room);
        }
        self.protect(head.wrapping_add(PAGE_SIZE), room, Access::Closed);
        let kept = &self.quarantine.large;
        let leaves = kept.exchange(kept.next_place(self.secret()), object);
        if leaves == object || kept.count(object) > 1 {
            // Another thread frees it, too.
            self.hard_misuse("free of", object, Reason::Freed);
        }
        if let Some(room) = room_of(self.header(leaves)) {
            self.release(head_of(leaves), room);
        }
    }

    /// Opens all pages of an object and frees them.
    fn release(&self, head: *mut u8, room: usize) {
        if self.protect(head, whole(room), Access::Open) {
            // SAFETY: the header, which nobody may take for one of a later object.
            unsafe { head.cast::<u64>().write(0) };
            self.kfree_slow(head);
        }
    }
}
