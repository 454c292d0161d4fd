//! Caches: creation, single objects, destruction.
//!
//! | state of a cache | calls allowed |
//! |---|---|
//! | live | all, from any thread |
//! | destroyed | none; many of them end the process with a message |
//!
//! A C pointer to a cache is the core's record, which is never unmapped.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use libc::EINVAL;
use uslub_core::Gfp;
use uslub_core::cache::KmemCache;
use uslub_core::misuse::Misuse;
use uslub_linux::{Linux, complain};

use crate::args::{self, USLUB_CACHE_PANIC, uslub_cache_args};
use crate::gfp::{USLUB_GFP_ZERO, gfp, uslub_gfp_t};
use crate::{ALLOCATOR, fatal, handed, no_memory, null, set_errno, start};

/// A cache: objects of one size.
pub struct uslub_cache(());

/// The core's cache, to which C holds a pointer.
pub(crate) type Core = KmemCache<Linux>;

/// The cache that C passes; ends the process for null.
///
/// # Safety
///
/// `cache` is null or came from `uslub_cache_create`.
#[inline]
pub(crate) unsafe fn core<'a>(cache: *const uslub_cache, what: &str) -> &'a Core {
    if cache.is_null() {
        null(what, "cache");
    }
    // SAFETY: by the caller's promise; records of caches are never freed.
    unsafe { &*cache.cast() }
}

/// As [`core`](fn@core); ends the process for a destroyed cache too.
///
/// # Safety
///
/// As for [`core`](fn@core).
pub(crate) unsafe fn live<'a>(cache: *const uslub_cache, what: &str) -> &'a Core {
    // SAFETY: passed on.
    let cache = unsafe { core(cache, what) };
    if cache.is_destroyed() {
        ended(cache, what);
    }
    cache
}

#[cold]
#[inline(never)]
fn ended(cache: &Core, call: &str) -> ! {
    Misuse::Ended(cache.name(), call).fatal(&ALLOCATOR.platform)
}

/// Ends an allocation from a cache: returns the object, or sets `errno` and returns null.
#[inline]
fn handed_of(cache: &Core, gfp: Gfp, object: *mut u8) -> *mut c_void {
    if object.is_null() && gfp.contains(Gfp::ZERO) && cache.ctor.is_some() {
        set_errno(EINVAL);
        return null_mut();
    }
    handed(object)
}

/// Creates a cache. Null with EINVAL or ENOMEM, after a message with the reason.
///
/// # Safety
///
/// `name` is a text of 1 to 31 bytes; `args` is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_create(
    name: *const c_char,
    args: *const uslub_cache_args,
) -> *mut uslub_cache {
    if !start::ready() {
        return no_memory().cast();
    }
    // SAFETY: passed on.
    let Some((core, panic)) = (unsafe { args::read(name, args) }) else {
        // SAFETY: by the caller's promise.
        if unsafe { args.as_ref() }.is_some_and(|args| args.flags & USLUB_CACHE_PANIC != 0) {
            fatal(format_args!("a cache that must be created was not"));
        }
        return null_mut();
    };
    match ALLOCATOR.create(&core) {
        Ok(cache) => core::ptr::from_ref(cache).cast_mut().cast(),
        Err(error) => {
            // SAFETY: null, or ours alone: no cache uses it.
            unsafe { ALLOCATOR.kfree(args::constructor_data(core.ctor)) };
            args::refused(core.name, error, panic);
            null_mut()
        }
    }
}

/// Destroys a cache; null is ignored. Each object that is still in use is reported on standard
/// error, and then the cache and its memory stay. Returns the number of such objects. Returns 0,
/// and destroys nothing, while other creators share the cache (USLUB_CACHE_MERGE).
///
/// Waits for all objects given to `uslub_cache_free_rcu`. Ends the process if the cache is already
/// destroyed.
///
/// # Safety
///
/// Nobody uses the cache any longer, except for leaked objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_destroy(cache: *mut uslub_cache) -> usize {
    if cache.is_null() {
        return 0;
    }
    // SAFETY: not null; the rest is passed on.
    unsafe {
        let cache = core(cache, "uslub_cache_destroy");
        let with = args::constructor_data(cache.ctor);
        let leaked = ALLOCATOR.destroy(cache, |object| {
            complain(format_args!(
                "cache '{}': {object:p} is still in use",
                cache.name()
            ));
        });
        if leaked > 0 {
            complain(format_args!(
                "cache '{}': destroyed with {leaked} objects in use; it and its memory are kept",
                cache.name()
            ));
        } else {
            // A cache with a constructor is never shared, so nothing uses the record.
            ALLOCATOR.kfree(with);
        }
        leaked
    }
}

