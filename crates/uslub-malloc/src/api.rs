//! The malloc family.
//!
//! Success leaves `errno` alone, failure sets it; frees keep it. Objects of
//! 16 bytes and more are aligned to 16 bytes, those of a power of two up to 4096 bytes to
//! their size. Zero bytes give a pointer of their own.

use core::ffi::c_void;
use core::ptr::null_mut;

use libc::{EINVAL, ENOMEM, c_int};
use uslub_core::Gfp;
use uslub_core::kmalloc::{CLASS_MAX, SIZE_MAX};
use uslub_core::percpu::CacheId;
use uslub_core::platform::Platform;
use uslub_core::size_class::class_size;
use uslub_linux::sys;

use crate::front::{FRONT, free, free_of, malloc};
use crate::{ALLOCATOR, early, helper, set_errno, start};

/// Hands an object out, or says that there is no memory.
fn handed(object: *mut u8) -> *mut c_void {
    FRONT.follow();
    if object.is_null() {
        set_errno(ENOMEM);
    }
    object.cast()
}

fn no_memory() -> *mut c_void {
    set_errno(ENOMEM);
    null_mut()
}

/// An object of zeroes for a caller that the set-up bars, without a word to `errno`; null for
/// others: the set-up has failed.
#[cold]
fn barred(align: usize, bytes: usize) -> *mut u8 {
    if start::is_barred() {
        early::allocate(bytes, align)
    } else {
        null_mut()
    }
}

/// [`barred`] without an alignment.
#[cold]
fn handed_early(bytes: usize) -> *mut c_void {
    let object = barred(1, bytes);
    if object.is_null() {
        set_errno(ENOMEM);
    }
    object.cast()
}

/// [`malloc`] where the fast path could not.
#[cold]
pub(crate) extern "C" fn malloc_slow(bytes: usize) -> *mut c_void {
    if !start::ready() {
        return handed_early(bytes);
    }
    handed(ALLOCATOR.kmalloc(bytes, Gfp::KERNEL))
}

/// [`free`] where the fast path could not.
///
/// # Safety
///
/// As for `free`.
#[cold]
pub(crate) unsafe extern "C" fn free_slow(object: *mut c_void) {
    if object.is_null() || early::owns(object.cast()) {
        return;
    }
    if !start::ready() {
        ALLOCATOR.platform.fatal(format_args!(
            "free {object:p}: not allocated here (a foreign pointer)"
        ));
    }
    // SAFETY: passed on.
    unsafe { kfree(object) };
    FRONT.follow();
    helper::after_free();
}

/// As the allocator's. Apart from [`free_slow`], whose frame lies on the stack meanwhile.
///
/// # Safety
///
/// As for `free`.
#[inline(never)]
unsafe fn kfree(object: *mut c_void) {
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree(object.cast()) }
}

/// Ends the process: `object` is the object that was freed last on this CPU.
#[cfg(target_arch = "x86_64")]
#[cold]
pub(crate) extern "C" fn free_twice(object: *mut c_void) -> ! {
    let arena = &ALLOCATOR.zone.arena;
    let cache = arena
        .page_of(object as usize)
        .and_then(|page| ALLOCATOR.cache(arena.cache_of(page)?));
    let name = cache.map_or("?", |cache| cache.name());
    ALLOCATOR.platform.fatal(format_args!(
        "cache '{name}': free of {object:p}: double free: the object is free already"
    ))
}

/// Allocates an array of zeroes.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        return no_memory();
    };
    if bytes <= CLASS_MAX {
        // SAFETY: the object is ours and so long.
        unsafe {
            let object = malloc(bytes);
            if !object.is_null() {
                object.write_bytes(0, bytes);
            }
            return object;
        }
    }
    if !start::ready() {
        return handed_early(bytes);
    }
    handed(ALLOCATOR.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO))
}

/// Changes an object's size, moving it if need be; the old object stays when that fails. Zero bytes
/// free it.
///
/// # Safety
///
/// `object` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe {
        if object.is_null() {
            return malloc(bytes);
        }
        if bytes == 0 {
            free(object);
            return null_mut();
        }
        resize(object, bytes)
    }
}

/// Changes the size of what is an object to what is a size. Apart from [`realloc`], which needs no
/// frame for new objects then.
///
/// # Safety
///
/// `object` is live.
#[inline(never)]
unsafe fn resize(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe {
        let Some(class) = ALLOCATOR.class_of_object(object.cast()) else {
            return resize_slow(object, bytes);
        };
        let old = class_size(class);
        if bytes > old && bytes <= CLASS_MAX {
            grow(object, class, bytes)
        } else if bytes <= old && bytes > old / 4 * 3 {
            object
        } else {
            resize_slow(object, bytes)
        }
    }
}

/// Moves an object of a size class to a larger one.
///
/// # Safety
///
/// `object` is live.
#[inline]
unsafe fn grow(object: *mut c_void, class: usize, bytes: usize) -> *mut c_void {
    // SAFETY: passed on; both are so long, and one of them is new.
    unsafe {
        let new = malloc(bytes);
        if new.is_null() {
            return new;
        }
        // The first word apart: most of those that grow are of two, and need no call then.
        let (to, from) = (new.cast::<u64>(), object.cast::<u64>());
        to.write(from.read());
        let old = class_size(class);
        if old == 16 {
            to.add(1).write(from.add(1).read());
        } else if old > 16 {
            to.add(1).copy_from_nonoverlapping(from.add(1), old / 8 - 1);
        }
        free_of(object, CacheId::of_class(class as u8).raw());
        new
    }
}

