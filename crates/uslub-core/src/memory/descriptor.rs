//! What is known of a page with which something begins: a slab, a large object, a run of pages.
//!
//! A descriptor has 32 bytes. Most fields are a slab's; the [state word](crate::slab::state) is
//! explained there. Callers: the owner of the page.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// What a page is the first page of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Nothing: free, or inside something that began earlier.
    None = 0,
    /// A slab.
    Slab = 1,
    /// A large object.
    Large = 2,
    /// Pages that a CPU keeps for the next large object.
    Kept = 3,
}

/// The descriptor of a slab or of a large object, at its first page.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `state` | any thread, by compare-and-swap | any thread |
/// | `prev`, `next`, `partial` | holder of the list lock; owner of an unlisted slab | the same |
/// | `position`, `start`, `epoch` | owner of the slab, before the state that needs it | owner |
/// | `kind`, `node`, `pages` | the thread that took the pages | any holder of an object of it |
/// | `lock` | any thread, by compare-and-swap | any thread |
#[repr(C, align(32))]
pub struct Descriptor {
    pub(crate) state: AtomicU64,
    prev: AtomicU32,
    next: AtomicU32,
    /// Slots that the iterator has passed; of a large object, the high bits of its pages.
    position: AtomicU16,
    start: AtomicU16,
    kind: AtomicU8,
    partial: AtomicU8,
    node: AtomicU8,
    /// 1 while a thread changes the state under a lock.
    pub(crate) lock: AtomicU8,
    pages: AtomicU16,
    epoch: AtomicU16,
}

const _: () = assert!(size_of::<Descriptor>() == 32);

macro_rules! field {
    ($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $type:ty) => {
        $(#[$doc])*
        #[inline]
        pub fn $get(&self) -> $type {
            // Relaxed: ordered by the list lock, by ownership or by the state word; see the table.
            self.$field.load(Relaxed)
        }

        /// Sets the field; the table of [`Descriptor`] says who may.
        #[inline]
        pub fn $set(&self, value: $type) {
            // Relaxed: as for reading.
            self.$field.store(value, Relaxed);
        }
    };
}

impl Descriptor {
    field!(/// The slab before this one in its list.
        prev, set_prev, prev: u32);
    field!(/// The slab behind this one in its list.
        next, set_next, next: u32);
    field!(/// Slots that the iterator has passed.
        position, set_position, position: u16);
    field!(/// Position in the random sequence where the iterator began.
        start, set_start, start: u16);
    field!(/// Memory node of the pages.
        node, set_node, node: u8);
    field!(/// Pages of a large object, the low 16 bits.
        pages, set_pages, pages: u16);
    field!(/// Times that the slab started over or its pages were freed, modulo 2^16.
        epoch, set_epoch, epoch: u16);

    /// Pages of a large object; may be more than one block has.
    pub fn large_pages(&self) -> usize {
        usize::from(self.position()) << 16 | usize::from(self.pages())
    }

    /// Stores the number of pages of the large object that begins here.
    pub fn set_large_pages(&self, pages: usize) {
        self.set_pages(pages as u16);
        self.set_position((pages >> 16) as u16);
    }

    /// Whether the slab is on its node's partial list; reliable only under the list lock.
    #[inline]
    pub fn partial(&self) -> bool {
        // Relaxed: guarded by the list lock.
        self.partial.load(Relaxed) != 0
    }

    /// Stores whether the slab is on its node's partial list; under the list lock.
    #[inline]
    pub fn set_partial(&self, partial: bool) {
        // Relaxed: guarded by the list lock.
        self.partial.store(u8::from(partial), Relaxed);
    }

    /// What begins at this page.
    #[inline]
    pub fn kind(&self) -> PageKind {
        // Acquire: pairs with `set_kind`, so that the other fields are visible.
        match self.kind.load(Acquire) {
            1 => PageKind::Slab,
            2 => PageKind::Large,
            3 => PageKind::Kept,
            _ => PageKind::None,
        }
    }

    /// Stores what begins at this page.
    #[inline]
    pub fn set_kind(&self, kind: PageKind) {
        // Release: pairs with `kind`.
        self.kind.store(kind as u8, Release);
    }

    /// Clears a kind; false if the page has another kind, for example because another thread has
    /// just cleared it.
    pub fn clear_kind(&self, kind: PageKind) -> bool {
        // Acquire: the fields of the object that ends here. Relaxed on failure: nothing is read.
        self.kind
            .compare_exchange(kind as u8, PageKind::None as u8, Acquire, Relaxed)
            .is_ok()
    }
}
