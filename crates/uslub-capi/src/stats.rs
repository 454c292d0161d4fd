//! Figures of caches and of the whole library. Any thread may read them.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::fmt::Write;

use libc::EINVAL;
use uslub_core::stats::{STAT_ITEMS, StatItem};
use uslub_linux::{Text, complain, sys};

use crate::cache::{live, uslub_cache};
use crate::{ALLOCATOR, invalid, set_errno, start};

/// Figures of one cache. Exact if nobody uses the cache meanwhile.
#[repr(C)]
pub struct uslub_cache_stats {
    /// Bytes of an object as requested.
    pub object_size: usize,
    /// Bytes of a slot.
    pub size: usize,
    /// Alignment of a slot in bytes.
    pub align: usize,
    /// Slots in a slab.
    pub objects_per_slab: usize,
    /// Pages of 4 KiB in a slab.
    pub pages_per_slab: usize,
    /// Objects that a sheaf holds.
    pub sheaf_capacity: usize,
    /// Further names of the cache, beyond the first.
    pub aliases: usize,
    /// Slots in all slabs.
    pub num_objs: usize,
    /// Slots in use, including objects in sheaves.
    pub active_objs: usize,
    /// Objects in sheaves.
    pub cached_objs: usize,
    /// Objects that the program holds.
    pub live_objs: usize,
    /// Number of slabs.
    pub num_slabs: usize,
    /// Slabs with a slot in use.
    pub active_slabs: usize,
    /// Objects allocated so far.
    pub allocs: u64,
    /// Objects freed so far.
    pub frees: u64,
}

/// Figures of the library, in bytes.
#[repr(C)]
pub struct uslub_totals {
    /// Slots and pages that the program holds.
    pub live: usize,
    /// Objects in sheaves.
    pub cached: usize,
    /// Free slots in slabs.
    pub free: usize,
    /// Slabs.
    pub slabs: usize,
    /// Objects above 8 KiB.
    pub large: usize,
    /// Objects above 256 KiB.
    pub huge: usize,
    /// Free pages and mappings that are still resident.
    pub dirty: usize,
    /// The library's own records.
    pub metadata: usize,
    /// Objects allocated so far (not bytes).
    pub allocs: u64,
    /// Objects freed so far (not bytes).
    pub frees: u64,
}

/// Fills `stats` with the figures of a cache. Returns 0. Returns -1 with EINVAL, after a message,
/// if `stats` is null.
///
/// # Safety
///
/// The cache is not destroyed; `stats` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_get_stats(
    cache: *const uslub_cache,
    stats: *mut uslub_cache_stats,
) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_get_stats") };
    if stats.is_null() {
        invalid(format_args!(
            "uslub_cache_get_stats: nowhere to put them (null)"
        ));
        return -1;
    }
    let info = ALLOCATOR.info(cache);
    let figures = uslub_cache_stats {
        object_size: cache.object_size(),
        size: cache.size as usize,
        align: cache.align as usize,
        objects_per_slab: cache.geometry.objects as usize,
        pages_per_slab: cache.geometry.pages(),
        sheaf_capacity: cache.capacity,
        aliases: cache.aliases(),
        num_objs: info.num_objs,
        active_objs: info.active_objs,
        cached_objs: info.cached_objs,
        live_objs: info.live_objs(),
        num_slabs: info.num_slabs,
        active_slabs: info.active_slabs,
        allocs: info.allocs,
        frees: info.frees,
    };
    // SAFETY: by the caller's promise.
    unsafe { stats.write(figures) };
    0
}

/// Reads a counter of a cache. Its name is that in /sys/kernel/slab/CACHE/, such as
/// `alloc_fastpath`. Returns 0. Returns -1 with EINVAL for an unknown name.
///
/// # Safety
///
/// The cache is not destroyed; `item` is a C string, `value` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_stat(
    cache: *const uslub_cache,
    item: *const c_char,
    value: *mut u64,
) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_stat") };
    if item.is_null() || value.is_null() {
        invalid(format_args!("uslub_cache_stat: an argument is null"));
        return -1;
    }
    // SAFETY: by the caller's promise.
    match unsafe { item_of(item) } {
        Some(item) => {
            // SAFETY: by the caller's promise.
            unsafe { value.write(ALLOCATOR.stat(cache, item)) };
            0
        }
        None => {
            set_errno(EINVAL);
            -1
        }
    }
}

