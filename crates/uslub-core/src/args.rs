//! The arguments of a cache (name, size, flags, constructor), and the layout of its slots.
//!
//! `ObjectLayout` turns [`CacheArgs`] into offsets in a slot. Callers: who creates a cache fills
//! the arguments; `slab::cache` computes the layout.

use crate::debug::DebugFlags;
use crate::debug::layout::{DebugLayout, Wanted};
use crate::gfp::Gfp;
use crate::tunables::{TUNABLES, Tuning};

/// Longest name of a cache, in bytes.
pub const NAME_MAX: usize = 31;
/// Largest object of a cache, in bytes.
pub const OBJECT_MAX: usize = 64 << 10;

bitflags::bitflags! {
    /// Properties of a cache; the kernel's names without `SLAB_`.
    pub struct Flags: u32 {
        /// Objects begin at a cache line; small objects at a power-of-two part of it.
        const HWCACHE_ALIGN = 1;
        /// The cache shares its slabs with no other.
        const NO_MERGE = 2;
        /// A freed object may be reused at once, but its slab stays a slab of this cache for a
        /// grace period.
        const TYPESAFE_BY_RCU = 4;
        /// The pages of a new slab are touched at once, so that no later touch enters the kernel.
        const PREFAULT = 8;
    }
}

/// Constructs objects in fresh memory. A constructed object stays constructed across free and
/// allocation.
#[derive(Clone, Copy, Debug)]
pub struct Ctor {
    /// Constructs the object at its second argument. Returns false on failure, with the memory
    /// unchanged.
    pub call: unsafe fn(*const (), *mut u8) -> bool,
    /// First argument of `call`.
    pub data: *const (),
}

// SAFETY: the creator of a cache promises that `call` may be called with `data` on any thread.
unsafe impl Send for Ctor {}
// SAFETY: as above.
unsafe impl Sync for Ctor {}

impl Ctor {
    /// A constructor that cannot fail and needs only the object.
    pub fn plain(construct: unsafe fn(*mut u8)) -> Self {
        unsafe fn call(data: *const (), object: *mut u8) -> bool {
            // SAFETY: `data` is the function given to `plain`; the object is passed on.
            unsafe { core::mem::transmute::<*const (), unsafe fn(*mut u8)>(data)(object) };
            true
        }
        Self {
            call,
            data: construct as *const (),
        }
    }
}

/// The arguments of [`Allocator::create`](crate::Allocator::create).
#[derive(Clone, Copy, Debug)]
pub struct CacheArgs<'a> {
    /// Name, 1 to 31 bytes.
    pub name: &'a str,
    /// Bytes of an object, 1 to 65536.
    pub size: usize,
    /// Alignment of an object in bytes, a power of two up to 4096; 0 for the natural one.
    pub align: usize,
    /// Properties of the cache.
    pub flags: Flags,
    /// Constructs each object when it first leaves a fresh slab. Runs with locks held if an
    /// allocation may not wait, so it must not call the allocator.
    pub ctor: Option<Ctor>,
    /// Bytes of slabs that the cache may have; at least one slab.
    pub limit: Option<usize>,
    /// What a plain free may do. If it may not enter the kernel, other threads later give the pages
    /// that it empties back to the system.
    pub free_gfp: Gfp,
    /// Tunables of the cache; `None` for the allocator's tunables.
    pub tuning: Option<Tuning>,
    /// Largest slab order, instead of the tunable.
    pub max_order: Option<u32>,
    /// Least number of objects in a slab, instead of the tunable.
    pub min_objects: Option<usize>,
    /// Objects in a sheaf, instead of the tunable; up to
    /// [`MAX_CAPACITY`](crate::percpu::sheaf::MAX_CAPACITY).
    pub sheaf_capacity: Option<usize>,
    /// Bytes of empty slabs kept on a node, at most; instead of the kernel's count.
    pub kept_bytes: Option<usize>,
    /// Whether sheaves hold whole slabs, or slabs whole sheaves; this leaves some room in both
    /// unused.
    pub slab_multiple_sheaves: bool,
    /// What is debugged; `slab_debug` may add to it.
    pub debug: DebugFlags,
}

