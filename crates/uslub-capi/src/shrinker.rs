//! Shrinkers: callbacks of the program that free objects when memory is short.
//!
//! A shrinker is registered, may run on any thread that allocates, and is unregistered once.

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};

use libc::ENOMEM;
use uslub_core::cache::shrinker::{self, ShrinkerId};

use crate::cache::{Core, live, uslub_cache};
use crate::{ALLOCATOR, invalid, no_memory, record, set_errno, start, unrecord};

/// A registered shrinker.
pub struct uslub_shrinker(());

type Scan = unsafe extern "C" fn(data: *mut c_void, n: usize) -> usize;

/// Frees up to `n` objects; returns how many it freed. It may allocate and free.
pub type uslub_scan_fn = Option<unsafe extern "C" fn(data: *mut c_void, n: usize) -> usize>;

/// A registered shrinker's record.
struct Registered {
    scan: Scan,
    data: *mut c_void,
    /// The cache that it serves; null for all caches.
    cache: *const Core,
    id: Option<ShrinkerId>,
}

/// Called by the core with a `Registered` as data.
unsafe fn scan(data: *const (), n: usize) -> usize {
    // SAFETY: the record lives until the shrinker is unregistered.
    unsafe {
        let registered = data.cast::<Registered>();
        let (scan, data) = ((*registered).scan, (*registered).data);
        scan(data, n)
    }
}

/// Registers a function that can free objects. It runs when an allocation of the cache (of any
/// cache, for null) would fail because there is no memory. Null with ENOMEM if there are 256
/// already. Null with EINVAL, after a message, if the function is missing.
///
/// # Safety
///
/// `scan` may be called with `data`, on any thread, until it is unregistered. It does not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_shrinker_register(
    cache: *mut uslub_cache,
    scan: uslub_scan_fn,
    data: *mut c_void,
) -> *mut uslub_shrinker {
    let Some(function) = scan else {
        invalid(format_args!(
            "uslub_shrinker_register: the function is missing"
        ));
        return null_mut();
    };
    if !start::ready() {
        return no_memory().cast();
    }
    // SAFETY: passed on.
    let cache = (!cache.is_null()).then(|| unsafe { live(cache, "uslub_shrinker_register") });
    let Some(place) = record(Registered {
        scan: function,
        data,
        cache: cache.map_or(core::ptr::null(), core::ptr::from_ref),
        id: None,
    }) else {
        return null_mut();
    };
    let shrinker = shrinker::Shrinker {
        scan: self::scan,
        data: place.as_ptr().cast_const().cast(),
    };
    // SAFETY: the record lives until the shrinker is unregistered; `scan` does not read `id`.
    unsafe {
        match ALLOCATOR.register_shrinker(cache, shrinker) {
            Some(id) => (*place.as_ptr()).id = Some(id),
            None => {
                unrecord(place);
                set_errno(ENOMEM);
                return null_mut();
            }
        }
    }
    place.as_ptr().cast()
}

/// Unregisters a shrinker; null is ignored. Afterwards the shrinker is not running, unless it is
/// itself the caller. Unregister a cache's shrinkers before you destroy the cache.
///
/// # Safety
///
/// `shrinker` is registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_shrinker_unregister(shrinker: *mut uslub_shrinker) {
    let Some(place) = NonNull::new(shrinker.cast::<Registered>()) else {
        return;
    };
    // SAFETY: registered, so the record exists, and it is not called any longer when it is taken
    // back. Records of caches are never freed.
    unsafe {
        let registered = place.as_ptr();
        let forgotten = (*registered).cache.as_ref().is_some_and(Core::is_destroyed);
        if let Some(id) = (*registered).id
            && !forgotten
        {
            ALLOCATOR.unregister_shrinker(id);
        }
        unrecord(place);
    }
}
