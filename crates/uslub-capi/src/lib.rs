//! Object caches for C and C++: `libuslub.so`, `libuslub.a` and their headers.
//!
//! | file | concept |
//! |---|---|
//! | `cache`, `args` | caches: creation, destruction, single objects |
//! | `bulk` | many objects in one call |
//! | `sheaf` | objects set aside beforehand |
//! | `kmalloc`, `copy` | objects of any size |
//! | `buckets` | size classes of the caller's own |
//! | `mempool` | a reserve for operations that must not fail |
//! | `rcu` | frees after a grace period |
//! | `shrinker` | callbacks that free objects when memory is short |
//! | `stats`, `slabinfo` | counters, and where the memory is |
//! | `debug`, `debug_flags` | debugged caches |
//! | `gfp` | contexts |
//! | `start` | set-up, fork |
//!
//! `include/uslub.h` declares the functions; it is made of these sources (`tools/header`). A
//! success leaves `errno` alone, a failure sets it, and a free keeps it. A bad argument is reported
//! on standard error and refused with `EINVAL`. An argument that can only be a bug of the caller (a
//! null cache, a foreign pointer) ends the process with a message.
//!
//! The library owns one allocator, which the tunables in `USLUB_OPTIONS` govern. It starts no
//! thread, has no thread-local memory, and is never unloaded. Any thread may call, but not between
//! `vfork` and `exec`.

#![cfg_attr(panic = "abort", no_std)]
// Types have their C names.
#![allow(non_camel_case_types)]
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod args;
mod buckets;
mod bulk;
mod cache;
mod copy;
mod debug;
mod debug_flags;
mod gfp;
mod kmalloc;
mod mempool;
mod rcu;
mod sheaf;
mod shrinker;
mod slabinfo;
mod start;
mod stats;

use core::ffi::{CStr, c_char, c_void};
use core::fmt::Arguments;
use core::ptr::{NonNull, null_mut};

use libc::{EINVAL, ENOMEM};
use uslub_core::misuse::Misuse;
use uslub_core::platform::Platform;
use uslub_core::{Allocator, Gfp};
use uslub_linux::Linux;
pub(crate) use uslub_linux::set_errno;

/// The only allocator.
pub(crate) static ALLOCATOR: Allocator<Linux> = Allocator::new(Linux::new());

uslub_core::note!(ALLOCATOR, "c");

#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    fatal(format_args!("internal error: {info}"))
}

/// Ends the process with a message.
#[cold]
pub(crate) fn fatal(message: Arguments<'_>) -> ! {
    ALLOCATOR.platform.fatal(message)
}

/// Ends the process: the C function `call` got a null pointer instead of a `what`.
#[cold]
#[inline(never)]
pub(crate) fn null(call: &str, what: &str) -> ! {
    Misuse::Null(call, what).fatal(&ALLOCATOR.platform)
}

/// Reports what is wrong with an argument, and sets `errno` to `EINVAL`.
#[cold]
pub(crate) fn invalid(message: Arguments<'_>) {
    uslub_linux::complain(message);
    set_errno(EINVAL);
}

/// Sets `errno` to `ENOMEM`; returns null.
#[cold]
pub(crate) fn no_memory() -> *mut c_void {
    set_errno(ENOMEM);
    null_mut()
}

/// Ends an allocation: returns the object, or null with `errno` = `ENOMEM`.
#[inline]
pub(crate) fn handed(object: *mut u8) -> *mut c_void {
    if object.is_null() {
        return no_memory();
    }
    object.cast()
}

/// A text that the caller passes; `None`, after a message, if it is null or not UTF-8.
///
/// # Safety
///
/// `text` is null or a C string that does not change.
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

/// Puts a value into a record in the allocator's memory.
pub(crate) fn record<T>(value: T) -> Option<NonNull<T>> {
    const { assert!(align_of::<T>() <= 16) };
    let memory = ALLOCATOR.kmalloc(size_of::<T>().max(16), Gfp::KERNEL);
    let place = NonNull::new(memory.cast::<T>());
    match place {
        // SAFETY: ours, and large enough.
        Some(place) => unsafe { place.write(value) },
        None => set_errno(ENOMEM),
    }
    place
}

/// Takes the value out of a record and frees the record.
///
/// # Safety
///
/// The record came from [`record`], and nobody uses it any longer.
pub(crate) unsafe fn unrecord<T>(place: NonNull<T>) -> T {
    // SAFETY: by the caller's promise.
    unsafe {
        let value = place.read();
        ALLOCATOR.kfree(place.as_ptr().cast());
        value
    }
}

/// An array of objects that the caller passes; `None`, after a message, if it cannot be an array.
///
/// # Safety
///
/// `objects` is null or an array of `n` pointers that only the caller uses.
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

/// First number of the version that this header is of.
pub const USLUB_VERSION_MAJOR: u32 = 0;
/// Second number of the version that this header is of.
pub const USLUB_VERSION_MINOR: u32 = 1;
/// Third number of the version that this header is of.
pub const USLUB_VERSION_PATCH: u32 = 0;

const _: () = {
    const fn number(digits: &str) -> u32 {
        match u32::from_str_radix(digits, 10) {
            Ok(number) => number,
            Err(_) => panic!("a part of a version is a number"),
        }
    }
    assert!(
        USLUB_VERSION_MAJOR == number(env!("CARGO_PKG_VERSION_MAJOR"))
            && USLUB_VERSION_MINOR == number(env!("CARGO_PKG_VERSION_MINOR"))
            && USLUB_VERSION_PATCH == number(env!("CARGO_PKG_VERSION_PATCH"))
    );
};

/// Version of the library, as `major.minor.patch`. A program that was compiled with another header
/// compares it with USLUB_VERSION_MAJOR and the others.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
