//! Debugging of caches: the letters, the grammar of `slab_debug`, and the layout of a slot.
//!
//! A debugged cache has no sheaves: each call takes the list lock and checks the object. So all
//! other caches, and the fast paths, know nothing of debugging.
//!
//! | module | contents |
//! |---|---|
//! | [`options`] | the text `slab_debug=…`, and the flags that it gives a cache |
//! | [`layout`] | red zones, tracks and padding of a slot |
//! | [`fail`] | failures on purpose: `failslab` |
//!
//! The checks themselves are in `slab::debug`. Callers: `args`, and the layers above.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

pub mod fail;
pub mod layout;
pub mod options;

bitflags::bitflags! {
    /// What is debugged in a cache; the kernel's letters.
    pub struct DebugFlags: u32 {
        /// F: consistency checks of slabs, freelists and pointers.
        const CONSISTENCY_CHECKS = 1;
        /// Z: red zones on both sides of each object.
        const RED_ZONE = 2;
        /// P: free objects and padding are filled with a pattern.
        const POISON = 4;
        /// U: who allocated and who freed each object last.
        const STORE_USER = 8;
        /// T: a line for each allocation and each free.
        const TRACE = 16;
        /// A: the cache takes part in `failslab` with `failslab_cache=1`.
        const FAILSLAB = 32;
        /// New objects are zeroed.
        const INIT_ON_ALLOC = 64;
        /// Freed objects are zeroed.
        const INIT_ON_FREE = 128;
        /// The cache takes no flags from `slab_debug`.
        const NO_USER_FLAGS = 256;
        /// The cache takes no U from a block of `slab_debug` for all caches.
        const NO_LEAK_TRACE = 512;
        /// A size class: U also keeps the size that was asked for.
        const KMALLOC = 1024;
        /// Allocations ask `failslab`; set by the allocator.
        const MAY_FAIL = 2048;
        /// Single objects may be guarded: all frees of the cache's users look at the pointer.
        const MAY_GUARD = 4096;
        /// A checker of memory is told of each object; set by the allocator.
        const WATCHED = 8192;
    }
}

impl DebugFlags {
    /// FZPU, which an empty `slab_debug` means.
    pub const DEFAULT: Self = Self::METADATA.union(Self::CONSISTENCY_CHECKS);
    /// The flags that cost memory; O drops them.
    pub const METADATA: Self = (Self::RED_ZONE.union(Self::POISON)).union(Self::STORE_USER);
    /// The flags of a cache that has anything to validate.
    const CHECKED: Self = Self::DEFAULT.union(Self::TRACE);
    /// The flags that make a cache debugged, so that it has no sheaves.
    const SLOW: Self = (Self::CHECKED
        .union(Self::INIT_ON_ALLOC)
        .union(Self::INIT_ON_FREE))
    .union(Self::MAY_FAIL)
    .union(Self::WATCHED);

    /// Whether a cache with these flags has no sheaves, and takes the slow path.
    pub const fn is_slow(self) -> bool {
        self.intersects(Self::SLOW)
    }

    /// Whether a cache with these flags has anything to validate.
    pub const fn is_checked(self) -> bool {
        self.intersects(Self::CHECKED)
    }
}

/// Flags of a cache that may change while it is used.
pub struct DebugSwitch(AtomicU32);

impl DebugSwitch {
    /// With these flags set.
    pub const fn new(flags: DebugFlags) -> Self {
        Self(AtomicU32::new(flags.bits()))
    }

    /// The flags now.
    #[inline]
    pub fn get(&self) -> DebugFlags {
        // Relaxed: a switch; each call reads it once.
        DebugFlags::from_bits_truncate(self.0.load(Relaxed))
    }

    /// Changes the flags.
    pub fn set(&self, flags: DebugFlags) {
        // Relaxed: as in `get`.
        self.0.store(flags.bits(), Relaxed);
    }
}

/// Byte of the red zones of a free object.
pub const RED_INACTIVE: u8 = 0xbb;
/// Byte of the red zones of an object in use.
pub const RED_ACTIVE: u8 = 0xcc;
/// Byte of a free object.
pub const POISON_FREE: u8 = 0x6b;
/// Last byte of a free object.
pub const POISON_END: u8 = 0xa5;
/// Byte of memory that is never handed out: padding, and a slab before its first object.
pub const POISON_INUSE: u8 = 0x5a;
