//! Sources of a pool's elements. Any thread may call one; a resize calls it with its lock held.

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::platform::Platform;

/// The source of a pool's elements; it also takes them back.
pub trait Source {
    /// An element, or null. `gfp` says what the call may do; it never has [`Gfp::ZERO`] or
    /// [`Gfp::NOFAIL`].
    fn alloc(&self, gfp: Gfp) -> *mut u8;

    /// Takes an element back.
    ///
    /// # Safety
    ///
    /// The element came from this source, and nobody uses it any longer.
    unsafe fn free(&self, element: *mut u8);
}

impl<S: Source + ?Sized> Source for &S {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        (**self).alloc(gfp)
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { (**self).free(element) }
    }
}

/// A source of objects of a cache (the kernel's `mempool_alloc_slab`).
pub struct SlabSource<'a, P: Platform> {
    allocator: &'a Allocator<P>,
    cache: &'a KmemCache<P>,
}

impl<'a, P: Platform> SlabSource<'a, P> {
    /// A source over a cache of `allocator`; `None` if the cache has a constructor, since elements
    /// in a reserve are not in their constructed state.
    pub fn new(allocator: &'a Allocator<P>, cache: &'a KmemCache<P>) -> Option<Self> {
        cache.ctor.is_none().then_some(Self { allocator, cache })
    }
}

impl<P: Platform> Source for SlabSource<'_, P> {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        self.allocator.alloc(self.cache, gfp)
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.allocator.free(self.cache, element) }
    }
}

/// A source of elements of any size, including runs of pages (the kernel's `mempool_kmalloc` and
/// `mempool_alloc_pages`).
pub struct KmallocSource<'a, P: Platform> {
    allocator: &'a Allocator<P>,
    bytes: usize,
}

impl<'a, P: Platform> KmallocSource<'a, P> {
    /// A source of elements of `bytes` bytes.
    pub fn new(allocator: &'a Allocator<P>, bytes: usize) -> Self {
        Self { allocator, bytes }
    }
}

impl<P: Platform> Source for KmallocSource<'_, P> {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        self.allocator.kmalloc(self.bytes, gfp)
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.allocator.kfree(element) }
    }
}
