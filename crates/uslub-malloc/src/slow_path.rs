//! malloc and free where the fast paths could not: before the set-up, an empty or full sheaf,
//! another size, a closed [gate](crate::gate).

use core::ffi::c_void;
use core::ptr::null_mut;

use libc::ENOMEM;
use uslub_core::Gfp;
use uslub_core::misuse::foreign;

use crate::gate::FRONT;
use crate::{ALLOCATOR, early, helper, once, other, set_errno, start};

/// Ends an allocation: returns the object, or null with `errno` = `ENOMEM`.
pub(crate) fn handed(object: *mut u8) -> *mut c_void {
    FRONT.follow();
    if object.is_null() {
        set_errno(ENOMEM);
    }
    object.cast()
}

pub(crate) fn no_memory() -> *mut c_void {
    set_errno(ENOMEM);
    null_mut()
}

/// An object of zeroes for a caller that must not wait for the set-up. Null for other callers: for
/// them the set-up has failed. Leaves `errno` alone.
#[cold]
pub(crate) fn barred(align: usize, bytes: usize) -> *mut u8 {
    if once::is_barred() {
        early::allocate(bytes, align)
    } else {
        null_mut()
    }
}

/// As [`barred`] without an alignment, and sets `errno`.
#[cold]
pub(crate) fn handed_early(bytes: usize) -> *mut c_void {
    let object = barred(1, bytes);
    if object.is_null() {
        set_errno(ENOMEM);
    }
    object.cast()
}

/// The slow path of [`malloc`].
#[cold]
pub(crate) extern "C" fn malloc_slow(bytes: usize) -> *mut c_void {
    if !start::ready() {
        return handed_early(bytes);
    }
    if ALLOCATOR.is_hardened() {
        return handed(ALLOCATOR.hard_alloc(bytes, 1, Gfp::KERNEL));
    }
    handed(ALLOCATOR.kmalloc(bytes, Gfp::KERNEL))
}

/// The slow path of [`free`] for an object that has passed its checks.
///
/// # Safety
///
/// As for `free`, and the object is of a size class and [marked](uslub_core::cache::mark).
#[cold]
#[cfg(not(target_arch = "riscv64"))]
pub(crate) unsafe extern "C" fn free_slow(object: *mut c_void) {
    ALLOCATOR.kfree_slow(object.cast());
    FRONT.follow();
    helper::after_free();
}

/// [`free`] where the fast path is closed, and of pages that it does not cover.
///
/// # Safety
///
/// As for `free`.
#[cold]
pub(crate) unsafe extern "C" fn free_closed(object: *mut c_void) {
    if object.is_null() || early::owns(object.cast()) {
        return;
    }
    let is_ready = start::ready();
    let is_mapped = !is_ready || ALLOCATOR.zone.arena.page_of(object as usize).is_none();
    // SAFETY: passed on.
    if is_mapped && unsafe { other::free(object) } {
        return;
    }
    if !is_ready {
        foreign(&ALLOCATOR.platform, "free of", object.cast());
    }
    // SAFETY: passed on.
    unsafe { kfree(object) };
    FRONT.follow();
    helper::after_free();
}

/// The allocator's `kfree`. Not inlined, to keep the frame of [`free_closed`] small.
///
/// # Safety
///
/// As for `free`.
#[inline(never)]
pub(crate) unsafe fn kfree(object: *mut c_void) {
    // SAFETY: passed on.
    unsafe {
        if ALLOCATOR.is_hardened() {
            ALLOCATOR.hard_free(object.cast());
        } else {
            ALLOCATOR.kfree(object.cast());
        }
    }
}

/// [`free`] of a pointer that did not pass: a large object, a class of which the fast path knows
/// nothing yet, a double free, or an interior pointer.
///
/// # Safety
///
/// As for `free`.
#[cfg(not(target_arch = "riscv64"))]
#[cold]
pub(crate) unsafe extern "C" fn free_suspect(object: *mut c_void) {
    let arena = &ALLOCATOR.zone.arena;
    let page = arena.page_of(object as usize);
    if let Some(id) = page.and_then(|page| arena.cache_of(page))
        && let Some(cache) = ALLOCATOR.cache(id)
    {
        FRONT.learn(id, ALLOCATOR.shape(cache));
    }
    // SAFETY: passed on.
    unsafe { free_closed(object) };
}
