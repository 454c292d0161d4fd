//! Memory pools: a reserve for operations that must not fail when memory runs out.
//!
//! The order of an allocation's steps, and the rules for waiters, are in
//! [`mempool`](uslub_core::mempool). A pool is created, used by any number of threads, and
//! destroyed once.

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};

use libc::{EINVAL, ENOMEM};
use uslub_core::Gfp;
use uslub_core::mempool::{self, MempoolError, Source};
use uslub_linux::Linux;

use crate::cache::{Core, live, uslub_cache};
use crate::gfp::{gfp, uslub_gfp_t};
use crate::{
    ALLOCATOR, array, handed, invalid, no_memory, null, record, set_errno, start, unrecord,
};

/// A pool of elements, some of which are held in reserve.
///
/// An allocation asks the source first, without the operating system. It then asks the reserve,
/// then the source with all that the flags allow. With USLUB_GFP_KERNEL it then waits for a free.
/// In the child of a fork a pool may be used only if no other thread was in a call on it.
pub struct uslub_mempool(());

type Alloc = unsafe extern "C" fn(flags: uslub_gfp_t, pool_data: *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(element: *mut c_void, pool_data: *mut c_void);

/// Allocates an element, or returns null. `flags` says what it may do.
pub type uslub_mempool_alloc_fn =
    Option<unsafe extern "C" fn(flags: uslub_gfp_t, pool_data: *mut c_void) -> *mut c_void>;

/// Frees an element of a uslub_mempool_alloc_fn.
pub type uslub_mempool_free_fn =
    Option<unsafe extern "C" fn(element: *mut c_void, pool_data: *mut c_void)>;

/// The source of a pool's elements.
enum Elements {
    Functions(Alloc, Free, *mut c_void),
    Slab(&'static Core),
    Kmalloc(usize),
}

impl Source for Elements {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        match *self {
            // SAFETY: the pool's creator promises that the functions may be called with their data.
            Elements::Functions(alloc, _, data) => unsafe { alloc(gfp.bits(), data).cast() },
            Elements::Slab(cache) => ALLOCATOR.alloc(cache, gfp),
            Elements::Kmalloc(bytes) => ALLOCATOR.kmalloc(bytes, gfp),
        }
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: as in `alloc`, and passed on.
        unsafe {
            match *self {
                Elements::Functions(_, free, data) => free(element.cast(), data),
                Elements::Slab(cache) => ALLOCATOR.free(cache, element),
                Elements::Kmalloc(_) => ALLOCATOR.kfree(element),
            }
        }
    }
}

type Pool = mempool::Mempool<'static, Linux, Elements>;

/// The pool that C passes; ends the process for null.
unsafe fn pool<'a>(pool: *mut uslub_mempool, what: &str) -> &'a Pool {
    // SAFETY: by the caller's promise.
    match unsafe { pool.cast::<Pool>().as_ref() } {
        Some(pool) => pool,
        None => null(what, "pool"),
    }
}

/// Creates a pool; after a failure sets `errno` and returns null.
fn create(min_nr: usize, elements: Elements) -> *mut uslub_mempool {
    match Pool::new(&ALLOCATOR, min_nr, elements) {
        Ok(pool) => record(pool).map_or(null_mut(), |pool| pool.as_ptr().cast()),
        Err(error) => {
            failed(error);
            null_mut()
        }
    }
}

/// Sets `errno`; returns -1.
fn failed(error: MempoolError) -> c_int {
    set_errno(match error {
        MempoolError::NoMemory => ENOMEM,
        MempoolError::TooMany | MempoolError::Zero => EINVAL,
    });
    -1
}

/// Creates a pool whose elements come from the caller's functions. It takes its reserve of `min_nr`
/// elements at once. Null with ENOMEM. Null with EINVAL, after a message, if a function is missing.
///
/// # Safety
///
/// The functions may be called with `pool_data`, on any thread, until the pool is destroyed. They
/// do not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_create(
    min_nr: usize,
    alloc_fn: uslub_mempool_alloc_fn,
    free_fn: uslub_mempool_free_fn,
    pool_data: *mut c_void,
) -> *mut uslub_mempool {
    let (Some(alloc), Some(free)) = (alloc_fn, free_fn) else {
        invalid(format_args!("uslub_mempool_create: a function is missing"));
        return null_mut();
    };
    if !start::ready() {
        return no_memory().cast();
    }
    create(min_nr, Elements::Functions(alloc, free, pool_data))
}

/// As `uslub_mempool_create`, for objects of a cache. Null with EINVAL, after a message, if the
/// cache has a constructor.
///
/// # Safety
///
/// The cache is destroyed after the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_create_slab_pool(
    min_nr: usize,
    cache: *mut uslub_cache,
) -> *mut uslub_mempool {
    // SAFETY: passed on.
    let cache = unsafe { live(cache, "uslub_mempool_create_slab_pool") };
    if cache.ctor.is_some() {
        invalid(format_args!(
            "cache '{}': no pool of objects with a constructor: the reserve's are not as it left them",
            cache.name()
        ));
        return null_mut();
    }
    create(min_nr, Elements::Slab(cache))
}