/// As uslub_cache_stat, for one CPU; 0 for a CPU that never used a cache.
///
/// # Safety
///
/// As for `uslub_cache_stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_stat_on(
    cache: *const uslub_cache,
    item: *const c_char,
    cpu: usize,
    value: *mut u64,
) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_stat_on") };
    // SAFETY: by the caller's promise.
    match unsafe { item_of(item) }.filter(|_| !value.is_null()) {
        Some(item) => {
            // SAFETY: by the caller's promise.
            unsafe { value.write(ALLOCATOR.stat_on(cache, item, cpu)) };
            0
        }
        None => {
            set_errno(EINVAL);
            -1
        }
    }
}

/// Reads a setting of a cache by its name, such as `sheaf_spill`. Returns 0. Returns -1 with EINVAL
/// for a name that is no setting of a cache.
///
/// # Safety
///
/// The cache is not destroyed; `name` is a C string, `value` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_tuning(
    cache: *const uslub_cache,
    name: *const c_char,
    value: *mut u32,
) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_tuning") };
    // SAFETY: by the caller's promise.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let found = name
        .and_then(|name| name.to_str().ok())
        .and_then(|name| cache.tuning.get(name));
    match found {
        Some(found) if !value.is_null() => {
            // SAFETY: by the caller's promise.
            unsafe { value.write(found) };
            0
        }
        _ => {
            set_errno(EINVAL);
            -1
        }
    }
}

/// The counter with a name, if there is one.
///
/// # Safety
///
/// `name` is null or a C string.
unsafe fn item_of(name: *const c_char) -> Option<StatItem> {
    if name.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let item = STAT_ITEMS
        .iter()
        .find(|(_, known)| known.as_bytes() == name)?;
    Some(item.0)
}

/// Writes all counters of a cache to a file descriptor, one line with name and value for each.
/// Returns 0. Returns -1 with EIO if a write failed.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_print_stats(cache: *const uslub_cache, fd: c_int) -> c_int {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_cache_print_stats") };
    let mut text = Text::<2048>::new();
    for &(item, name) in STAT_ITEMS {
        let _ = writeln!(text, "{name} {}", ALLOCATOR.stat(cache, item));
    }
    written(sys::write_all(fd, text.as_bytes()))
}

/// Returns 0, or -1 with `errno` = `EIO`.
pub(crate) fn written(good: bool) -> c_int {
    if good {
        return 0;
    }
    set_errno(libc::EIO);
    -1
}

/// Fills `totals` with the figures of the library. Returns 0. Returns -1 with EINVAL, after a
/// message, if `totals` is null.
///
/// # Safety
///
/// `totals` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_get_totals(totals: *mut uslub_totals) -> c_int {
    if totals.is_null() || !start::ready() {
        invalid(format_args!("uslub_get_totals: nowhere to put them (null)"));
        return -1;
    }
    let t = ALLOCATOR.totals();
    // SAFETY: by the caller's promise.
    unsafe {
        totals.write(uslub_totals {
            live: t.live,
            cached: t.cached,
            free: t.free,
            slabs: t.slabs,
            large: t.large,
            huge: t.huge,
            dirty: t.dirty,
            metadata: t.metadata,
            allocs: t.allocs,
            frees: t.frees,
        });
    }
    0
}

/// Says how full the slab of an object is: `used` of its `slots` are in use, including objects in
/// sheaves. A program that moves its objects (active defragmentation) learns which ones to move. An
/// object of more than 8 KiB has its pages alone: 1 of 1. Takes no lock for other objects. Returns
/// 0. Returns -1 with EINVAL, after a message, if `used` or `slots` is null; without a message, if
/// no object is there.
///
/// # Safety
///
/// `used` and `slots` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_slab_use(
    object: *const c_void,
    used: *mut c_uint,
    slots: *mut c_uint,
) -> c_int {
    if used.is_null() || slots.is_null() {
        invalid(format_args!("uslub_slab_use: nowhere to put it (null)"));
        return -1;
    }
    let found = start::ready().then(|| ALLOCATOR.slab_use(object.cast()));
    let Some(found) = found.flatten() else {
        set_errno(EINVAL);
        return -1;
    };
    // SAFETY: by the caller's promise.
    unsafe {
        used.write(found.used as c_uint);
        slots.write(found.slots as c_uint);
    }
    0
}

/// Gives as much memory back to the operating system as possible: flushes sheaves, and frees empty
/// slabs and free pages. Returns 1 if it gave memory back, otherwise 0.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_trim() -> c_int {
    c_int::from(start::ready() && ALLOCATOR.trim())
}

/// Checks all of the library's structures, for tests: no other thread may use the library
/// meanwhile. Returns 0 if they are consistent, otherwise 1, after a message.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_check() -> c_int {
    if !start::ready() {
        return 0;
    }
    match ALLOCATOR.validate() {
        Ok(()) => 0,
        Err(invalid) => {
            complain(format_args!("cache {}: {}", invalid.cache, invalid.what));
            1
        }
    }
}
