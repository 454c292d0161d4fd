//! Copies of texts and of bytes.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use crate::gfp::{gfp, uslub_gfp_t};
use crate::kmalloc::kmalloc;
use crate::{handed, invalid};

/// A copy of `bytes` bytes, with a zero behind it if `end`.
unsafe fn copy(source: *const u8, bytes: usize, end: usize, flags: uslub_gfp_t) -> *mut c_void {
    let Some(room) = bytes.checked_add(end) else {
        return handed(null_mut());
    };
    let copy = kmalloc(room, gfp(flags));
    if !copy.is_null() {
        // SAFETY: the source is so long, by the caller's promise; the copy has room for both.
        unsafe {
            copy.copy_from_nonoverlapping(source, bytes);
            copy.add(bytes).write_bytes(0, end);
        }
    }
    handed(copy)
}

/// A copy of a text; null for null, and with ENOMEM when memory cannot be had. Freed by
/// `uslub_kfree`.
///
/// # Safety
///
/// `source` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kstrdup(source: *const c_char, flags: uslub_gfp_t) -> *mut c_char {
    if source.is_null() {
        return null_mut();
    }
    // SAFETY: passed on.
    unsafe { copy(source.cast(), libc::strlen(source), 1, flags).cast() }
}

/// As `uslub_kstrdup`, of at most `most` bytes.
///
/// # Safety
///
/// `source` is null, or has `most` bytes or a zero before that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kstrndup(
    source: *const c_char,
    most: usize,
    flags: uslub_gfp_t,
) -> *mut c_char {
    if source.is_null() {
        return null_mut();
    }
    // SAFETY: passed on.
    unsafe { copy(source.cast(), libc::strnlen(source, most), 1, flags).cast() }
}

/// A copy of `bytes` bytes; null with ENOMEM when memory cannot be had, and with EINVAL, after a
/// message, when the source is null. Freed by `uslub_kfree`.
///
/// # Safety
///
/// `source` has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kmemdup(
    source: *const c_void,
    bytes: usize,
    flags: uslub_gfp_t,
) -> *mut c_void {
    if source.is_null() {
        invalid(format_args!("uslub_kmemdup: the source is null"));
        return null_mut();
    }
    // SAFETY: passed on.
    unsafe { copy(source.cast(), bytes, 0, flags) }
}
