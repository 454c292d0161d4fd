//! `malloc` and `free` without a fast path, for architectures without sequences.

use core::ffi::c_void;

/// Allocates `bytes` bytes; null with `errno` = `ENOMEM` if there is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    crate::slow_path::malloc_slow(bytes)
}

/// Frees an object; null is ignored. A pointer that is no object ends the process with a
/// message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(object: *mut c_void) {
    // SAFETY: passed on.
    unsafe { crate::slow_path::free_closed(object) }
}

/// [`free`] of an object of a size class. `cache` is the identity of the class's cache: see
/// [`CacheId::raw`](uslub_core::percpu::CacheId::raw).
///
/// # Safety
///
/// As for `free`.
pub(crate) unsafe fn free_of(object: *mut c_void, _cache: u16) {
    // SAFETY: passed on.
    unsafe { free(object) }
}
