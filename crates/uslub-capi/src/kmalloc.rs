//! Objects of any size: the kmalloc family.
//!
//! Objects of more than 8 bytes are aligned to 16 bytes. Objects whose size is a power of two up to
//! 4096 bytes are aligned to their size. Any thread may call.

use core::ffi::{c_int, c_void};
use core::hint::black_box;
use core::ptr::null_mut;

use uslub_core::Gfp;
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX, SIZE_MAX, class_of, class_size};
use uslub_core::misuse::foreign;
use uslub_core::platform::PAGE_SIZE;
use uslub_linux::sys;

use crate::gfp::{USLUB_GFP_ZERO, gfp, uslub_gfp_t};
use crate::{ALLOCATOR, array, handed, invalid, no_memory, start};

/// Bytes of an object for a request of `bytes` bytes; 0 and sizes that are too large stay
/// unchanged.
#[inline]
fn size_roundup(bytes: usize) -> usize {
    if bytes == 0 || bytes > SIZE_MAX - PAGE_SIZE {
        bytes
    } else if bytes <= CLASS_MAX {
        class_size(class_of(bytes).index())
    } else if bytes <= LARGE_MAX {
        bytes.next_multiple_of(PAGE_SIZE)
    } else {
        // A mapping of its own, in system pages.
        let last = sys::page_bytes() - 1;
        (bytes + last) & !last
    }
}

/// Bytes to request: zeroes reach to the object's real end, and `uslub_krealloc` relies on this.
#[inline]
fn wanted(bytes: usize, gfp: Gfp) -> usize {
    if gfp.contains(Gfp::ZERO) {
        size_roundup(bytes)
    } else {
        bytes
    }
}

/// Allocates; leaves `errno` alone.
#[inline]
pub(crate) fn kmalloc(bytes: usize, gfp: Gfp) -> *mut u8 {
    if bytes > SIZE_MAX || !start::ready() {
        return null_mut();
    }
    ALLOCATOR.kmalloc(wanted(bytes, gfp), gfp)
}

/// Ends the process if nothing was allocated yet, because then the pointer is foreign.
fn must_be_ready(object: *mut c_void, what: &str) {
    if !start::ready() {
        foreign(&ALLOCATOR.platform, what, object.cast());
    }
}

/// Allocates `bytes` bytes (0 counts as 1). Null with ENOMEM if there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kmalloc(bytes: usize, flags: uslub_gfp_t) -> *mut c_void {
    handed(kmalloc(bytes, gfp(flags)))
}

/// As `uslub_kmalloc` with USLUB_GFP_ZERO.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kzalloc(bytes: usize, flags: uslub_gfp_t) -> *mut c_void {
    uslub_kmalloc(bytes, flags | USLUB_GFP_ZERO)
}

/// As `uslub_kmalloc`, from a memory node if it has memory. With USLUB_GFP_THISNODE from no other
/// node. A negative node means any.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kmalloc_node(bytes: usize, flags: uslub_gfp_t, node: c_int) -> *mut c_void {
    let gfp = gfp(flags);
    handed(match usize::try_from(node) {
        Ok(nid) => kmalloc_on(bytes, gfp, nid),
        Err(_) => kmalloc(bytes, gfp),
    })
}

/// As `kmalloc`, from a memory node; apart, so that its frame is on no other path.
#[inline(never)]
fn kmalloc_on(bytes: usize, gfp: Gfp, nid: usize) -> *mut u8 {
    if bytes > SIZE_MAX || !start::ready() {
        return null_mut();
    }
    ALLOCATOR.kmalloc_node(wanted(bytes, gfp), gfp, nid)
}

/// As `uslub_kmalloc`, aligned to `align` bytes. Null with EINVAL, after a message, if `align` is
/// not a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kmalloc_aligned(
    bytes: usize,
    align: usize,
    flags: uslub_gfp_t,
) -> *mut c_void {
    if !align.is_power_of_two() {
        return no_power_of_two(align);
    }
    if bytes > SIZE_MAX || !start::ready() {
        return no_memory();
    }
    let gfp = gfp(flags);
    handed(ALLOCATOR.kmalloc_aligned(wanted(bytes, gfp), align, gfp))
}

/// Refuses an alignment. Not inlined: the text needs stack.
#[cold]
#[inline(never)]
fn no_power_of_two(align: usize) -> *mut c_void {
    invalid(format_args!(
        "uslub_kmalloc_aligned: {align} is no power of two"
    ));
    null_mut()
}

/// As `uslub_kmalloc` of `n` times `bytes` bytes. Null with ENOMEM if the product overflows.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kmalloc_array(n: usize, bytes: usize, flags: uslub_gfp_t) -> *mut c_void {
    match n.checked_mul(bytes) {
        Some(bytes) => uslub_kmalloc(bytes, flags),
        None => no_memory(),
    }
}

/// As `uslub_kmalloc_array` with USLUB_GFP_ZERO.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kcalloc(n: usize, bytes: usize, flags: uslub_gfp_t) -> *mut c_void {
    uslub_kmalloc_array(n, bytes, flags | USLUB_GFP_ZERO)
}

