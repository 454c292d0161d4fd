//! Objects set aside: freed where nothing may be waited for, and given to their slabs later.
//!
//! A stack without a lock: anyone pushes, and all is taken out at once, so
//! nothing can come back while somebody looks at it. The links are plain: the objects are in
//! use as their slabs see it.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::slab::freelist::Links;
use crate::sync::atomic::{AtomicPtr, AtomicUsize};

/// The stack.
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

    /// Whether nothing is set aside, at a glance.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: a glance.
        self.head.load(Relaxed).is_null()
    }

    /// Objects set aside, at a glance.
    pub fn len(&self) -> usize {
        // Relaxed: a figure.
        self.len.load(Relaxed)
    }

    /// Sets an object aside, which is the caller's and is linked `offset` bytes from its start.
    pub(crate) fn push(&self, object: *mut u8, offset: u32) {
        // Relaxed: a figure.
        self.len.fetch_add(1, Relaxed);
        // Relaxed: confirmed by the exchange.
        let mut head = self.head.load(Relaxed);
        loop {
            // SAFETY: the object is the caller's until it is on the stack.
            unsafe { links(offset).set(object, head) };
            // Release: whoever takes it sees the link.
            match self
                .head
                .compare_exchange_weak(head, object, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all objects out and hands each to `visit`.
    pub(crate) fn take_all(&self, offset: u32, mut visit: impl FnMut(*mut u8)) {
        // Acquire: the links.
        let mut object = self.head.swap(null_mut(), Acquire);
        while !object.is_null() {
            // SAFETY: the objects of the stack are ours now.
            let next = unsafe { links(offset).take(object) };
            // Relaxed: a figure.
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