impl<'a> CacheArgs<'a> {
    /// A plain cache with slabs of its own.
    pub const fn new(name: &'a str, size: usize) -> Self {
        Self {
            name,
            size,
            align: 0,
            flags: Flags::NO_MERGE,
            ctor: None,
            limit: None,
            free_gfp: Gfp::KERNEL,
            tuning: None,
            max_order: None,
            min_objects: None,
            sheaf_capacity: None,
            kept_bytes: None,
            slab_multiple_sheaves: false,
            debug: DebugFlags::empty(),
        }
    }

    /// Whether another cache may share the slabs, by the kernel's rule.
    pub(crate) fn is_mergeable(&self) -> bool {
        !self
            .flags
            .intersects(Flags::NO_MERGE | Flags::TYPESAFE_BY_RCU | Flags::PREFAULT)
            && self.ctor.is_none()
            && self.limit.is_none()
            && self.sheaf_capacity.is_none()
            && self.tuning.is_none()
            && self.free_gfp == Gfp::KERNEL
            && self.debug.difference(DebugFlags::MAY_GUARD).is_empty()
    }
}

/// Why a cache was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The name is empty or longer than 31 bytes.
    BadName,
    /// The size is 0 or above 65536 bytes.
    BadSize,
    /// The alignment is no power of two or above 4096 bytes.
    BadAlign,
    /// The limit is below one slab.
    BadLimit,
    /// The tuning's value of this name is out of its bounds.
    BadTuning(&'static str),
    /// There are 2047 caches already.
    TooMany,
    /// There is no memory for the cache's records.
    NoMemory,
}

impl core::fmt::Display for CreateError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match *self {
            CreateError::BadTuning(name) => {
                let bounds = TUNABLES.iter().find(|t| t.name == name);
                let (min, max) = bounds.map_or((0, 0), |t| (t.min, t.max));
                return write!(f, "tunable '{name}' takes {min} to {max}");
            }
            CreateError::BadName => "a cache's name has 1 to 31 bytes",
            CreateError::BadSize => "an object has 1 to 65536 bytes",
            CreateError::BadAlign => "an alignment is a power of two up to 4096 bytes",
            CreateError::BadLimit => "a limit is at least one slab",
            CreateError::TooMany => "there are 2047 caches already",
            CreateError::NoMemory => "no memory for the cache's records",
        })
    }
}

impl core::error::Error for CreateError {}

/// Checks arguments before anything is created.
pub(crate) fn check(args: &CacheArgs<'_>) -> Result<(), CreateError> {
    if let Some(Err(tunable)) = args.tuning.map(|tuning| tuning.check()) {
        return Err(CreateError::BadTuning(tunable.name));
    }
    ObjectLayout::of(args).map(drop)
}

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// The layout of a slot, in bytes.
pub(crate) struct ObjectLayout {
    /// Size of the slot.
    pub size: usize,
    /// Alignment of the slot.
    pub align: usize,
    /// Offset of a free object's link in the slot.
    pub link: usize,
}

impl ObjectLayout {
    pub(crate) fn of(args: &CacheArgs<'_>) -> Result<Self, CreateError> {
        if args.name.is_empty() || args.name.len() > NAME_MAX {
            return Err(CreateError::BadName);
        }
        if args.size == 0 || args.size > OBJECT_MAX {
            return Err(CreateError::BadSize);
        }
        if args.align != 0 && (!args.align.is_power_of_two() || args.align > 4096) {
            return Err(CreateError::BadAlign);
        }
        let word = size_of::<usize>();
        let mut align = args.align.max(word);
        if args.flags.contains(Flags::HWCACHE_ALIGN) {
            let mut line = CACHE_LINE;
            while args.size <= line / 2 {
                line /= 2;
            }
            align = align.max(line);
        }
        let object = args.size.next_multiple_of(word);
        // A constructed object keeps its bytes while free, and so does one that a reader may still
        // read: its link lies behind it. Otherwise the link lies in the middle, away from overflows
        // of both neighbours.
        let keeps = args.ctor.is_some() || args.flags.contains(Flags::TYPESAFE_BY_RCU);
        if args.debug.is_slow() {
            return Ok(Self::debugged(args, align));
        }
        let (link, end) = if keeps {
            (object, object + word)
        } else {
            (object / 2 / word * word, object)
        };
        Ok(Self {
            size: end.next_multiple_of(align),
            align,
            link,
        })
    }

