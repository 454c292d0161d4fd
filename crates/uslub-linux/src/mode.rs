//! The three ways to reach a CPU's slots. `Linux::probe` chooses one for the life of the process.

/// How per-CPU slots are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Restartable sequences, indexed by the concurrency id (`mm_cid`).
    RseqMmCid,
    /// Restartable sequences, indexed by the CPU's number (`cpu_id`).
    RseqCpuId,
    /// A try-lock in each slot.
    TryLock,
}

impl Mode {
    /// The mode's name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::RseqMmCid => "rseq mm_cid",
            Mode::RseqCpuId => "rseq cpu_id",
            Mode::TryLock => "try-lock",
        }
    }
}
