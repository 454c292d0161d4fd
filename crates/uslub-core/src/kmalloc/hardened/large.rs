//! Hardened objects of pages.
//!
//! An object has two pages more than it needs. The first page holds the header and is read only,
//! the last page is closed. Objects end at the closed page, but for the 15 bytes that their
//! alignment may cost, so a write over the end faults. In quarantine the object is closed too, and
//! a use after free faults.
//!
//! Objects with an alignment above a page have neither header nor guards. If the system refuses a
//! protection (each guard costs it a mapping), the object serves without.

use core::ptr::{NonNull, null_mut};

use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::kmalloc::hardened::{FREE, IN_USE, Says};
use crate::memory::PageKind;
use crate::memory::mapped::Lookup;
use crate::misuse::Reason;
use crate::platform::{Access, PAGE_SIZE, Platform};
use crate::policy::QUARANTINE_LARGE_BYTES;

/// Bytes of a guarded object with its two pages.
fn whole(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_SIZE) + 2 * PAGE_SIZE
}

/// The first page of an object that is guarded.
fn head_of(object: *mut u8) -> *mut u8 {
    let page = object.wrapping_sub(object as usize % PAGE_SIZE);
    page.wrapping_sub(PAGE_SIZE)
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
        let all = whole(bytes);
        let head = self.kmalloc_aligned(all, PAGE_SIZE, gfp);
        if head.is_null() {
            return null_mut();
        }
        let slack = bytes.next_multiple_of(PAGE_SIZE) - bytes;
        let object = head.wrapping_add(PAGE_SIZE + (slack & !(align.max(16) - 1)));
        let word = self.code_of(object).encode(IN_USE, bytes);
        // SAFETY: ours.
        unsafe { head.cast::<u64>().write(word) };
        self.protect(head, PAGE_SIZE, Access::ReadOnly);
        self.protect(
            head.wrapping_add(all - PAGE_SIZE),
            PAGE_SIZE,
            Access::Closed,
        );
        object
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

    pub(super) fn guarded_bytes(&self, object: *mut u8, call: &str) -> usize {
        match self.header(object) {
            Says::InUse(bytes) => bytes,
            Says::Free(_) => self.hard_misuse(call, object, Reason::UsedAfterFree),
            _ => self.unguarded_bytes(object, call),
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
        let bytes = match self.header(object) {
            Says::InUse(bytes) => bytes,
            Says::Free(_) => self.hard_misuse("free of", object, Reason::Freed),
            // It belongs to a world that this child of a fork has given up.
            _ if self.former_size(head_of(object)).is_some() => return,
            // Without guards, or wrong.
            _ => return self.kfree_slow(object),
        };
        let head = head_of(object);
        let all = whole(bytes);
        self.protect(head, PAGE_SIZE, Access::Open);
        let word = self.code_of(object).encode(FREE, bytes);
        // SAFETY: the header of an object that the caller gives up.
        unsafe { head.cast::<u64>().write(word) };
        if all > QUARANTINE_LARGE_BYTES {
            return self.release(head, all);
        }
        self.protect(head, PAGE_SIZE, Access::ReadOnly);
        let data = head.wrapping_add(PAGE_SIZE);
        self.protect(data, all - 2 * PAGE_SIZE, Access::Closed);
        let kept = &self.quarantine;
        let leaves = kept.exchange(&kept.large, object, self.secret());
        if let Says::Free(bytes) = self.header(leaves) {
            self.release(head_of(leaves), whole(bytes));
        }
    }

    /// Opens all pages of an object and frees them.
    fn release(&self, head: *mut u8, all: usize) {
        if self.protect(head, all, Access::Open) {
            self.kfree_slow(head);
        }
    }
}
