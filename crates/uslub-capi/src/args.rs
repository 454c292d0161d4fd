//! Arguments of a cache in C, and their translation for the core.
//!
//! The C structure is checked once, in [`read`]: unknown flags, reserved fields that are not 0, a
//! bad tuning and two constructors are refused with a message.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;

use libc::{EINVAL, ENOMEM};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, CreateError, Ctor, Flags};
use uslub_core::debug::DebugFlags;
use uslub_core::tunables::Tuning;

use crate::debug_flags;
use crate::gfp::{USLUB_GFP_KERNEL, gfp, uslub_gfp_t};
use crate::{ALLOCATOR, fatal, invalid, record, set_errno, text};

/// Objects begin at a cache line; small objects at a fraction of it that fits them.
pub const USLUB_CACHE_HWCACHE_ALIGN: u32 = 1;
/// The cache may share the slabs of another cache whose objects have the same size, in whole words,
/// and the same alignment. Not if it has a constructor, a limit, a sheaf capacity, a tuning,
/// free_gfp, or the flag USLUB_CACHE_TYPESAFE_BY_RCU or USLUB_CACHE_PREFAULT.
pub const USLUB_CACHE_MERGE: u32 = 2;
/// A freed object may be reused at once, but its slab stays a slab of this cache for a grace
/// period. uslub_set_call_rcu comes first; otherwise the cache is refused.
pub const USLUB_CACHE_TYPESAFE_BY_RCU: u32 = 4;
/// The pages of a slab are touched when the slab is taken, so that no later touch enters the
/// operating system.
pub const USLUB_CACHE_PREFAULT: u32 = 8;
/// If the cache cannot be created, the process ends.
pub const USLUB_CACHE_PANIC: u32 = 16;

type Construct = unsafe extern "C" fn(object: *mut c_void);
type ConstructWith = unsafe extern "C" fn(object: *mut c_void, data: *mut c_void) -> c_int;

/// Constructs an object in fresh memory. The constructed state survives a free and the next
/// allocation. It may be called with locks held, for an allocation that may not wait. So it must
/// not call this library, and must not throw.
pub type uslub_ctor_fn = Option<unsafe extern "C" fn(object: *mut c_void)>;

/// As uslub_ctor_fn, with the caller's data. Returns 0 for success. Any other result makes the
/// allocation fail, and then the object must need no clean-up.
pub type uslub_ctor_with_fn =
    Option<unsafe extern "C" fn(object: *mut c_void, data: *mut c_void) -> c_int>;

/// Arguments of a cache. If all but `size` is zero, it is a plain cache.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uslub_cache_args {
    /// Bytes of an object, 1 to 65536.
    pub size: usize,
    /// Alignment of an object in bytes, a power of two up to 4096; 0 for 8.
    pub align: usize,
    /// Sum of USLUB_CACHE_ flags.
    pub flags: u32,
    /// What a plain free may do; 0 for USLUB_GFP_KERNEL. USLUB_GFP_NOSPIN is for frees in signal
    /// handlers.
    pub free_gfp: uslub_gfp_t,
    /// Constructs each object when it first leaves a fresh slab; null for no constructor.
    pub ctor: uslub_ctor_fn,
    /// As `ctor`, with data; then `ctor` is null.
    pub ctor_with: uslub_ctor_with_fn,
    /// Second argument of `ctor_with`.
    pub ctor_data: *mut c_void,
    /// Objects that a sheaf holds; more than 500 count as 500; 0 for a number that fits their size.
    pub sheaf_capacity: usize,
    /// Most bytes of slabs that the cache may have, at least one slab; 0 for no limit.
    pub limit: usize,
    /// Behaviour of the cache: `name=value` pairs separated by commas, as in USLUB_OPTIONS. Null
    /// for the library's values.
    pub tuning: *const c_char,
    /// Must be 0.
    pub reserved: [usize; 3],
}

/// A constructor with its data. It lives as long as its cache.
struct WithData {
    construct: ConstructWith,
    data: *mut c_void,
}

/// Called by the core with a `Construct` as data.
unsafe fn plain(data: *const (), object: *mut u8) -> bool {
    // SAFETY: `constructor` stored `data`.
    unsafe { transmute::<*const (), Construct>(data)(object.cast()) };
    true
}

/// Called by the core with a `WithData` as data.
unsafe fn with_data(data: *const (), object: *mut u8) -> bool {
    // SAFETY: `constructor` stored `data`.
    unsafe {
        let with = &*data.cast::<WithData>();
        (with.construct)(object.cast(), with.data) == 0
    }
}

/// The core's constructor, if there is one; an error number if the arguments are wrong or there is
/// no memory.
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

/// The record of the cache's constructor, to be freed with the cache; null if there is none.
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

/// The tuning of a text such as `look_ahead=4,sheaf_spill=1`. An error, after a message, if it is
/// invalid.
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

/// The part of a name that fits a message.
fn shown(name: &str) -> &str {
    let mut ends = (0..=name.len().min(64)).rev();
    let end = ends.find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// The core's arguments, and whether USLUB_CACHE_PANIC is set. `None`, with `errno` set, if they
/// are invalid.
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
        | USLUB_CACHE_PANIC
        | debug_flags::ALL;
    let unready = args.flags & USLUB_CACHE_TYPESAFE_BY_RCU != 0 && !ALLOCATOR.has_grace_period();
    let wrong = if args.reserved != [0; 3] {
        Some("`reserved` is not 0")
    } else if args.flags & !known != 0 {
        Some("unknown flags")
    } else if unready {
        Some("its slabs wait for readers, and uslub_set_call_rcu was not called before")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        invalid(format_args!("cache '{}': {wrong}", shown(name)));
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
    // All frees of C look at the pointer.
    core.debug = debug_flags::flags(args.flags) | DebugFlags::MAY_GUARD;
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

/// Reports why a cache was not created, and sets `errno`.
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
