//! Contexts of an allocation, with the kernel's names.

bitflags::bitflags! {
    /// What an allocation may do to get its memory.
    ///
    /// | flag set | may ask the OS for memory | may wait for a lock |
    /// |---|---|---|
    /// | [`KERNEL`](Gfp::KERNEL) | yes | yes |
    /// | [`NOWAIT`](Gfp::NOWAIT) | no | yes, but only for a lock's short hold |
    /// | [`NOSPIN`](Gfp::NOSPIN) | no | no |
    ///
    /// Refill of a sheaf depends on *may wait for a lock*, never on *may ask the OS*.
    pub struct Gfp: u32 {
        /// May map memory from the operating system.
        const MAP = 1;
        /// May wait for a lock.
        const SPIN = 2;
        /// The object's bytes are zero.
        const ZERO = 4;
        /// Only memory of the node that was asked for will do.
        const THISNODE = 8;
        /// The allocation is tried again until it succeeds; with [`KERNEL`](Self::KERNEL) only.
        const NOFAIL = 16;
        /// Everything allowed.
        const KERNEL = Self::MAP.bits | Self::SPIN.bits;
        /// Never enters the kernel but to wake or await the holder of a lock.
        const NOWAIT = Self::SPIN.bits;
        /// Never maps memory and never waits for a lock.
        const NOSPIN = 0;
    }
}

impl Gfp {
    /// Whether locks may be waited for.
    #[inline]
    pub const fn may_spin(self) -> bool {
        self.contains(Gfp::SPIN)
    }

    /// Whether the operating system may be asked for memory.
    #[inline]
    pub const fn may_map(self) -> bool {
        self.contains(Gfp::MAP)
    }
}
