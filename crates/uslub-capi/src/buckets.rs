//! Buckets: size classes of one's own.

use core::ffi::{c_char, c_void};
use core::ptr::{NonNull, null_mut};

use uslub_core::kmalloc::SIZE_MAX;
use uslub_core::kmalloc::buckets::{self, PREFIX_MAX};
use uslub_linux::{Linux, complain};

use crate::gfp::{gfp, uslub_gfp_t};
use crate::{ALLOCATOR, fatal, handed, invalid, no_memory, record, start, text, unrecord};

/// A set of size classes of one's own: objects whose size comes from outside are kept apart from
/// all others.
pub struct uslub_buckets(());

type Core = buckets::Buckets<Linux>;

/// The set that C means; ends the process for null.
unsafe fn set<'a>(buckets: *mut uslub_buckets, what: &str) -> &'a Core {
    // SAFETY: by the caller's promise.
    match unsafe { buckets.cast::<Core>().as_ref() } {
        Some(set) => set,
        None => fatal(format_args!("{what}: the set is null")),
    }
}

/// Creates a set; its caches are named `prefix-size`. Null with ENOMEM, or with EINVAL, after a
/// message, for a prefix that has not 1 to 26 bytes.
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

/// Allocates `bytes` (0 counts as 1); null with ENOMEM when memory cannot be had. Freed by
/// `uslub_kfree`. More than 8 KiB come from pages.
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

/// As `uslub_buckets_alloc`, aligned to `align` bytes, a power of two; else null with EINVAL, after
/// a message.
///
/// # Safety
///
/// As there.
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

/// Destroys a set; null is ignored. Each object in a cache that is still in use is reported on
/// standard error, and then that cache and its memory live on. Returns how many there are.
///
/// # Safety
///
/// Nobody uses the set any more, unless objects were leaked.
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
