//! The flags of a debugged cache in C, and their translation for the core.

use uslub_core::debug::DebugFlags;

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
