//! Object caches for C and C++: `libuslub.so`, `libuslub.a` and their headers.
//!
//! | file | what |
//! |---|---|
//! | `cache`, `args` | caches: making, ending, objects one by one |
//! | `bulk` | many objects at once |
//! | `sheaf` | objects that are promised beforehand |
//! | `kmalloc`, `copy` | objects of any size |
//! | `buckets` | size classes of one's own |
//! | `mempool` | a reserve that keeps operations going |
//! | `rcu` | freeing after a grace period |
//! | `shrinker` | who frees when memory is short |
//! | `stats`, `slabinfo` | where the memory is |
//! | `gfp` | contexts |
//! | `start` | setting up, fork |
//!
//! The functions are what `include/uslub.h` says, which is made of these sources (`tools/header`).
//! Success leaves `errno` alone, a failure sets it, frees keep it. Bad arguments are said on
//! standard error and refused with `EINVAL`; what can only be a bug of the caller (a null cache, a
//! foreign pointer) ends the process with a message.
//!
//! The library owns one allocator, which the tunables in `USLUB_OPTIONS` govern. It starts no
//! thread, has no thread-local memory, and is never unloaded. Between `vfork` and `exec` nothing of
//! it may be called.

#![cfg_attr(panic = "abort", no_std)]
// Types bear their names in C.
#![allow(non_camel_case_types)]
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod args;
mod buckets;
mod bulk;
mod cache;
mod copy;
mod gfp;
mod kmalloc;
mod mempool;
mod rcu;
mod sheaf;
mod shrinker;
mod slabinfo;
mod start;
mod stats;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt::Arguments;
use core::ptr::{NonNull, null_mut};

use libc::{EINVAL, ENOMEM};
use uslub_core::platform::Platform;
use uslub_core::{Allocator, Gfp};
use uslub_linux::Linux;

/// The one allocator.
pub(crate) static ALLOCATOR: Allocator<Linux> = Allocator::new(Linux::new());

#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    fatal(format_args!("internal error: {info}"))
}

/// Sets `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// Ends the process with a message.
#[cold]
pub(crate) fn fatal(message: Arguments<'_>) -> ! {
    ALLOCATOR.platform.fatal(message)
}

/// Says what is wrong with an argument, and sets `errno` to `EINVAL`.
#[cold]
pub(crate) fn invalid(message: Arguments<'_>) {
    uslub_linux::complain(message);
    set_errno(EINVAL);
}

/// Sets `errno` for want of memory; null.
#[cold]
pub(crate) fn no_memory() -> *mut c_void {
    set_errno(ENOMEM);
    null_mut()
}

/// Hands an object out, or says that there is no memory.
#[inline]
pub(crate) fn handed(object: *mut u8) -> *mut c_void {
    if object.is_null() {
        return no_memory();
    }
    object.cast()
}

/// A text of the caller's; `None`, after a message, when it is null or not UTF-8.
///
/// # Safety
///
/// `text` is null or a C string that stays as it is.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Option<&'a str> {
    if text.is_null() {
        invalid(format_args!("{what}: the name is null"));
        return None;
    }
    // SAFETY: by the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) };
    let text = bytes.to_str().ok();
    if text.is_none() {
        invalid(format_args!("{what}: the name is not UTF-8"));
    }
    text
}

/// A record of our own, in memory of the allocator.
pub(crate) fn record<T>(value: T) -> Option<NonNull<T>> {
    const { assert!(align_of::<T>() <= 16) };
    let memory = ALLOCATOR.kmalloc(size_of::<T>().max(16), Gfp::KERNEL);
    let place = NonNull::new(memory.cast::<T>());
    match place {
        // SAFETY: ours, and so long.
        Some(place) => unsafe { place.write(value) },
        None => set_errno(ENOMEM),
    }
    place
}

/// Takes a record back.
///
/// # Safety
///
/// It came from [`record`], and nobody uses it any more.
pub(crate) unsafe fn unrecord<T>(place: NonNull<T>) -> T {
    // SAFETY: by the caller's promise.
    unsafe {
        let value = place.read();
        ALLOCATOR.kfree(place.as_ptr().cast());
        value
    }
}

/// Objects of the caller's; `None`, after a message, when they cannot be an array.
///
/// # Safety
///
/// `objects` is null or an array of `n` pointers that is the caller's alone.
pub(crate) unsafe fn array<'a>(
    objects: *mut *mut c_void,
    n: usize,
    what: &str,
) -> Option<&'a mut [*mut u8]> {
    if n == 0 {
        return Some(&mut []);
    }
    if n > isize::MAX as usize / size_of::<*mut u8>() || objects.is_null() {
        no_array(objects, n, what);
        return None;
    }
    // SAFETY: by the caller's promise.
    Some(unsafe { core::slice::from_raw_parts_mut(objects.cast(), n) })
}

#[cold]
#[inline(never)]
fn no_array(objects: *mut *mut c_void, n: usize, what: &str) {
    if objects.is_null() {
        invalid(format_args!("{what}: the array of {n} objects is null"));
    } else {
        invalid(format_args!(
            "{what}: {n} objects are more than an array can hold"
        ));
    }
}

/// Version of the library, as `major.minor.patch`.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
