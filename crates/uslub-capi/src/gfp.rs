//! Contexts of an allocation: the core's flags in C. What a flag allows is checked by each call, so
//! a caller may pass another context each time.

use uslub_core::Gfp;

/// What an allocation may do to get memory: a sum of USLUB_GFP_ flags.
pub type uslub_gfp_t = u32;

/// May map memory from the operating system, and may wait for a lock.
pub const USLUB_GFP_KERNEL: u32 = 3;
/// Enters the operating system only to wake or await the holder of a lock.
pub const USLUB_GFP_NOWAIT: u32 = 2;
/// Never maps memory and never waits for a lock, so signal handlers may use it. The same as no flag
/// at all, but where 0 stands for a default this flag is explicit.
pub const USLUB_GFP_NOSPIN: u32 = 256;
/// The object's bytes are zero.
pub const USLUB_GFP_ZERO: u32 = 4;
/// Only memory of the requested node will do.
pub const USLUB_GFP_THISNODE: u32 = 8;
/// Tries again until it succeeds; only with USLUB_GFP_KERNEL.
pub const USLUB_GFP_NOFAIL: u32 = 16;

const _: () = assert!(
    USLUB_GFP_KERNEL == Gfp::KERNEL.bits()
        && USLUB_GFP_NOWAIT == Gfp::NOWAIT.bits()
        && USLUB_GFP_ZERO == Gfp::ZERO.bits()
        && USLUB_GFP_THISNODE == Gfp::THISNODE.bits()
        && USLUB_GFP_NOFAIL == Gfp::NOFAIL.bits()
        && USLUB_GFP_NOSPIN & Gfp::all().bits() == 0
);

/// The core's flags. Unknown flags have no effect.
#[inline]
pub(crate) const fn gfp(flags: uslub_gfp_t) -> Gfp {
    Gfp::from_bits_truncate(flags)
}
