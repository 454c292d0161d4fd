//! Allocation contexts: what a call may do, with the kernel's names. Used by all layers.

bitflags::bitflags! {
    /// What an allocation may do to get its memory.
    ///
    /// | flag set | may ask the system for memory | may wait for a lock |
    /// |---|---|---|
    /// | [`KERNEL`](Gfp::KERNEL) | yes | yes |
    /// | [`NOWAIT`](Gfp::NOWAIT) | no | yes, but only while the lock is held briefly |
    /// | [`NOSPIN`](Gfp::NOSPIN) | no | no |
    ///
    /// The refill of a sheaf depends on *may wait for a lock*, never on *may ask the system*.
    pub struct Gfp: u32 {
        /// May ask the system for memory.
        const MAP = 1;
        /// May wait for a lock.
        const SPIN = 2;
        /// The object's bytes must be zero.
        const ZERO = 4;
        /// Only memory of the requested node is acceptable.
        const THISNODE = 8;
        /// Try again until the allocation succeeds; only with [`KERNEL`](Self::KERNEL).
        const NOFAIL = 16;
        /// Everything is allowed.
        const KERNEL = Self::MAP.bits | Self::SPIN.bits;
        /// Enters the kernel only to wake the holder of a lock or to wait for it.
        const NOWAIT = Self::SPIN.bits;
        /// Never maps memory and never waits for a lock.
        const NOSPIN = 0;
    }
}

impl Gfp {
    /// Whether the call may wait for locks.
    #[inline]
    pub const fn may_spin(self) -> bool {
        self.contains(Gfp::SPIN)
    }

    /// Whether the call may ask the system for memory.
    #[inline]
    pub const fn may_map(self) -> bool {
        self.contains(Gfp::MAP)
    }
}
