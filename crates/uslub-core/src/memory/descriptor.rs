//! What is known of a page with which something begins: a slab, a large object, a run of pages.
//!
//! A descriptor has 32 bytes. Most fields are a slab's; the [state word](crate::slab::state) is
//! explained there.

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
}

/// The descriptor of a slab or of a large object, at its first page.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `state` | anyone, by compare-and-swap | anyone |
/// | `prev`, `next`, `partial` | holder of the list lock | the same |
/// | `position`, `start`, `epoch` | owner of the slab, before the state that needs it | owner |
/// | `kind`, `order`, `node` | who took the pages | anyone who holds an object of it |
#[repr(C, align(32))]
pub struct Descriptor {
    pub(crate) state: AtomicU64,
    prev: AtomicU32,
    next: AtomicU32,
    /// Slots that the iterator has visited; of a large object, the high bits of its pages.
    position: AtomicU16,
    /// Where in the random sequence the iterator began.
    start: AtomicU16,
    kind: AtomicU8,
    partial: AtomicU8,
    node: AtomicU8,
    /// 1 while somebody changes the state under a lock.
    pub(crate) lock: AtomicU8,
    /// Pages of a large object.
    pages: AtomicU16,
    /// Times that the slab has started over, or its pages were given back; truncated.
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

        /// Sets it; see the table for who may.
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
    field!(/// Slots that the iterator has visited.
        position, set_position, position: u16);
    field!(/// Where in the random sequence the iterator began.
        start, set_start, start: u16);
    field!(/// Memory node of the pages.
        node, set_node, node: u8);
    field!(/// Pages of a large object.
        pages, set_pages, pages: u16);
    field!(/// Times that the slab has started over, or its pages were given back; truncated.
        epoch, set_epoch, epoch: u16);

    /// Pages of a large object, which may be more than a block has.
    pub fn large_pages(&self) -> usize {
        usize::from(self.position()) << 16 | usize::from(self.pages())
    }

    /// Says how many pages a large object has, whose descriptor this is.
    pub fn set_large_pages(&self, pages: usize) {
        self.set_pages(pages as u16);
        self.set_position((pages >> 16) as u16);
    }

    /// Whether the slab is on its node's partial list; true only under the list lock.
    #[inline]
    pub fn partial(&self) -> bool {
        // Relaxed: guarded by the list lock.
        self.partial.load(Relaxed) != 0
    }

    /// Says whether the slab is on its node's partial list; under the list lock.
    #[inline]
    pub fn set_partial(&self, partial: bool) {
        // Relaxed: guarded by the list lock.
        self.partial.store(u8::from(partial), Relaxed);
    }

    /// What begins at this page.
    #[inline]
    pub fn kind(&self) -> PageKind {
        // Acquire: pairs with `set_kind`, so that the other fields are seen.
        match self.kind.load(Acquire) {
            1 => PageKind::Slab,
            2 => PageKind::Large,
            _ => PageKind::None,
        }
    }

    /// Says what begins at this page.
    #[inline]
    pub fn set_kind(&self, kind: PageKind) {
        // Release: pairs with `kind`.
        self.kind.store(kind as u8, Release);
    }

    /// Turns a kind into none; false when it was another, for instance because
    /// someone else just did the same.
    pub fn clear_kind(&self, kind: PageKind) -> bool {
        // Acquire: the fields of the object that ends here. Relaxed on failure: nothing follows.
        self.kind
            .compare_exchange(kind as u8, PageKind::None as u8, Acquire, Relaxed)
            .is_ok()
    }
}
