//! Debugged caches: validation, traces, failures on purpose.
//!
//! A cache is debugged by its flags, or by `slab_debug` in `USLUB_OPTIONS`. Any thread may call.

use core::ffi::{c_char, c_int, c_void};
use core::fmt;

use libc::EINVAL;
use uslub_core::debug::fail::FailSlab;
use uslub_core::kmalloc::SwitchError;
use uslub_core::slab::debug::track::Which;
use uslub_linux::switch::switch_by;
use uslub_linux::sys;

use crate::cache::{live, uslub_cache};
use crate::debug_flags;
use crate::gfp::{gfp, uslub_gfp_t};
use crate::stats::written;
use crate::{ALLOCATOR, handed, invalid, set_errno, start};

/// Checks and repairs all slabs of a debugged cache. Returns the number of slabs that were looked
/// at. Returns -1 with EINVAL for a cache without F, Z, P, U and T. Never ends the process;
/// uslub_debug_errors tells what was found.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_validate(cache: *mut uslub_cache) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_validate") };
    match ALLOCATOR.validate_slabs_of(cache) {
        Ok(slabs) => slabs as c_int,
        Err(error) => {
            invalid(format_args!("cache '{}': {error}", cache.name()));
            -1
        }
    }
}

/// Reports and repairs of debugged caches so far.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_debug_errors() -> u32 {
    ALLOCATOR.debug.errors()
}

/// Switches F, T and U of a debugged cache: those in `flags` on, the others off. U only where the
/// cache began with U. Z and P stay. Returns 0. Returns -1 with EINVAL, after a message, if the
/// cache cannot be switched.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_set_debug(cache: *mut uslub_cache, flags: u32) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_set_debug") };
    match ALLOCATOR.set_debug(cache, debug_flags::flags(flags)) {
        Ok(()) => 0,
        Err(error) => {
            invalid(format_args!("cache '{}': {error}", cache.name()));
            -1
        }
    }
}

fn switch(value: &str) -> Result<(), SwitchError<'_>> {
    (ALLOCATOR.platform).on_request(|| ALLOCATOR.switch_classes(value))
}

/// Debugs the size classes of uslub_kmalloc from now on, or stops that, by a value of slab_debug:
/// letters, then commas and names of classes, such as FZPU,kmalloc-48 or -,kmalloc-*. Letters
/// without names are for all classes. Objects in use stay where they are, and are checked as they
/// were allocated. Returns 0. Returns -1 after a message, with nothing switched: with EINVAL for an
/// unknown letter or name, with ENOMEM if there is no memory, with EOPNOTSUPP if the system refuses
/// membarrier.
///
/// # Safety
///
/// `value` is null or a C string that does not change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kmalloc_set_debug(value: *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe { switch_by(value, start::ready, switch) }
}

/// As uslub_cache_alloc, for a caller that needs only `bytes` bytes of the object. With U and Z in
/// a cache with USLUB_CACHE_KMALLOC, the rest of the object is a red zone. Not zeroed.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_alloc_sized(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_alloc_sized") };
    handed(ALLOCATOR.alloc_for(cache, bytes, gfp(flags)))
}

/// A file descriptor that text is written to.
struct Output {
    fd: c_int,
    good: bool,
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.good &= sys::write_all(self.fd, text.as_bytes());
        Ok(())
    }
}

/// Writes where the objects in use of a cache with U were allocated, or with `freed` where their
/// slots were freed before: a block for each caller, the most objects first. Returns 0. Returns -1
/// with EIO if a write failed.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_traces(
    cache: *mut uslub_cache,
    freed: c_int,
    fd: c_int,
) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_traces") };
    let which = if freed == 0 {
        Which::Alloc
    } else {
        Which::Free
    };
    let mut out = Output { fd, good: true };
    let _ = ALLOCATOR.write_traces(cache, which, &mut out);
    written(out.good)
}

/// Writes what is known of a pointer: cache, object, and with U who allocated and freed it. Returns
/// 1, or 0 for a pointer into no slab.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_dump_object(pointer: *const c_void, fd: c_int) -> c_int {
    let mut out = Output { fd, good: true };
    let known = start::ready() && ALLOCATOR.write_object(pointer.cast_mut().cast::<u8>(), &mut out);
    c_int::from(known)
}

/// The n-th allocation from now on fails, counted over all threads and caches that may fail; 0 for
/// none. Returns 0. Returns -1 with EINVAL if no cache may fail, because the process did not start
/// with a failslab tunable, such as failslab_nth.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_fail_nth(n: u32) -> c_int {
    let tunables = ALLOCATOR.tunables();
    if !start::ready() || !tunables.failslab().is_on() {
        set_errno(EINVAL);
        return -1;
    }
    ALLOCATOR.debug.fail.set(FailSlab {
        nth: n,
        ..FailSlab::OFF
    });
    0
}

/// Allocations that failed on purpose so far.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_fail_count() -> u32 {
    ALLOCATOR.debug.fail.failures()
}
