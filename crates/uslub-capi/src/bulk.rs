//! Many objects at once.

use core::ffi::c_void;

use libc::{EINVAL, ENOMEM};
use uslub_core::Gfp;

use crate::cache::{Core, live, uslub_cache};
use crate::gfp::{gfp, uslub_gfp_t};
use crate::{ALLOCATOR, array, set_errno};

/// Allocates `n` objects, all or none. Returns `n`; or 0, with ENOMEM when memory cannot be had,
/// with EINVAL (after a message) when the array or the flags make no sense. Then the array holds no
/// objects.
///
/// # Safety
///
/// The cache is not destroyed; `objects` has room for `n`.
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

/// Says by `errno` why a bulk was refused; returns 0.
#[cold]
#[inline(never)]
fn refused(cache: &Core, gfp: Gfp) -> usize {
    let contradiction = gfp.contains(Gfp::ZERO) && cache.ctor.is_some();
    set_errno(if contradiction { EINVAL } else { ENOMEM });
    0
}

/// Frees `n` objects, as `uslub_cache_free` does each; their order in the array is lost.
///
/// # Safety
///
/// None is there twice, and nobody uses them any more.
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
