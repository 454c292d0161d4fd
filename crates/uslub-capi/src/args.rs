//! What a cache is made of, as C says it.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;

use libc::{EINVAL, ENOMEM};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, CreateError, Ctor, Flags};
use uslub_core::tunables::Tuning;

use crate::gfp::{USLUB_GFP_KERNEL, gfp, uslub_gfp_t};
use crate::{ALLOCATOR, fatal, invalid, record, set_errno, text};

/// Objects begin a cache line, small ones a fitting part of it.
pub const USLUB_CACHE_HWCACHE_ALIGN: u32 = 1;
/// The cache may share the slabs of another whose objects are as large (to a word) and as aligned;
/// unless it has a constructor, a limit, a sheaf capacity, free_gfp or another flag.
pub const USLUB_CACHE_MERGE: u32 = 2;
/// A freed object may be used again at once, but its slab stays a slab of this cache for a grace
/// period.
pub const USLUB_CACHE_TYPESAFE_BY_RCU: u32 = 4;
/// The pages of a slab are touched when it is taken, so that no later touch enters the operating
/// system.
pub const USLUB_CACHE_PREFAULT: u32 = 8;
/// A cache that cannot be created ends the process.
pub const USLUB_CACHE_PANIC: u32 = 16;

type Construct = unsafe extern "C" fn(object: *mut c_void);
type ConstructWith = unsafe extern "C" fn(object: *mut c_void, data: *mut c_void) -> c_int;

/// Constructs an object of fresh memory; what it made stays over free and allocation. Called with
/// locks held where an allocation may not wait: it must not call this library, nor throw.
pub type uslub_ctor_fn = Option<unsafe extern "C" fn(object: *mut c_void)>;

/// As uslub_ctor_fn, with data of the caller's; returns 0, or anything else if it failed: then the
/// object must need no end, and the allocation fails.
pub type uslub_ctor_with_fn =
    Option<unsafe extern "C" fn(object: *mut c_void, data: *mut c_void) -> c_int>;

/// What a cache is made of. All-zero but for `size` is a plain cache.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uslub_cache_args {
    /// Bytes of an object, 1 to 65536.
    pub size: usize,
    /// Alignment of an object in bytes, a power of two up to 4096; 0 for 8.
    pub align: usize,
    /// USLUB_CACHE_ flags.
    pub flags: u32,
    /// What a plain free may do; 0 for USLUB_GFP_KERNEL. USLUB_GFP_NOSPIN for frees in signal
    /// handlers.
    pub free_gfp: uslub_gfp_t,
    /// Constructs each object when it first leaves a fresh slab; null for none.
    pub ctor: uslub_ctor_fn,
    /// As `ctor`, which is null then.
    pub ctor_with: uslub_ctor_with_fn,
    /// Second argument of `ctor_with`.
    pub ctor_data: *mut c_void,
    /// Objects a sheaf holds, at most 249; 0 for what fits their size.
    pub sheaf_capacity: usize,
    /// Bytes of slabs that the cache may have, at least one slab; 0 for no limit.
    pub limit: usize,
    /// How the cache is to behave, `name=value` separated by commas, as in USLUB_OPTIONS; null for
    /// as all others.
    pub tuning: *const c_char,
    /// All 0.
    pub reserved: [usize; 3],
}

/// A constructor with data, for as long as its cache lives.
struct WithData {
    construct: ConstructWith,
    data: *mut c_void,
}

/// The core calls it with a `Construct` as data.
unsafe fn plain(data: *const (), object: *mut u8) -> bool {
    // SAFETY: `data` is what `constructor` put there.
    unsafe { transmute::<*const (), Construct>(data)(object.cast()) };
    true
}

/// The core calls it with a `WithData` as data.
unsafe fn with_data(data: *const (), object: *mut u8) -> bool {
    // SAFETY: `data` is what `constructor` put there.
    unsafe {
        let with = &*data.cast::<WithData>();
        (with.construct)(object.cast(), with.data) == 0
    }
}

/// The core's constructor; an error number if there is none to be had.
fn constructor(name: &str, args: &uslub_cache_args) -> Result<Option<Ctor>, c_int> {
    match (args.ctor, args.ctor_with) {
        (None, None) => Ok(None),
        (Some(construct), None) => Ok(Some(Ctor {
            call: plain,
            data: construct as *const (),
        })),
        (None, Some(construct)) => {
            let data = args.ctor_data;
            let with = record(WithData { construct, data }).ok_or(ENOMEM)?;
            Ok(Some(Ctor {
                call: with_data,
                data: with.as_ptr().cast_const().cast(),
            }))
        }
        (Some(_), Some(_)) => {
            invalid(format_args!("cache '{name}': two constructors"));
            Err(EINVAL)
        }
    }
}

