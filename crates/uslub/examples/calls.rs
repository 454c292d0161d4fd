//! The calls of the Rust face that allocate and free, each behind a symbol of its own: `.ci/stack`
//! reads how deep they go.

#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use uslub::{AllocError, Cache, Gfp, RawCache, Uslub, kfree, kmalloc, krealloc};

type Word = [u64; 4];

#[unsafe(no_mangle)]
pub fn uslub_rust_alloc(cache: &Cache<Word>) -> Option<NonNull<Word>> {
    cache.alloc_raw(Gfp::KERNEL)
}

/// # Safety
///
/// As for [`Cache::free_raw`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_free(cache: &Cache<Word>, object: NonNull<Word>) {
    // SAFETY: passed on.
    unsafe { cache.free_raw(object) }
}

#[unsafe(no_mangle)]
pub fn uslub_rust_alloc_bulk(
    cache: &Cache<Word>,
    out: &mut [Option<NonNull<Word>>],
) -> Result<(), AllocError> {
    cache.alloc_bulk(out, Gfp::KERNEL)
}

/// # Safety
///
/// As for [`Cache::free_bulk`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_free_bulk(cache: &Cache<Word>, objects: &mut [Option<NonNull<Word>>]) {
    // SAFETY: passed on.
    unsafe { cache.free_bulk(objects) }
}

#[unsafe(no_mangle)]
pub fn uslub_rust_raw_alloc(cache: &RawCache) -> Option<NonNull<u8>> {
    cache.alloc(Gfp::KERNEL)
}

/// # Safety
///
/// As for [`RawCache::free`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_raw_free(cache: &RawCache, object: *mut u8) {
    // SAFETY: passed on.
    unsafe { cache.free(object) }
}

#[unsafe(no_mangle)]
pub fn uslub_rust_raw_alloc_bulk(
    cache: &RawCache,
    out: &mut [Option<NonNull<u8>>],
) -> Result<(), AllocError> {
    cache.alloc_bulk(out, Gfp::KERNEL)
}

/// # Safety
///
/// As for [`RawCache::free_bulk`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_raw_free_bulk(cache: &RawCache, objects: &mut [Option<NonNull<u8>>]) {
    // SAFETY: passed on.
    unsafe { cache.free_bulk(objects) }
}

#[unsafe(no_mangle)]
pub fn uslub_rust_kmalloc(bytes: usize) -> Option<NonNull<u8>> {
    kmalloc(bytes, Gfp::KERNEL)
}

/// # Safety
///
/// As for [`krealloc`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_krealloc(object: *mut u8, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: passed on.
    unsafe { krealloc(object, bytes, Gfp::KERNEL) }
}

/// # Safety
///
/// As for [`kfree`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_kfree(object: *mut u8) {
    // SAFETY: passed on.
    unsafe { kfree(object) }
}

/// # Safety
///
/// As for [`GlobalAlloc::alloc`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_global_alloc(layout: Layout) -> *mut u8 {
    // SAFETY: passed on.
    unsafe { Uslub.alloc(layout) }
}

/// # Safety
///
/// As for [`GlobalAlloc::realloc`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_global_realloc(object: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
    // SAFETY: passed on.
    unsafe { Uslub.realloc(object, layout, bytes) }
}

/// # Safety
///
/// As for [`GlobalAlloc::dealloc`].
#[unsafe(no_mangle)]
pub unsafe fn uslub_rust_global_dealloc(object: *mut u8, layout: Layout) {
    // SAFETY: passed on.
    unsafe { Uslub.dealloc(object, layout) }
}
