//! `Allocator` of allocator-api2, for the global allocator, buckets and caches.
//!
//! - [`Uslub`] and `&`[`Buckets`] serve all layouts.
//! - `&`[`RawCache`] and `&`[`Cache`] serve layouts that fit one object. They serve none if the
//!   cache has a constructor or is type-safe, because its free objects must keep their contents.
//!
//! The features `allocator-api2` and `allocator-api2-02` choose the versions 0.4 and 0.2 of that
//! crate; both may be on. The implementations are the same, so a macro writes them.
//!
//! A failure is `AllocError`; the process does not end. Any thread may call.

use std::alloc::Layout;
use std::ptr::NonNull;

use uslub_core::Gfp;

use crate::buckets::Buckets;
use crate::cache::Cache;
use crate::global::{Uslub, as_slice};
use crate::instance::ALLOCATOR;
use crate::raw::RawCache;

/// Memory of zero bytes.
fn dangling(layout: Layout) -> NonNull<[u8]> {
    let start = std::ptr::without_provenance_mut(layout.align());
    // An alignment is never 0.
    NonNull::slice_from_raw_parts(NonNull::new(start).unwrap_or(NonNull::dangling()), 0)
}

fn as_pointer(object: Option<NonNull<u8>>) -> *mut u8 {
    object.map_or(std::ptr::null_mut(), NonNull::as_ptr)
}

impl RawCache {
    /// Whether an object of the cache serves a layout.
    #[inline]
    fn serves(&self, layout: Layout) -> bool {
        layout.size() <= self.object_size()
            && layout.align() <= self.align()
            && !self.is_constructed()
            && !self.is_typesafe()
    }
}

/// Implements the trait `Allocator` of one version of allocator-api2.
macro_rules! implementations {
    ($api:ident) => {
        use super::*;
        use $api::alloc::{AllocError, Allocator};

        /// Memory for a layout, by `alloc` unless the layout has zero bytes.
        #[inline]
        fn allocate(
            layout: Layout,
            alloc: impl FnOnce() -> *mut u8,
        ) -> Result<NonNull<[u8]>, AllocError> {
            if layout.size() == 0 {
                return Ok(dangling(layout));
            }
            as_slice(alloc(), layout.size()).ok_or(AllocError)
        }

        // SAFETY: objects have the size and alignment of their layouts, and one owner until they
        // are freed;
        // all handles are alike.
        unsafe impl Allocator for Uslub {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                allocate(layout, || Uslub::allocate(layout, Gfp::KERNEL))
            }

            #[inline]
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                allocate(layout, || Uslub::allocate(layout, Gfp::KERNEL | Gfp::ZERO))
            }

            #[inline]
            unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
                if layout.size() != 0 {
                    // SAFETY: passed on.
                    unsafe { ALLOCATOR.kfree(object.as_ptr()) };
                }
            }

            unsafe fn grow(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: passed on.
                unsafe { reallocate(*self, object, old, new) }
            }

            unsafe fn shrink(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: passed on.
                unsafe { reallocate(*self, object, old, new) }
            }
        }

        /// Grows or shrinks an object.
        ///
        /// # Safety
        ///
        /// As for [`Allocator::grow`], but the new layout may be smaller.
        unsafe fn reallocate(
            heap: Uslub,
            object: NonNull<u8>,
            old: Layout,
            new: Layout,
        ) -> Result<NonNull<[u8]>, AllocError> {
            if old.size() != 0 && new.size() != 0 && new.align() == old.align() {
                // SAFETY: passed on.
                let moved = unsafe {
                    std::alloc::GlobalAlloc::realloc(&heap, object.as_ptr(), old, new.size())
                };
                return as_slice(moved, new.size()).ok_or(AllocError);
            }
            let moved = heap.allocate(new)?;
            // SAFETY: both objects are live and have the bytes that are copied; the caller gives up
            // the old
            // one.
            unsafe {
                moved
                    .cast::<u8>()
                    .copy_from_nonoverlapping(object, old.size().min(new.size()));
                heap.deallocate(object, old);
            }
            Ok(moved)
        }

        // SAFETY: as above. Objects live as long as the set, which the reference protects from a
        // drop.
        unsafe impl Allocator for &Buckets {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                let (bytes, align) = (layout.size(), layout.align());
                allocate(layout, || {
                    as_pointer(self.alloc_aligned(bytes, align, Gfp::KERNEL))
                })
            }

            #[inline]
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                let (bytes, align, gfp) = (layout.size(), layout.align(), Gfp::KERNEL | Gfp::ZERO);
                allocate(layout, || as_pointer(self.alloc_aligned(bytes, align, gfp)))
            }

            #[inline]
            unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
                if layout.size() != 0 {
                    // SAFETY: passed on.
                    unsafe { self.free(object.as_ptr()) };
                }
            }
        }

        // SAFETY: as above. Objects live as long as the cache, which the reference protects from a
        // drop.
        unsafe impl Allocator for &RawCache {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                if layout.size() == 0 {
                    return Ok(dangling(layout));
                }
                let object = self
                    .serves(layout)
                    .then(|| self.alloc(Gfp::KERNEL))
                    .flatten();
                as_slice(as_pointer(object), self.object_size()).ok_or(AllocError)
            }

            #[inline]
            unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
                if layout.size() != 0 {
                    // SAFETY: passed on.
                    unsafe { self.free(object.as_ptr()) };
                }
            }

            unsafe fn grow(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                if old.size() == 0 {
                    return self.allocate(new);
                }
                // All objects of the cache have the same size, so the object itself serves or none
                // does.
                let fits = self.serves(new).then_some(object.as_ptr());
                as_slice(fits.unwrap_or_default(), self.object_size()).ok_or(AllocError)
            }

            unsafe fn shrink(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                if new.size() == 0 {
                    // SAFETY: passed on.
                    unsafe { self.deallocate(object, old) };
                    return Ok(dangling(new));
                }
                // SAFETY: passed on; it only checks whether the object serves.
                unsafe { self.grow(object, old, new) }
            }
        }

        // SAFETY: as above.
        unsafe impl<T> Allocator for &Cache<T> {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                Allocator::allocate(&self.as_raw(), layout)
            }

            #[inline]
            unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
                // SAFETY: passed on.
                unsafe { Allocator::deallocate(&self.as_raw(), object, layout) };
            }

            unsafe fn grow(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: passed on.
                unsafe { Allocator::grow(&self.as_raw(), object, old, new) }
            }

            unsafe fn shrink(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: passed on.
                unsafe { Allocator::shrink(&self.as_raw(), object, old, new) }
            }
        }
    };
}

#[cfg(feature = "allocator-api2")]
mod current {
    implementations!(allocator_api2);
}

#[cfg(feature = "allocator-api2-02")]
mod earlier {
    implementations!(allocator_api2_02);
}