/// What the cache's constructor needs to be given back with the cache.
pub(crate) fn constructor_data(ctor: Option<Ctor>) -> *mut u8 {
    match ctor {
        Some(ctor)
            if core::ptr::fn_addr_eq(
                ctor.call,
                with_data as unsafe fn(*const (), *mut u8) -> bool,
            ) =>
        {
            ctor.data.cast_mut().cast()
        }
        _ => core::ptr::null_mut(),
    }
}

/// The tuning of a text such as `look_ahead=4,sheaf_spill=1`; an error after a message.
///
/// # Safety
///
/// The text is null or a C string.
unsafe fn tuning(name: &str, text: *const c_char) -> Result<Option<Tuning>, ()> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let refused = |why: core::fmt::Arguments<'_>| invalid(format_args!("cache '{name}': {why}"));
    let Ok(text) = text.to_str() else {
        refused(format_args!("the tuning is not UTF-8"));
        return Err(());
    };
    let mut tuning = ALLOCATOR.tunables().tuning;
    for setting in text.split(',').filter(|setting| !setting.trim().is_empty()) {
        if let Err(error) = tuning.set(setting) {
            refused(format_args!("{error}"));
            return Err(());
        }
    }
    Ok(Some(tuning))
}

/// The part of a name that a message shows.
fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(64)]
}

/// Arguments for the core; `None`, with `errno` set, when they make no sense.
///
/// # Safety
///
/// `name` is null or a C string; `args` is null or initialised.
pub(crate) unsafe fn read<'a>(
    name: *const c_char,
    args: *const uslub_cache_args,
) -> Option<(CacheArgs<'a>, bool)> {
    // SAFETY: by the caller's promise.
    let (name, args) = unsafe { (text(name, "uslub_cache_create")?, args.as_ref()) };
    let Some(args) = args else {
        invalid(format_args!(
            "cache '{}': the arguments are null",
            shown(name)
        ));
        return None;
    };
    let known = USLUB_CACHE_HWCACHE_ALIGN
        | USLUB_CACHE_MERGE
        | USLUB_CACHE_TYPESAFE_BY_RCU
        | USLUB_CACHE_PREFAULT
        | USLUB_CACHE_PANIC;
    if args.flags & !known != 0 || args.reserved != [0; 3] {
        let what = if args.reserved != [0; 3] {
            "`reserved` is not 0"
        } else {
            "unknown flags"
        };
        invalid(format_args!("cache '{}': {what}", shown(name)));
        return None;
    }
    let is = |flag: u32, core: Flags| {
        if args.flags & flag != 0 {
            core
        } else {
            Flags::empty()
        }
    };
    let mut core = CacheArgs::new(name, args.size);
    core.align = args.align;
    core.flags = is(USLUB_CACHE_HWCACHE_ALIGN, Flags::HWCACHE_ALIGN)
        | is(USLUB_CACHE_TYPESAFE_BY_RCU, Flags::TYPESAFE_BY_RCU)
        | is(USLUB_CACHE_PREFAULT, Flags::PREFAULT);
    if args.flags & USLUB_CACHE_MERGE == 0 {
        core.flags |= Flags::NO_MERGE;
    }
    // SAFETY: by the caller's promise.
    core.tuning = match unsafe { tuning(shown(name), args.tuning) } {
        Ok(tuning) => tuning,
        Err(()) => return None,
    };
    core.limit = (args.limit != 0).then_some(args.limit);
    core.sheaf_capacity = (args.sheaf_capacity != 0).then_some(args.sheaf_capacity);
    core.free_gfp = gfp(if args.free_gfp == 0 {
        USLUB_GFP_KERNEL
    } else {
        args.free_gfp
    }) & Gfp::KERNEL;
    core.ctor = match constructor(shown(name), args) {
        Ok(ctor) => ctor,
        Err(error) => {
            set_errno(error);
            return None;
        }
    };
    Some((core, args.flags & USLUB_CACHE_PANIC != 0))
}

/// Says why a cache was not created, and sets `errno`.
#[cold]
pub(crate) fn refused(name: &str, error: CreateError, panic: bool) {
    if panic {
        fatal(format_args!("cache '{}': {error}", shown(name)));
    }
    invalid(format_args!("cache '{}': {error}", shown(name)));
    if matches!(error, CreateError::TooMany | CreateError::NoMemory) {
        set_errno(ENOMEM);
    }
}
