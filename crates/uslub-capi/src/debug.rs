//! Debugged caches: flags, validation, traces, failures on purpose.
//!
//! A cache is debugged by its flags, or by `slab_debug` in `USLUB_OPTIONS`. Any thread may call.

use core::ffi::{c_int, c_void};
use core::fmt;

use libc::EINVAL;
use uslub_core::debug::DebugFlags;
use uslub_core::debug::fail::FailSlab;
use uslub_core::slab::debug::track::Which;
use uslub_linux::sys;

use crate::cache::{live, uslub_cache};
use crate::gfp::{gfp, uslub_gfp_t};
use crate::stats::written;
use crate::{ALLOCATOR, handed, invalid, set_errno, start};

/// F: slab counters, freelists and pointers are checked at each call. As for all flags down to
/// USLUB_CACHE_TRACE, the cache then has no sheaves, and each call takes a lock.
pub const USLUB_CACHE_CONSISTENCY_CHECKS: u32 = 0x100;
/// Z: red zones on both sides of each object.
pub const USLUB_CACHE_RED_ZONE: u32 = 0x200;
/// P: free objects and padding are filled with a pattern.
pub const USLUB_CACHE_POISON: u32 = 0x400;
/// U: who allocated and who freed each object last.
pub const USLUB_CACHE_STORE_USER: u32 = 0x800;
/// T: a line on standard error for each allocation and each free.
pub const USLUB_CACHE_TRACE: u32 = 0x1000;
/// A: the cache takes part in failslab where the tunable failslab_cache is 1.
pub const USLUB_CACHE_FAILSLAB: u32 = 0x2000;
/// The cache takes no flags from slab_debug.
pub const USLUB_CACHE_NO_USER_FLAGS: u32 = 0x4000;
/// Objects of different sizes: with U, the size that was asked for is kept; see
/// uslub_cache_alloc_sized.
pub const USLUB_CACHE_KMALLOC: u32 = 0x8000;

/// All flags of this file.
pub(crate) const ALL: u32 = 0xff00;

const PAIRS: [(u32, DebugFlags); 8] = [
    (
        USLUB_CACHE_CONSISTENCY_CHECKS,
        DebugFlags::CONSISTENCY_CHECKS,
    ),
    (USLUB_CACHE_RED_ZONE, DebugFlags::RED_ZONE),
    (USLUB_CACHE_POISON, DebugFlags::POISON),
    (USLUB_CACHE_STORE_USER, DebugFlags::STORE_USER),
    (USLUB_CACHE_TRACE, DebugFlags::TRACE),
    (USLUB_CACHE_FAILSLAB, DebugFlags::FAILSLAB),
    (USLUB_CACHE_NO_USER_FLAGS, DebugFlags::NO_USER_FLAGS),
    (USLUB_CACHE_KMALLOC, DebugFlags::KMALLOC),
];

/// The core's flags.
pub(crate) fn flags(bits: u32) -> DebugFlags {
    let chosen = PAIRS.iter().filter(|(bit, _)| bits & bit != 0);
    chosen.fold(DebugFlags::empty(), |all, (_, flag)| all | *flag)
}

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
    match ALLOCATOR.set_debug(cache, self::flags(flags)) {
        Ok(()) => 0,
        Err(error) => {
            invalid(format_args!("cache '{}': {error}", cache.name()));
            -1
        }
    }
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
