//! Work put off: a lock-free stack of items, for contexts that may not wait for a lock.
//!
//! Any thread pushes; a thread that holds the lock takes the whole stack at once, so there is no
//! ABA problem. An item is a number (an address, or the number of a page). Each item holds the link
//! to the next one; the callers' closures write and read it. Callers: `slab`, and the locks of
//! `memory`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::atomic::AtomicUsize;

/// A stack of items; `END`, which is no item, stands for the end of the stack.
pub(crate) struct DeferStack<const END: usize>(AtomicUsize);

impl<const END: usize> DeferStack<END> {
    /// An empty stack.
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(END))
    }

    /// Whether the stack is empty; may be stale.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a peek, may be stale.
        self.0.load(Relaxed) == END
    }

    /// Pushes an item of the caller's; `link` links it to the item that it gets, or to `END`.
    #[inline]
    pub(crate) fn push(&self, item: usize, link: impl Fn(usize)) {
        // Relaxed: confirmed by the compare-and-swap.
        let mut head = self.0.load(Relaxed);
        loop {
            link(head);
            // Release: the thread that takes the stack sees the item and its link.
            match (self.0).compare_exchange_weak(head, item, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all items; returns the first, or `END`.
    #[inline]
    pub(crate) fn take_all(&self) -> usize {
        // Acquire: pairs with the push.
        self.0.swap(END, Acquire)
    }

    /// Takes all items and passes each to `visit`; `next` reads an item's link before.
    #[inline]
    pub(crate) fn drain(&self, next: impl Fn(usize) -> usize, mut visit: impl FnMut(usize)) {
        let mut at = self.take_all();
        while at != END {
            let item = at;
            at = next(item);
            visit(item);
        }
    }
}