/// As `uslub_mempool_create`, for objects of `bytes` bytes from kmalloc.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_mempool_create_kmalloc_pool(
    min_nr: usize,
    bytes: usize,
) -> *mut uslub_mempool {
    if !start::ready() {
        return no_memory().cast();
    }
    create(min_nr, Elements::Kmalloc(bytes))
}

/// Destroys a pool: gives its reserve back to the source. Null is ignored. Elements in use stay
/// with their users.
///
/// # Safety
///
/// Nobody uses the pool any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_destroy(pool: *mut uslub_mempool) {
    if let Some(place) = NonNull::new(pool.cast::<Pool>()) {
        // SAFETY: it came from `record`; the rest is passed on.
        unsafe { unrecord(place) }.destroy();
    }
}

/// Allocates an element. With USLUB_GFP_KERNEL it waits for an element and never returns null.
/// Otherwise null with ENOMEM if source and reserve have none. With USLUB_GFP_ZERO always null with
/// EINVAL, after a message.
///
/// # Safety
///
/// The pool is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_alloc(
    pool: *mut uslub_mempool,
    flags: uslub_gfp_t,
) -> *mut c_void {
    // SAFETY: passed on.
    let pool = unsafe { self::pool(pool, "uslub_mempool_alloc") };
    let gfp = gfp(flags);
    let element = pool.alloc(gfp);
    if element.is_null() && gfp.contains(Gfp::ZERO) {
        failed(MempoolError::Zero);
        return null_mut();
    }
    handed(element)
}

/// Allocates an element of the reserve; null with ENOMEM if the reserve is empty. With no flags it
/// never waits.
///
/// # Safety
///
/// The pool is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_alloc_preallocated(
    pool: *mut uslub_mempool,
    flags: uslub_gfp_t,
) -> *mut c_void {
    // SAFETY: passed on.
    let pool = unsafe { self::pool(pool, "uslub_mempool_alloc_preallocated") };
    handed(pool.alloc_preallocated(gfp(flags)))
}

/// Allocates an element for each entry of `elements` that is null. Returns 0. Returns -1 with
/// EINVAL for more entries than the pool reserves, and for USLUB_GFP_ZERO. Returns -1 with ENOMEM
/// if there is no memory (never with USLUB_GFP_KERNEL). Entries that were filled before a failure
/// stay filled.
///
/// # Safety
///
/// The pool is not destroyed; `elements` has `n` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_alloc_bulk(
    pool: *mut uslub_mempool,
    flags: uslub_gfp_t,
    n: usize,
    elements: *mut *mut c_void,
) -> c_int {
    let what = "uslub_mempool_alloc_bulk";
    // SAFETY: passed on.
    let (pool, elements) = unsafe { (self::pool(pool, what), array(elements, n, what)) };
    let Some(elements) = elements else {
        return -1;
    };
    match pool.alloc_bulk(gfp(flags), elements) {
        Ok(()) => 0,
        Err(error) => {
            if error == MempoolError::TooMany {
                invalid(format_args!("{what}: {n}: {error}"));
            }
            failed(error)
        }
    }
}

/// Frees an element; null is ignored. The element goes to the reserve unless the reserve is full,
/// and then to the source.
///
/// # Safety
///
/// The element came from this pool or its source, and nobody uses it any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_free(pool: *mut uslub_mempool, element: *mut c_void) {
    // SAFETY: passed on.
    unsafe { self::pool(pool, "uslub_mempool_free").free(element.cast()) };
}

/// Frees `n` elements; null is skipped. Returns how many went to the reserve; the others went to
/// the source.
///
/// # Safety
///
/// As for `uslub_mempool_free`, and no element is in the array twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_free_bulk(
    pool: *mut uslub_mempool,
    n: usize,
    elements: *mut *mut c_void,
) -> usize {
    let what = "uslub_mempool_free_bulk";
    // SAFETY: passed on.
    unsafe {
        let pool = self::pool(pool, what);
        array(elements, n, what).map_or(0, |elements| pool.free_bulk(elements))
    }
}

/// Changes how many elements a pool reserves; other threads may use the pool meanwhile. Returns 0.
/// Returns -1 with ENOMEM, and then the pool is unchanged. A source must not resize its own pool.
///
/// # Safety
///
/// The pool is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_resize(pool: *mut uslub_mempool, min_nr: usize) -> c_int {
    // SAFETY: passed on.
    match unsafe { self::pool(pool, "uslub_mempool_resize") }.resize(min_nr) {
        Ok(()) => 0,
        Err(error) => failed(error),
    }
}

/// Number of elements that a pool reserves.
///
/// # Safety
///
/// The pool is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_min_nr(pool: *mut uslub_mempool) -> usize {
    // SAFETY: passed on.
    unsafe { self::pool(pool, "uslub_mempool_min_nr") }.min_nr()
}

/// Number of elements in the reserve now.
///
/// # Safety
///
/// The pool is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_mempool_curr_nr(pool: *mut uslub_mempool) -> usize {
    // SAFETY: passed on.
    unsafe { self::pool(pool, "uslub_mempool_curr_nr") }.curr_nr()
}