    #[cold]
    #[inline(never)]
    fn debugged(args: &CacheArgs<'_>, align: usize) -> Self {
        let debug = debug_layout(args, align);
        Self {
            size: debug.size as usize,
            align,
            link: debug.link as usize,
        }
    }
}

/// The parts of a debugged slot of `align` bytes alignment.
pub(crate) fn debug_layout(args: &CacheArgs<'_>, align: usize) -> DebugLayout {
    DebugLayout::of(Wanted {
        size: args.size,
        align,
        keeps: args.ctor.is_some() || args.flags.contains(Flags::TYPESAFE_BY_RCU),
        flags: args.debug,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(size: usize, align: usize, ctor: bool) -> Result<ObjectLayout, CreateError> {
        unsafe fn nothing(_: *mut u8) {}
        let mut args = CacheArgs::new("test", size);
        args.align = align;
        args.ctor = ctor.then_some(Ctor::plain(nothing));
        ObjectLayout::of(&args)
    }

    #[test]
    fn the_free_pointer_is_in_the_middle_or_behind_a_constructed_object() {
        let l = layout(64, 0, false).unwrap();
        assert_eq!((l.size, l.link, l.align), (64, 32, 8));
        let l = layout(64, 0, true).unwrap();
        assert_eq!((l.size, l.link), (72, 64));
        let l = layout(60, 64, true).unwrap();
        assert_eq!((l.size, l.link), (128, 64));
        let l = layout(1, 0, false).unwrap();
        assert_eq!((l.size, l.link), (8, 0));
    }

    proptest! {
        #[test]
        fn a_link_always_fits_its_slot(size in 1usize..70_000, shift in 0u32..14, ctor: bool) {
            let align = if shift == 0 { 0 } else { 1usize << shift };
            match layout(size, align, ctor) {
                Ok(l) => {
                    prop_assert!(size <= OBJECT_MAX && align <= 4096);
                    prop_assert!(l.link + 8 <= l.size && l.link % 8 == 0);
                    prop_assert!(l.size >= size && l.size % l.align == 0);
                    prop_assert!(!ctor || l.link >= size);
                }
                Err(CreateError::BadSize) => prop_assert!(size > OBJECT_MAX),
                Err(CreateError::BadAlign) => prop_assert!(align > 4096),
                Err(_) => prop_assert!(false),
            }
        }

        #[test]
        fn slot_numbers_are_exact(
            size in (1usize..8192).prop_map(|n| n * 8),
            offset in 0usize..1 << 18,
        ) {
            let reciprocal = (1u64 << 40).div_ceil(size as u64);
            prop_assert_eq!(((offset as u64 * reciprocal) >> 40) as usize, offset / size);
        }
    }

    #[test]
    fn bad_arguments_are_refused() {
        let mut args = CacheArgs::new("", 8);
        assert_eq!(ObjectLayout::of(&args).err(), Some(CreateError::BadName));
        args.name = "a name that is far too long for us";
        assert_eq!(ObjectLayout::of(&args).err(), Some(CreateError::BadName));
        assert_eq!(layout(0, 0, false).err(), Some(CreateError::BadSize));
        assert_eq!(layout(8, 24, false).err(), Some(CreateError::BadAlign));
    }
}