/// As `uslub_kmalloc`, but it never waits: for signal handlers. USLUB_GFP_ZERO is the only flag
/// that has an effect. If the size's class has no free object, the next larger class is tried.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kmalloc_nolock(bytes: usize, flags: uslub_gfp_t) -> *mut c_void {
    let gfp = gfp(flags) & Gfp::ZERO;
    let mut object = kmalloc(bytes, gfp);
    if object.is_null() && bytes < CLASS_MAX {
        object = kmalloc(size_roundup(bytes.max(1)) + 1, gfp);
    }
    handed(object)
}

/// Frees an object of the kmalloc family, of buckets or of any cache; null is ignored.
///
/// Any other pointer ends the process with a message.
///
/// # Safety
///
/// Nobody uses the object any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kfree(object: *mut c_void) {
    if object.is_null() {
        return;
    }
    must_be_ready(object, "free");
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree(object.cast()) };
}

/// As `uslub_kfree`, but it never waits: for signal handlers. An object above 256 KiB leaks with a
/// warning, because only the operating system can take it back.
///
/// # Safety
///
/// As for `uslub_kfree`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kfree_nolock(object: *mut c_void) {
    if object.is_null() {
        return;
    }
    must_be_ready(object, "free");
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree_with(object.cast(), Gfp::NOSPIN) };
}

/// As `uslub_kfree`, after it has zeroed all bytes of the object.
///
/// # Safety
///
/// As for `uslub_kfree`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kfree_sensitive(object: *mut c_void) {
    // SAFETY: passed on; the object is live and has `bytes` bytes.
    unsafe {
        let bytes = uslub_ksize(object);
        if bytes > 0 {
            object.cast::<u8>().write_bytes(0, bytes);
            // The compiler must not conclude that these bytes are never read.
            black_box(object);
        }
        uslub_kfree(object);
    }
}

/// Frees `n` objects, each as by `uslub_kfree`.
///
/// # Safety
///
/// No object is in the array twice, and nobody uses the objects any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kfree_bulk(n: usize, objects: *mut *mut c_void) {
    // SAFETY: passed on.
    unsafe {
        let objects = array(objects, n, "uslub_kfree_bulk");
        for &mut object in objects.into_iter().flatten() {
            uslub_kfree(object.cast());
        }
    }
}

/// Changes an object's size; may move it. Null with ENOMEM if there is no memory, and then the
/// object is unchanged. A null object is allocated. 0 bytes count as 1.
///
/// With USLUB_GFP_ZERO the bytes beyond the old size are zero, if the object was always allocated
/// and resized with this flag.
///
/// # Safety
///
/// `object` is null or live. After a success only the returned pointer is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_krealloc(
    object: *mut c_void,
    bytes: usize,
    flags: uslub_gfp_t,
) -> *mut c_void {
    if object.is_null() {
        return uslub_kmalloc(bytes, flags);
    }
    // SAFETY: passed on.
    unsafe { resize(object, bytes, flags) }
}

/// [`uslub_krealloc`] of an object that is not null.
///
/// # Safety
///
/// As for [`uslub_krealloc`], and the object is not null.
#[inline(never)]
unsafe fn resize(object: *mut c_void, bytes: usize, flags: uslub_gfp_t) -> *mut c_void {
    must_be_ready(object, "realloc of");
    if bytes > SIZE_MAX {
        return no_memory();
    }
    // SAFETY: passed on.
    match unsafe { ALLOCATOR.krealloc_in_place(object.cast(), bytes, gfp(flags)) } {
        Ok(object) => handed(object),
        // SAFETY: passed on.
        Err(old) => unsafe { move_to_new(object, old, bytes, flags) },
    }
}

/// The end of [`uslub_krealloc`]: copies an object of `old` bytes. Not inlined: as a tail call it
/// runs without the frame of [`resize`] on the stack.
///
/// # Safety
///
/// As for [`uslub_krealloc`].
#[inline(never)]
unsafe fn move_to_new(
    object: *mut c_void,
    old: usize,
    bytes: usize,
    flags: uslub_gfp_t,
) -> *mut c_void {
    // SAFETY: passed on.
    handed(unsafe { ALLOCATOR.move_object(object.cast(), old, bytes, gfp(flags)) })
}

/// As `uslub_krealloc` to `n` times `bytes` bytes. Null with ENOMEM if the product overflows.
///
/// # Safety
///
/// As for `uslub_krealloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_krealloc_array(
    object: *mut c_void,
    n: usize,
    bytes: usize,
    flags: uslub_gfp_t,
) -> *mut c_void {
    match n.checked_mul(bytes) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { uslub_krealloc(object, bytes, flags) },
        None => no_memory(),
    }
}

/// Usable bytes of an object of the kmalloc family; the size of an object of a cache. 0 for null.
///
/// # Safety
///
/// `object` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_ksize(object: *const c_void) -> usize {
    if object.is_null() {
        return 0;
    }
    must_be_ready(object.cast_mut(), "size of");
    ALLOCATOR.ksize(object.cast_mut().cast())
}

/// Bytes that `uslub_kmalloc` gives for a request of `bytes` bytes. 0 and sizes that are too large
/// stay unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_kmalloc_size_roundup(bytes: usize) -> usize {
    size_roundup(bytes)
}
