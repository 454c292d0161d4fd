//! Prefilled sheaves: objects set aside beforehand, so that later allocations cannot fail.
//!
//! | state | calls |
//! |---|---|
//! | C owns the sheaf | refill, allocate, return: one thread at a time |
//! | returned | none |

use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null_mut};

use libc::ENOMEM;
use uslub_core::prefill::Prefilled;

use crate::cache::{live, uslub_cache};
use crate::gfp::{gfp, uslub_gfp_t};
use crate::{ALLOCATOR, handed, invalid, null, set_errno};

/// Objects set aside for their holder.
pub struct uslub_sheaf(());

/// The core's sheaf behind a C pointer.
///
/// # Safety
///
/// `sheaf` is null or came from [`given`], and is taken once.
unsafe fn taken(sheaf: *mut uslub_sheaf, what: &str) -> Prefilled {
    let Some(raw) = NonNull::new(sheaf.cast()) else {
        null(what, "sheaf");
    };
    // SAFETY: passed on.
    unsafe { Prefilled::from_raw(raw) }
}

/// The C pointer to a sheaf.
fn given(sheaf: Prefilled) -> *mut uslub_sheaf {
    sheaf.into_raw().as_ptr().cast()
}

/// Sets at least `n` objects (at least 1) of a cache aside. Then `n` calls of
/// `uslub_cache_alloc_from` succeed. Null with ENOMEM, and nothing is taken, if there is no memory.
/// Null with EINVAL, after a message, for 0 objects.
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

/// Refills a sheaf to at least `n` objects; may replace `*sheaf`. Returns 0. Returns -1 with ENOMEM
/// if there is no memory: then the sheaf has as many objects as before or more.
///
/// # Safety
///
/// `*sheaf` is a sheaf of this cache, and the cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_refill(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    sheaf: *mut *mut uslub_sheaf,
    n: usize,
) -> c_int {
    let what = "uslub_cache_refill";
    if sheaf.is_null() {
        null(what, "sheaf");
    }
    // SAFETY: passed on; the old pointer is replaced by a new one.
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

/// Takes an object that was set aside. Null with ENOMEM if none is left; it has no other source.
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
    // SAFETY: passed on; the C pointer to the sheaf stays the same.
    let object = unsafe {
        let cache = live(cache, what);
        let mut prefilled = taken(sheaf, what);
        let object = ALLOCATOR.alloc_from(cache, gfp(flags), &mut prefilled);
        given(prefilled);
        object
    };
    handed(object)
}

/// Returns a sheaf and the objects left in it; null is ignored.
///
/// # Safety
///
/// `sheaf` is a sheaf of this cache, and nobody uses it any longer.
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

/// Number of objects in a sheaf; 0 for null.
///
/// # Safety
///
/// `sheaf` is null or a sheaf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_sheaf_size(sheaf: *const uslub_sheaf) -> usize {
    if sheaf.is_null() {
        return 0;
    }
    // SAFETY: passed on; only read, so C still owns it.
    ManuallyDrop::new(unsafe { taken(sheaf.cast_mut(), "uslub_sheaf_size") }).size()
}
