//! The list of blocks with free dirty pages, by last use.
//!
//! Its first blocks were purged lazily: the system may take the memory of their free dirty pages. A
//! block of which a page is freed then goes to the end; its other pages stay lazy. Callers: `zone`
//! and `decay`, under the page lock.

use crate::memory::block::NO_BLOCK;
use crate::memory::zone::{Lists, Zone};
use crate::platform::Platform;

impl<P: Platform> Zone<P> {
    /// Links a block at the end of the list.
    pub(super) fn link_firm(&self, lists: &mut Lists, number: u32) {
        self.link_before(lists, NO_BLOCK, number);
        if lists.firm_head == NO_BLOCK {
            lists.firm_head = number;
        }
    }

    /// Moves a block to the end of those that were purged lazily.
    pub(super) fn move_to_lazy(&self, lists: &mut Lists, number: u32) {
        self.unlink_dirty(lists, number);
        self.link_before(lists, lists.firm_head, number);
    }

    fn link_before(&self, lists: &mut Lists, next: u32, number: u32) {
        let prev = match next {
            NO_BLOCK => core::mem::replace(&mut lists.dirty_tail, number),
            // SAFETY: the caller holds the page lock; each reference ends with its use.
            _ => core::mem::replace(&mut unsafe { self.arena.block(next) }.dirty_prev, number),
        };
        match prev {
            NO_BLOCK => lists.dirty_head = number,
            // SAFETY: as above.
            _ => unsafe { self.arena.block(prev) }.dirty_next = number,
        }
        // SAFETY: as above.
        let block = unsafe { self.arena.block(number) };
        (block.dirty_prev, block.dirty_next, block.in_dirty) = (prev, next, true);
    }

    /// Takes a block out of the list.
    pub(super) fn unlink_dirty(&self, lists: &mut Lists, number: u32) {
        // SAFETY: the caller holds the page lock.
        let b = unsafe { self.arena.block(number) };
        let (prev, next) = (b.dirty_prev, b.dirty_next);
        b.in_dirty = false;
        if lists.firm_head == number {
            lists.firm_head = next;
        }
        match prev {
            NO_BLOCK => lists.dirty_head = next,
            // SAFETY: as above; another block.
            _ => unsafe { self.arena.block(prev) }.dirty_next = next,
        }
        match next {
            NO_BLOCK => lists.dirty_tail = prev,
            // SAFETY: as above; another block.
            _ => unsafe { self.arena.block(next) }.dirty_prev = prev,
        }
    }
}
