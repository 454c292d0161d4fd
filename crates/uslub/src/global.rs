//! Rust's heap on uslub: `kmalloc` as the program's global allocator.
//!
//! Any thread may call. The first call sets the allocator up; without memory for it the calls
//! return null.

use std::alloc::{GlobalAlloc, Layout};
#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-02"))]
use std::ptr::NonNull;
use std::ptr::null_mut;

use uslub_core::Gfp;

use crate::instance::{ALLOCATOR, allocator};

/// The allocator of a whole program: `kmalloc` as Rust's heap.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: uslub::Uslub = uslub::Uslub;
///
/// let words = vec![1u64; 1000];
/// assert!(uslub::totals().live >= 8000);
/// println!("{}", uslub::slabinfo());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Uslub;

/// Alignment of kmalloc's objects of more than 8 bytes, in bytes.
const KMALLOC_ALIGN: usize = 16;

impl Uslub {
    /// Allocates for a layout of at least one byte; null if there is no memory.
    #[inline]
    pub(crate) fn allocate(layout: Layout, gfp: Gfp) -> *mut u8 {
        if is_natural(layout) && !gfp.contains(Gfp::ZERO) {
            let object = ALLOCATOR.kmalloc_fast(layout.size());
            if !object.is_null() {
                return object;
            }
        }
        Self::allocate_slow(layout, gfp)
    }

    #[cold]
    #[inline(never)]
    fn allocate_slow(layout: Layout, gfp: Gfp) -> *mut u8 {
        match allocator() {
            Some(allocator) if is_natural(layout) => allocator.kmalloc(layout.size(), gfp),
            Some(allocator) => allocator.kmalloc_aligned(layout.size(), layout.align(), gfp),
            None => null_mut(),
        }
    }

    /// Moves an object to a new object with another layout.
    ///
    /// # Safety
    ///
    /// As for [`GlobalAlloc::realloc`].
    unsafe fn move_to(object: *mut u8, old: usize, new: Layout) -> *mut u8 {
        let moved = Self::allocate(new, Gfp::KERNEL);
        if !moved.is_null() {
            // SAFETY: both objects are live and have the bytes that are copied; the caller gives up
            // the old one.
            unsafe {
                moved.copy_from_nonoverlapping(object, old.min(new.size()));
                ALLOCATOR.kfree(object);
            }
        }
        moved
    }
}

/// Whether kmalloc's own alignment is enough.
#[inline]
fn is_natural(layout: Layout) -> bool {
    layout.align() <= size_of::<usize>()
        || (layout.align() <= KMALLOC_ALIGN && layout.size() > size_of::<usize>())
}

// SAFETY: objects have the size and alignment of their layouts, and one owner; nothing here
// unwinds.
unsafe impl GlobalAlloc for Uslub {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::allocate(layout, Gfp::KERNEL)
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::allocate(layout, Gfp::KERNEL | Gfp::ZERO)
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { ALLOCATOR.kfree_sized(object, layout.size()) };
    }

    #[inline]
    unsafe fn realloc(&self, object: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size is not too large for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if is_natural(new) {
            // SAFETY: passed on.
            return unsafe { ALLOCATOR.krealloc(object, bytes, Gfp::KERNEL) };
        }
        if bytes <= layout.size() && bytes > layout.size() / 2 {
            return object;
        }
        // SAFETY: passed on.
        unsafe { Self::move_to(object, layout.size(), new) }
    }
}

/// The usable bytes of an object.
#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-02"))]
pub(crate) fn as_slice(object: *mut u8, bytes: usize) -> Option<NonNull<[u8]>> {
    NonNull::new(object).map(|object| NonNull::slice_from_raw_parts(object, bytes))
}
