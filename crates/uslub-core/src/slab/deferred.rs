//! Deferred objects: freed in a context that may not wait, pushed to their slabs later.
//!
//! Any thread pushes. The next slow path of the cache that may wait takes all. The links are plain:
//! to their slabs, the objects are still in use. Callers: `free`.

use core::sync::atomic::Ordering::Relaxed;

use crate::layout::{Row, rows};
use crate::slab::freelist::Links;
use crate::sync::DeferStack;
use crate::sync::atomic::AtomicUsize;

/// The stack of deferred objects of one cache.
pub struct Deferred {
    objects: DeferStack<0>,
    len: AtomicUsize,
}

impl Deferred {
    pub(crate) const ROWS: &'static [Row] = rows!("Deferred", Self, [objects, len]);

    /// An empty stack.
    pub(crate) const fn new() -> Self {
        Self {
            objects: DeferStack::new(),
            len: AtomicUsize::new(0),
        }
    }

    /// Whether the stack is empty; may be stale.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
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
        let links = Links { offset, random: 0 };
        // SAFETY: the caller owns the object until it is on the stack.
        let link = |next| unsafe { links.set(object, next as *mut u8) };
        self.objects.push(object as usize, link);
    }

    /// Takes all objects and passes each to `visit`.
    pub(crate) fn drain(&self, offset: u32, mut visit: impl FnMut(*mut u8)) {
        let links = Links { offset, random: 0 };
        // SAFETY: this thread owns the objects of the stack now.
        let next = |object| unsafe { links.take(object as *mut u8) } as usize;
        self.objects.drain(next, |object| {
            // Relaxed: a statistic.
            self.len.fetch_sub(1, Relaxed);
            visit(object as *mut u8);
        });
    }
}
