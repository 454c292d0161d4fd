//! Copies of texts and bytes, in memory from kmalloc. Any thread may call.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use crate::gfp::{gfp, uslub_gfp_t};
use crate::kmalloc::kmalloc;
use crate::{handed, invalid};

/// A copy of `bytes` bytes and then `end` zero bytes.
unsafe fn copy(source: *const u8, bytes: usize, end: usize, flags: uslub_gfp_t) -> *mut c_void {
    let Some(room) = bytes.checked_add(end) else {
        return handed(null_mut());
    };
    let copy = kmalloc(room, gfp(flags));
    if !copy.is_null() {
        // SAFETY: the source has this length, by the caller's promise, and the copy has room for
        // both parts.
        unsafe {
            copy.copy_from_nonoverlapping(source, bytes);
            copy.add(bytes).write_bytes(0, end);
        }
    }
    handed(copy)
}

/// Copies a text. Null for null. Null with ENOMEM if there is no memory. `uslub_kfree` frees the
/// copy.
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

/// As `uslub_kstrdup`, but at most `most` bytes of the text.
///
/// # Safety
///
/// `source` is null, or has `most` bytes, or a zero before.
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

/// Copies `bytes` bytes. Null with ENOMEM if there is no memory. Null with EINVAL, after a message,
/// if the source is null. `uslub_kfree` frees the copy.
///
/// # Safety
///
/// `source` has `bytes` bytes.
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
