//! The three ways to a CPU's slots.

/// How per-CPU slots are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Restartable sequences, indexed by the concurrency id.
    RseqMmCid,
    /// Restartable sequences, indexed by the CPU's number.
    RseqCpuId,
    /// A try-lock in each slot.
    TryLock,
}

impl Mode {
    /// The mode in words.
    pub fn name(self) -> &'static str {
        match self {
            Mode::RseqMmCid => "rseq mm_cid",
            Mode::RseqCpuId => "rseq cpu_id",
            Mode::TryLock => "try-lock",
        }
    }
}
