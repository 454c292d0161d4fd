//! Bulks: many objects in one call, all or none. Any thread may call.

use core::ffi::c_void;

use libc::{EINVAL, ENOMEM};
use uslub_core::Gfp;

use crate::cache::{Core, live, uslub_cache};
use crate::gfp::{gfp, uslub_gfp_t};
use crate::{ALLOCATOR, array, set_errno};

/// Allocates `n` objects, all or none. Returns `n`. Returns 0 with ENOMEM if there is no memory,
/// and 0 with EINVAL, after a message, if the array or the flags are invalid. Then the array holds
/// no objects.
///
/// # Safety
///
/// The cache is not destroyed; `objects` has room for `n` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_alloc_bulk(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    n: usize,
    objects: *mut *mut c_void,
) -> usize {
    // SAFETY: passed on.
    let (cache, objects) = unsafe {
        let what = "uslub_cache_alloc_bulk";
        (live(cache, what), array(objects, n, what))
    };
    let (Some(objects), gfp) = (objects, gfp(flags)) else {
        return 0;
    };
    if ALLOCATOR.alloc_bulk(cache, gfp, objects) {
        n
    } else {
        refused(cache, gfp)
    }
}

/// Sets `errno` to the reason why a bulk was refused; returns 0.
#[cold]
#[inline(never)]
fn refused(cache: &Core, gfp: Gfp) -> usize {
    let contradiction = gfp.contains(Gfp::ZERO) && cache.ctor.is_some();
    set_errno(if contradiction { EINVAL } else { ENOMEM });
    0
}

/// Frees `n` objects, each as by `uslub_cache_free`. The order of the array is lost.
///
/// # Safety
///
/// No object is in the array twice, and nobody uses the objects any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_free_bulk(
    cache: *mut uslub_cache,
    n: usize,
    objects: *mut *mut c_void,
) {
    // SAFETY: passed on.
    unsafe {
        let what = "uslub_cache_free_bulk";
        let cache = live(cache, what);
        if let Some(objects) = array(objects, n, what) {
            ALLOCATOR.free_bulk(cache, objects);
        }
    }
}