/// Allocates an object. Null with ENOMEM if there is no memory. Null with EINVAL, after a message,
/// for USLUB_GFP_ZERO on a cache with a constructor.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_alloc(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
) -> *mut c_void {
    // SAFETY: passed on.
    let cache = unsafe { core(cache, "uslub_cache_alloc") };
    let gfp = gfp(flags);
    handed_of(cache, gfp, ALLOCATOR.alloc(cache, gfp))
}

/// As `uslub_cache_alloc`, from a memory node if it has memory. With USLUB_GFP_THISNODE from no
/// other node. A negative node means any.
///
/// # Safety
///
/// As for `uslub_cache_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_alloc_node(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
    node: c_int,
) -> *mut c_void {
    // SAFETY: passed on.
    let cache = unsafe { core(cache, "uslub_cache_alloc_node") };
    let gfp = gfp(flags);
    let object = match usize::try_from(node) {
        Ok(nid) => ALLOCATOR.alloc_node(cache, gfp, nid),
        Err(_) => ALLOCATOR.alloc(cache, gfp),
    };
    handed_of(cache, gfp, object)
}

/// As `uslub_cache_alloc` with USLUB_GFP_ZERO.
///
/// # Safety
///
/// As for `uslub_cache_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_zalloc(
    cache: *mut uslub_cache,
    flags: uslub_gfp_t,
) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { uslub_cache_alloc(cache, flags | USLUB_GFP_ZERO) }
}

/// Frees an object; null is ignored. The cache's `free_gfp` says what the free may do.
///
/// An object of another cache is not freed: a warning names both caches, and the object leaks. Any
/// other pointer that is no object ends the process with a message, at once or when it reaches its
/// slab.
///
/// # Safety
///
/// Nobody uses the object any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_free(cache: *mut uslub_cache, object: *mut c_void) {
    // SAFETY: passed on.
    unsafe { ALLOCATOR.free(core(cache, "uslub_cache_free"), object.cast()) };
}

/// As `uslub_cache_free`, but the caller's flags say what the free may do.
///
/// # Safety
///
/// As for `uslub_cache_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_free_flags(
    cache: *mut uslub_cache,
    object: *mut c_void,
    flags: uslub_gfp_t,
) {
    // SAFETY: passed on.
    unsafe {
        ALLOCATOR.free_with(
            core(cache, "uslub_cache_free_flags"),
            object.cast(),
            gfp(flags),
        )
    };
}

/// As `uslub_cache_free`, but it never waits: for signal handlers.
///
/// # Safety
///
/// As for `uslub_cache_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_free_nolock(cache: *mut uslub_cache, object: *mut c_void) {
    // SAFETY: passed on.
    unsafe {
        ALLOCATOR.free_with(
            core(cache, "uslub_cache_free_nolock"),
            object.cast(),
            Gfp::NOSPIN,
        );
    }
}

/// Flushes all sheaves of a cache and frees its empty slabs. Returns 1 if slabs remain, otherwise
/// 0.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_shrink(cache: *mut uslub_cache) -> c_int {
    // SAFETY: passed on.
    c_int::from(ALLOCATOR.shrink(unsafe { live(cache, "uslub_cache_shrink") }))
}

/// Bytes of an object as requested at creation; the largest request if others share the cache.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_size(cache: *const uslub_cache) -> usize {
    // SAFETY: passed on.
    unsafe { live(cache, "uslub_cache_size") }.object_size()
}

/// Name of a cache; the first creator's name if others share it. Valid as long as the cache lives.
///
/// # Safety
///
/// The cache is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_name(cache: *const uslub_cache) -> *const c_char {
    // SAFETY: passed on.
    unsafe { live(cache, "uslub_cache_name") }.name_c().as_ptr()
}
