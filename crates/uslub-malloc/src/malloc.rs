//! The malloc family. Any thread may call, at any time.
//!
//! A success leaves `errno` alone, a failure sets it, and a free keeps it. Objects of 16 bytes and
//! more are aligned to 16 bytes. Objects whose size is a power of two up to 4096 bytes are aligned
//! to their size. Zero bytes give a pointer of their own.
//!
//! Each call tries a fast path (`front`), then a slow path here. Slow paths set the allocator up on
//! the first call.

use core::ffi::c_void;
use core::ptr::{self, null_mut};

use libc::{EINVAL, ENOMEM, c_int};
use uslub_core::Gfp;
use uslub_core::kmalloc::{CLASS_MAX, SIZE_MAX};
use uslub_core::misuse::foreign;
use uslub_core::percpu::CacheId;
use uslub_core::platform::Platform;
use uslub_core::size_class::class_size;
use uslub_linux::sys;

use crate::fast_path::{free, free_of, malloc};
use crate::gate::FRONT;
use crate::slow_path::{barred, handed, handed_early, no_memory};
use crate::{ALLOCATOR, early, helper, other, set_errno, start};

/// Allocates an array of zeroes.
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        return no_memory();
    };
    if bytes <= CLASS_MAX {
        // SAFETY: the object is ours and has `bytes` bytes.
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
    let gfp = Gfp::KERNEL | Gfp::ZERO;
    if ALLOCATOR.is_hardened() {
        return handed(ALLOCATOR.hard_alloc(bytes, 1, gfp));
    }
    handed(ALLOCATOR.kmalloc(bytes, gfp))
}

/// Changes an object's size; may move it. If that fails, the old object stays. Zero bytes free the
/// object.
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

