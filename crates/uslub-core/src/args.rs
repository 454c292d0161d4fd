//! What a cache is made of: names, sizes, flags, constructors, and how they lay a slot out.

use crate::gfp::Gfp;
use crate::tunables::{TUNABLES, Tuning};

/// Longest name of a cache, in bytes.
pub const NAME_MAX: usize = 31;
/// Largest object of a cache, in bytes.
pub const OBJECT_MAX: usize = 64 << 10;

bitflags::bitflags! {
    /// What a cache is like; the kernel's names without `SLAB_`.
    pub struct Flags: u32 {
        /// Objects begin a cache line, small ones a fitting part of it.
        const HWCACHE_ALIGN = 1;
        /// The cache shares its slabs with no other.
        const NO_MERGE = 2;
        /// A freed object may be used again at once, but its slab stays a slab of this cache for a
        /// grace period.
        const TYPESAFE_BY_RCU = 4;
        /// The pages of a slab are touched when it is taken, so that no later touch enters the
        /// kernel.
        const PREFAULT = 8;
    }
}

/// Makes an object of fresh memory; what it made stays over free and allocation.
#[derive(Clone, Copy, Debug)]
pub struct Ctor {
    /// Constructs the object at its second argument; false if that failed, and the memory is as
    /// before.
    pub call: unsafe fn(*const (), *mut u8) -> bool,
    /// First argument of `call`.
    pub data: *const (),
}

// SAFETY: `call` may be called with `data` on any thread: that is part of the promise of who
// creates a cache.
unsafe impl Send for Ctor {}
// SAFETY: as above.
unsafe impl Sync for Ctor {}

impl Ctor {
    /// A constructor that cannot fail and needs nothing but the object.
    pub fn plain(construct: unsafe fn(*mut u8)) -> Self {
        unsafe fn call(data: *const (), object: *mut u8) -> bool {
            // SAFETY: `data` is the function that `plain` was given; the object is passed on.
            unsafe { core::mem::transmute::<*const (), unsafe fn(*mut u8)>(data)(object) };
            true
        }
        Self {
            call,
            data: construct as *const (),
        }
    }
}

/// What a cache is made of; see [`Allocator::create`](crate::Allocator::create).
#[derive(Clone, Copy, Debug)]
pub struct CacheArgs<'a> {
    /// Name, 1 to 31 bytes.
    pub name: &'a str,
    /// Bytes of an object, 1 to 65536.
    pub size: usize,
    /// Alignment of an object in bytes, a power of two up to 4096; 0 for the natural one.
    pub align: usize,
    /// What the cache is like.
    pub flags: Flags,
    /// Constructs each object when it first leaves a fresh slab. Called with locks held where an
    /// allocation may not wait: it must not call the allocator.
    pub ctor: Option<Ctor>,
    /// Bytes of slabs that the cache may have, at least one slab.
    pub limit: Option<usize>,
    /// What a plain free may do. Where that is not to enter the kernel, pages that it empties go
    /// back to the system later, by others.
    pub free_gfp: Gfp,
    /// How the cache behaves; `None` for what the allocator's tunables say.
    pub tuning: Option<Tuning>,
    /// Largest slab order, instead of the tunable.
    pub max_order: Option<u32>,
    /// Objects wanted in a slab, instead of the tunable.
    pub min_objects: Option<usize>,
    /// Objects a sheaf holds, instead of the tunable; up to
    /// [`MAX_CAPACITY`](crate::percpu::sheaf::MAX_CAPACITY).
    pub sheaf_capacity: Option<usize>,
    /// Bytes of slabs that are kept on a node though they are empty, at most; instead of the
    /// kernel's count.
    pub kept_bytes: Option<usize>,
    /// Whether sheaves hold whole slabs, or slabs whole sheaves, at the price of some places in
    /// both.
    pub in_step: bool,
}

impl<'a> CacheArgs<'a> {
    /// A plain cache of its own slabs.
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
            in_step: false,
        }
    }

    /// Whether another cache may share the slabs: the kernel's rule.
    pub(crate) fn is_mergeable(&self) -> bool {
        !self
            .flags
            .intersects(Flags::NO_MERGE | Flags::TYPESAFE_BY_RCU | Flags::PREFAULT)
            && self.ctor.is_none()
            && self.limit.is_none()
            && self.sheaf_capacity.is_none()
            && self.tuning.is_none()
            && self.free_gfp == Gfp::KERNEL
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

/// Checks arguments before anything is made for them.
pub(crate) fn check(args: &CacheArgs<'_>) -> Result<(), CreateError> {
    if let Some(Err(tunable)) = args.tuning.map(|tuning| tuning.check()) {
        return Err(CreateError::BadTuning(tunable.name));
    }
    Layout::of(args).map(drop)
}

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// How a slot is laid out, in bytes.
pub(crate) struct Layout {
    /// The slot.
    pub size: usize,
    /// Alignment of the slot.
    pub align: usize,
    /// Where in the slot a free object's link lies.
    pub link: usize,
}

impl Layout {
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
        // A constructed object must keep its bytes while free, and so must one that a reader may
        // still look at: the link lies behind it. Otherwise in the middle, away from both
        // neighbours' overflows.
        let keeps = args.ctor.is_some() || args.flags.contains(Flags::TYPESAFE_BY_RCU);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(size: usize, align: usize, ctor: bool) -> Result<Layout, CreateError> {
        unsafe fn nothing(_: *mut u8) {}
        let mut args = CacheArgs::new("test", size);
        args.align = align;
        args.ctor = ctor.then_some(Ctor::plain(nothing));
        Layout::of(&args)
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
        fn slot_numbers_are_exact(size in (1usize..8192).prop_map(|n| n * 8), offset in 0usize..1 << 18) {
            let reciprocal = (1u64 << 40).div_ceil(size as u64);
            prop_assert_eq!(((offset as u64 * reciprocal) >> 40) as usize, offset / size);
        }
    }

    #[test]
    fn bad_arguments_are_refused() {
        let mut args = CacheArgs::new("", 8);
        assert_eq!(Layout::of(&args).err(), Some(CreateError::BadName));
        args.name = "a name that is far too long for us";
        assert_eq!(Layout::of(&args).err(), Some(CreateError::BadName));
        assert_eq!(layout(0, 0, false).err(), Some(CreateError::BadSize));
        assert_eq!(layout(8, 24, false).err(), Some(CreateError::BadAlign));
    }
}