/// [`resize`] where the fast path could not.
///
/// # Safety
///
/// As there.
#[cold]
unsafe fn resize_slow(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe {
        if bytes > SIZE_MAX {
            return no_memory();
        }
        if early::owns(object.cast()) {
            return leave_early(object, bytes);
        }
        if !start::ready() {
            ALLOCATOR.platform.fatal(format_args!(
                "realloc of {object:p}: not allocated here (a foreign pointer)"
            ));
        }
        match ALLOCATOR.krealloc_in_place(object.cast(), bytes, Gfp::KERNEL) {
            Ok(object) => resized(object, bytes),
            Err(old) => move_to_new(object, old, bytes),
        }
    }
}

/// Ends a `realloc`.
#[inline]
fn resized(object: *mut u8, bytes: usize) -> *mut c_void {
    let object = handed(object);
    if bytes > CLASS_MAX {
        helper::after_free();
    }
    object
}

/// The end of [`resize_slow`], whose frame does not lie on the stack meanwhile: copies an object of
/// `old` bytes.
///
/// # Safety
///
/// As for [`resize_slow`].
#[inline(never)]
unsafe fn move_to_new(object: *mut c_void, old: usize, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    let moved = unsafe { ALLOCATOR.move_object(object.cast(), old, bytes, Gfp::KERNEL) };
    resized(moved, bytes)
}

/// [`resize`] of an object of a caller that the set-up barred.
///
/// # Safety
///
/// The object is from [`early`].
#[cold]
#[inline(never)]
unsafe fn leave_early(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: both are so long, and one of them is new.
    unsafe {
        let new = malloc(bytes);
        if !new.is_null() {
            let old = early::size(object.cast());
            new.cast::<u8>()
                .copy_from_nonoverlapping(object.cast(), old.min(bytes));
        }
        new
    }
}

/// [`realloc`] for an array, with the product checked.
///
/// # Safety
///
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    object: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { realloc(object, bytes) },
        None => no_memory(),
    }
}

/// An aligned object, without a word to `errno`.
fn aligned(align: usize, bytes: usize) -> *mut u8 {
    if bytes > SIZE_MAX {
        return null_mut();
    }
    if !start::ready() {
        return barred(align, bytes);
    }
    let object = ALLOCATOR.kmalloc_aligned(bytes, align, Gfp::KERNEL);
    FRONT.follow();
    object
}

/// Allocates with an alignment, a power of two and multiple of the pointer's size.
/// Returns `EINVAL` or `ENOMEM` and leaves `*out` alone then. `ENOMEM` is in `errno` too, as with
/// the GNU library.
///
/// # Safety
///
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    align: usize,
    bytes: usize,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return EINVAL;
    }
    let object = aligned(align, bytes);
    if object.is_null() {
        set_errno(ENOMEM);
        return ENOMEM;
    }
    // SAFETY: by the caller's promise.
    unsafe { *out = object.cast() };
    0
}

/// As [`memalign`]: so the GNU library does before version 2.38, and programs were written with it.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { memalign(align, bytes) }
}

/// Allocates with an alignment; one that is no power of two is rounded up, as in the GNU library.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    let Some(align) = align.max(1).checked_next_power_of_two() else {
        set_errno(EINVAL);
        return null_mut();
    };
    let object = aligned(align, bytes);
    if object.is_null() {
        set_errno(ENOMEM);
    }
    object.cast()
}

/// Bytes of a page of the system.
fn page_bytes() -> usize {
    if start::ready() {
        ALLOCATOR.platform.system_page()
    } else {
        sys::page_bytes()
    }
}

/// Allocates aligned to a page.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { aligned_alloc(page_bytes(), bytes) }
}

/// Allocates whole pages.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    let page = page_bytes();
    match bytes.max(1).checked_add(page - 1) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { aligned_alloc(page, bytes & !(page - 1)) },
        None => no_memory(),
    }
}

/// Bytes that may be used of an object; 0 for null.
///
/// # Safety
///
/// `object` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    if early::owns(object.cast()) {
        // SAFETY: just seen.
        unsafe { early::size(object.cast()) }
    } else if start::ready() {
        ALLOCATOR.ksize(object.cast())
    } else {
        0
    }
}

/// [`free`], for old programs.
///
/// # Safety
///
/// As for `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(object: *mut c_void) {
    // SAFETY: passed on.
    unsafe { free(object) }
}

/// [`free`] of an object whose size is known (C23).
///
/// # Safety
///
/// As for `free`; `bytes` is what was asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(object: *mut c_void, _bytes: usize) {
    // SAFETY: passed on.
    unsafe { free(object) }
}

/// [`free`] of an object whose alignment and size are known (C23).
///
/// # Safety
///
/// As for `free`; `align` and `bytes` are what was asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(object: *mut c_void, _align: usize, _bytes: usize) {
    // SAFETY: passed on.
    unsafe { free(object) }
}

/// Checks all of the allocator's structures; 0 when they hold. For quiet moments.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_validate() -> c_int {
    if !start::ready() {
        return 0;
    }
    match ALLOCATOR.validate() {
        Ok(()) => 0,
        Err(invalid) => {
            uslub_linux::complain(format_args!("cache {}: {}", invalid.cache, invalid.what));
            1
        }
    }
}