/// The rest of [`realloc`], for an object that is not null and a size that is not 0. Not inlined,
/// so that [`realloc`] needs no frame for a null object.
///
/// # Safety
///
/// `object` is live.
#[inline(never)]
unsafe fn resize(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe {
        if ALLOCATOR.is_hardened() {
            return resize_hard(object, bytes);
        }
        let Some(class) = ALLOCATOR.class_of_object(object.cast()) else {
            return resize_slow(object, bytes);
        };
        ALLOCATOR.check_in_use(object.cast(), "realloc of");
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

/// [`resize`] in the hardened mode.
///
/// # Safety
///
/// As for [`resize`].
#[cold]
#[inline(never)]
unsafe fn resize_hard(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe {
        if early::owns(object.cast()) {
            return leave_early(object, bytes);
        }
        handed(ALLOCATOR.hard_realloc(object.cast(), bytes, 1))
    }
}

/// Moves an object of a size class to a larger size class.
///
/// # Safety
///
/// `object` is live.
#[inline]
unsafe fn grow(object: *mut c_void, class: usize, bytes: usize) -> *mut c_void {
    // SAFETY: passed on. Both objects have `old` bytes or more, and one of them is new.
    unsafe {
        let new = malloc(bytes);
        if new.is_null() {
            return new;
        }
        // The first word by itself: most objects that grow have two words, and then need no call.
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

/// The slow path of [`resize`].
///
/// # Safety
///
/// As for [`resize`].
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
            foreign(&ALLOCATOR.platform, "realloc of", object.cast());
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

/// The end of [`resize_slow`]: copies an object of `old` bytes. Not inlined: as a tail call it runs
/// without the frame of [`resize_slow`] on the stack.
///
/// # Safety
///
/// As for [`resize_slow`].
#[inline(never)]
unsafe fn move_to_new(object: *mut c_void, old: usize, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    let moved = unsafe { ALLOCATOR.move_object(object.cast(), old, bytes, Gfp::KERNEL) };
    if ptr::eq(moved, object.cast()) {
        ALLOCATOR.kept_larger();
    }
    resized(moved, bytes)
}

/// [`resize`] of an object that a barred caller got.
///
/// # Safety
///
/// The object is from [`early`].
#[cold]
#[inline(never)]
unsafe fn leave_early(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: both objects have the bytes that are copied, and one of them is new.
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

/// An aligned object, or null. Leaves `errno` alone.
fn aligned(align: usize, bytes: usize) -> *mut u8 {
    if bytes > SIZE_MAX {
        return null_mut();
    }
    if !start::ready() {
        return barred(align, bytes);
    }
    let object = if ALLOCATOR.is_hardened() {
        ALLOCATOR.hard_alloc(bytes, align, Gfp::KERNEL)
    } else {
        ALLOCATOR.kmalloc_aligned(bytes, align, Gfp::KERNEL)
    };
    FRONT.follow();
    object
}

/// Allocates with an alignment, a power of two and a multiple of a pointer's size. On failure
/// returns `EINVAL` or `ENOMEM` and leaves `*out` alone. `ENOMEM` is in `errno` too, as with the
/// GNU library.
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

/// As [`memalign`], like the GNU library before version 2.38: programs rely on it.
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { memalign(align, bytes) }
}

/// Allocates with an alignment. An alignment that is not a power of two is rounded up, as in the
/// GNU library.
///
/// # Safety
///
/// No more than C demands.
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

/// Bytes of a system page.
fn page_bytes() -> usize {
    if start::ready() {
        ALLOCATOR.platform.system_page()
    } else {
        sys::page_bytes()
    }
}

/// Allocates memory aligned to a system page.
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(bytes: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { aligned_alloc(page_bytes(), bytes) }
}

/// Allocates whole system pages.
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    let page = page_bytes();
    match bytes.max(1).checked_add(page - 1) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { aligned_alloc(page, bytes & !(page - 1)) },
        None => no_memory(),
    }
}

/// Usable bytes of an object; 0 for null.
///
/// # Safety
///
/// `object` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    if early::owns(object.cast()) {
        // SAFETY: `owns` said that the object is from there.
        unsafe { early::size(object.cast()) }
    } else if start::ready() {
        if ALLOCATOR.zone.arena.page_of(object as usize).is_none()
            && !object.is_null()
            // SAFETY: passed on.
            && let Some(bytes) = unsafe { other::usable_size(object) }
        {
            return bytes;
        }
        if ALLOCATOR.is_hardened() {
            return ALLOCATOR.hard_size(object.cast(), "size of");
        }
        if ALLOCATOR.class_of_object(object.cast()).is_some() {
            ALLOCATOR.check_in_use(object.cast(), "size of");
        }
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

/// Ends the process if an object cannot have been requested with this size and alignment.
fn check_size(call: &str, object: *mut c_void, bytes: usize, align: usize) {
    if early::owns(object.cast()) || !start::ready() {
        return;
    }
    if ALLOCATOR.is_hardened() {
        ALLOCATOR.hard_check_size(call, object.cast(), bytes, align);
    } else {
        ALLOCATOR.check_size(call, object.cast(), bytes, align);
    }
}

/// [`free`] of an object whose size is known (C23). A wrong size ends the process with a message.
///
/// # Safety
///
/// As for `free`; `bytes` is the size that was requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(object: *mut c_void, bytes: usize) {
    check_size("free_sized of", object, bytes, 1);
    // SAFETY: passed on.
    unsafe { free(object) }
}

/// [`free`] of an object whose alignment and size are known (C23). Wrong ones end the process with
/// a message.
///
/// # Safety
///
/// As for `free`; `align` and `bytes` are the values that were requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(object: *mut c_void, align: usize, bytes: usize) {
    let is_power = align.is_power_of_two();
    check_size(
        "free_aligned_sized of",
        object,
        bytes,
        if is_power { align } else { 1 },
    );
    // SAFETY: passed on.
    unsafe { free(object) }
}

/// Checks all of the allocator's structures. Returns 0 if they are consistent, otherwise 1, after a
/// message on standard error. No other thread may use the allocator meanwhile.
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
