//! Prefilled sheaves: objects that are promised beforehand.

use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null_mut};

use libc::ENOMEM;
use uslub_core::prefill::Prefilled;

use crate::cache::{live, uslub_cache};
use crate::gfp::{gfp, uslub_gfp_t};
use crate::{ALLOCATOR, fatal, handed, invalid, set_errno};

/// Objects that are set aside for their holder.
pub struct uslub_sheaf(());

/// Takes the sheaf out of C's word for it.
///
/// # Safety
///
/// `sheaf` is null or came from [`given`] and is taken once.
unsafe fn taken(sheaf: *mut uslub_sheaf, what: &str) -> Prefilled {
    let Some(raw) = NonNull::new(sheaf.cast()) else {
        fatal(format_args!("{what}: the sheaf is null"));
    };
    // SAFETY: passed on.
    unsafe { Prefilled::from_raw(raw) }
}

/// C's word for a sheaf.
fn given(sheaf: Prefilled) -> *mut uslub_sheaf {
    sheaf.into_raw().as_ptr().cast()
}

/// Sets at least `n` objects (at least 1) of a cache aside, so that as many
/// `uslub_cache_alloc_from` succeed. Null with ENOMEM when memory cannot be had, and then nothing
/// is taken; with EINVAL, after a message, for 0.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_prefill(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    n: usize,
) -> *mut uslub_sheaf {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_prefill") };
    if n == 0 {
        invalid(format_args!(
            "cache '{}': a sheaf of 0 objects",
            cache.name()
        ));
        return null_mut();
    }
    match ALLOCATOR.prefill(cache, gfp(flags), n) {
        Some(sheaf) => given(sheaf),
        None => {
            set_errno(ENOMEM);
            null_mut()
        }
    }
}

/// Fills a sheaf up, so that it has at least `n` objects; `*sheaf` may be another one afterwards.
/// Returns 0; or -1 with ENOMEM when memory cannot be had: then there may be more objects than
/// before, but never fewer.
///
/// # Safety
///
/// `*sheaf` is a sheaf of this cache, which is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_refill(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    sheaf: *mut *mut uslub_sheaf,
    n: usize,
) -> c_int {
    let what = "uslub_cache_refill";
    if sheaf.is_null() {
        fatal(format_args!("{what}: the sheaf is null"));
    }
    // SAFETY: passed on; the word is replaced by a new one.
    let done = unsafe {
        let cache = live(cache, what);
        let mut prefilled = taken(*sheaf, what);
        let done = ALLOCATOR.refill_prefilled(cache, gfp(flags), &mut prefilled, n);
        *sheaf = given(prefilled);
        done
    };
    if done {
        return 0;
    }
    set_errno(ENOMEM);
    -1
}

/// Takes an object that was set aside; null with ENOMEM when all are gone, never another way.
///
/// # Safety
///
/// `sheaf` is a sheaf of this cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_alloc_from(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    sheaf: *mut uslub_sheaf,
) -> *mut c_void {
    let what = "uslub_cache_alloc_from";
    // SAFETY: passed on; C's word for the sheaf stays the same.
    let object = unsafe {
        let cache = live(cache, what);
        let mut prefilled = taken(sheaf, what);
        let object = ALLOCATOR.alloc_from(cache, gfp(flags), &mut prefilled);
        given(prefilled);
        object
    };
    handed(object)
}

/// Gives a sheaf and what is left in it back; null is ignored.
///
/// # Safety
///
/// `sheaf` is a sheaf of this cache, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_return(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    sheaf: *mut uslub_sheaf,
) {
    if sheaf.is_null() {
        return;
    }
    let what = "uslub_cache_return";
    // SAFETY: passed on.
    unsafe { ALLOCATOR.return_prefilled(live(cache, what), gfp(flags), taken(sheaf, what)) };
}

/// Objects in a sheaf; 0 for null.
///
/// # Safety
///
/// `sheaf` is null or a sheaf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_sheaf_size(sheaf: *const uslub_sheaf) -> usize {
    if sheaf.is_null() {
        return 0;
    }
    // SAFETY: passed on; only looked at, so it stays C's.
    ManuallyDrop::new(unsafe { taken(sheaf.cast_mut(), "uslub_sheaf_size") }).size()
}
