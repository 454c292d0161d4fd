//! Buckets: sets of size classes of the caller's own.
//!
//! A set is created, used by any number of threads, and destroyed once by one thread. A pointer to
//! a set is a record in the allocator's memory.

use core::ffi::{c_char, c_void};
use core::ptr::{NonNull, null_mut};

use uslub_core::kmalloc::SIZE_MAX;
use uslub_core::kmalloc::buckets::{self, PREFIX_MAX};
use uslub_linux::{Linux, complain};

use crate::gfp::{gfp, uslub_gfp_t};
use crate::{ALLOCATOR, handed, invalid, no_memory, null, record, start, text, unrecord};

/// A set of size classes of the caller's own. It keeps objects whose size comes from outside apart
/// from all others.
pub struct uslub_buckets(());

type Core = buckets::Buckets<Linux>;

/// The set that C passes; ends the process for null.
unsafe fn set<'a>(buckets: *mut uslub_buckets, what: &str) -> &'a Core {
    // SAFETY: by the caller's promise.
    match unsafe { buckets.cast::<Core>().as_ref() } {
        Some(set) => set,
        None => null(what, "set"),
    }
}

/// Creates a set whose caches are named `prefix-size`. Null with ENOMEM. Null with EINVAL, after a
/// message, if the prefix does not have 1 to 26 bytes.
///
/// # Safety
///
/// `prefix` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_buckets_create(prefix: *const c_char) -> *mut uslub_buckets {
    if !start::ready() {
        return no_memory().cast();
    }
    // SAFETY: passed on.
    let Some(prefix) = (unsafe { text(prefix, "uslub_buckets_create") }) else {
        return null_mut();
    };
    match Core::new(prefix) {
        Ok(set) => record(set).map_or(null_mut(), |set| set.as_ptr().cast()),
        Err(_) => {
            invalid(format_args!(
                "buckets '{prefix}': a prefix has 1 to {PREFIX_MAX} bytes"
            ));
            null_mut()
        }
    }
}

/// Allocates `bytes` bytes (0 counts as 1). Null with ENOMEM if there is no memory. `uslub_kfree`
/// frees the object. Objects of more than 8 KiB come from pages.
///
/// # Safety
///
/// The set is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_buckets_alloc(
    buckets: *mut uslub_buckets,
    bytes: usize,
    flags: uslub_gfp_t,
) -> *mut c_void {
    // SAFETY: passed on.
    let set = unsafe { set(buckets, "uslub_buckets_alloc") };
    if bytes > SIZE_MAX {
        return no_memory();
    }
    handed(set.alloc(&ALLOCATOR, bytes, gfp(flags)))
}

/// As `uslub_buckets_alloc`, aligned to `align` bytes. Null with EINVAL, after a message, if
/// `align` is not a power of two.
///
/// # Safety
///
/// As for `uslub_buckets_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_buckets_alloc_aligned(
    buckets: *mut uslub_buckets,
    bytes: usize,
    align: usize,
    flags: uslub_gfp_t,
) -> *mut c_void {
    let what = "uslub_buckets_alloc_aligned";
    // SAFETY: passed on.
    let set = unsafe { self::set(buckets, what) };
    if !align.is_power_of_two() {
        invalid(format_args!("{what}: {align} is no power of two"));
        return null_mut();
    }
    if bytes > SIZE_MAX {
        return no_memory();
    }
    handed(set.alloc_aligned(&ALLOCATOR, bytes, align, gfp(flags)))
}

/// Destroys a set; null is ignored. Each object that is still in use is reported on standard error.
/// A cache with such objects stays, with its memory. Returns the number of such objects.
///
/// # Safety
///
/// Nobody uses the set any longer, except for leaked objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_buckets_destroy(buckets: *mut uslub_buckets) -> usize {
    let Some(place) = NonNull::new(buckets.cast::<Core>()) else {
        return 0;
    };
    // SAFETY: passed on; the set came from `record`.
    unsafe {
        let set = unrecord(place);
        let leaked = set.destroy(&ALLOCATOR, |object| {
            complain(format_args!("buckets: {object:p} is still in use"));
        });
        if leaked > 0 {
            complain(format_args!(
                "buckets: destroyed with {leaked} objects in use; their caches are kept"
            ));
        }
        leaked
    }
}
