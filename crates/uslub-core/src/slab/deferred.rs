//! Deferred objects: freed in a context that may not wait, pushed to their slabs later.
//!
//! They form a lock-free stack. Any thread pushes; one thread takes the whole stack, so there is no
//! ABA problem. The links are plain: to their slabs, the objects are still in use.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::slab::freelist::Links;
use crate::sync::atomic::{AtomicPtr, AtomicUsize};

/// The stack of deferred objects of one cache.
pub struct Deferred {
    head: AtomicPtr<u8>,
    len: AtomicUsize,
}

fn links(offset: u32) -> Links {
    Links { offset, random: 0 }
}

impl Deferred {
    /// An empty stack.
    pub const fn new() -> Self {
        Self {
            head: AtomicPtr::new(null_mut()),
            len: AtomicUsize::new(0),
        }
    }

    /// Whether the stack is empty; may be stale.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: a peek, may be stale.
        self.head.load(Relaxed).is_null()
    }

    /// Objects on the stack; may be stale.
    pub fn len(&self) -> usize {
        // Relaxed: a statistic.
        self.len.load(Relaxed)
    }

    /// Pushes an object of the caller's, linked `offset` bytes from its start.
    pub(crate) fn push(&self, object: *mut u8, offset: u32) {
        // Relaxed: a statistic.
        self.len.fetch_add(1, Relaxed);
        // Relaxed: confirmed by the compare-and-swap.
        let mut head = self.head.load(Relaxed);
        loop {
            // SAFETY: the caller owns the object until it is on the stack.
            unsafe { links(offset).set(object, head) };
            // Release: the thread that takes the stack sees the link.
            match self
                .head
                .compare_exchange_weak(head, object, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all objects and passes each to `visit`.
    pub(crate) fn take_all(&self, offset: u32, mut visit: impl FnMut(*mut u8)) {
        // Acquire: pairs with the push.
        let mut object = self.head.swap(null_mut(), Acquire);
        while !object.is_null() {
            // SAFETY: this thread owns the objects of the stack now.
            let next = unsafe { links(offset).take(object) };
            // Relaxed: a statistic.
            self.len.fetch_sub(1, Relaxed);
            visit(object);
            object = next;
        }
    }
}

impl Default for Deferred {
    fn default() -> Self {
        Self::new()
    }
}
