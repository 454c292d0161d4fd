//! The real allocator on this machine, and pinning of threads to CPUs. All real-time rows use it.

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use uslub_core::Allocator;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::tunables::Tunables;
use uslub_linux::Linux;

use crate::error::Failure;

/// The real allocator.
pub type Slub = Allocator<Linux>;

/// Address space that the allocator reserves, in bytes.
const RESERVE: usize = 16 << 30;
/// Decay time of unused memory in milliseconds: longer than this program runs.
const NEVER_MS: u32 = 3_600_000;

/// An allocator that keeps all memory, so no round pays for the pages of another round.
pub fn steady() -> Result<&'static Slub, Failure> {
    static ALLOCATOR: Slub = Allocator::new(Linux::new());
    static READY: OnceLock<bool> = OnceLock::new();
    let ready = *READY.get_or_init(|| {
        let tunables = Tunables {
            decay_ms: NEVER_MS,
            ..Tunables::DEFAULT
        };
        ALLOCATOR.platform.probe(tunables.rseq);
        ALLOCATOR.keep_indices(NR_CLASSES + 1);
        // SAFETY: runs once, before any other thread can use the allocator.
        unsafe { ALLOCATOR.init(RESERVE, tunables) }
    });
    ready
        .then_some(&ALLOCATOR)
        .ok_or(Failure::NoMemory("the system refuses address space"))
}

/// The CPUs that this process may use, by number.
pub fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else {
        return vec![0];
    };
    let known = (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true));
    known.collect()
}

/// Pins this thread to one CPU until the value is dropped.
#[must_use]
pub struct Pinned(CpuSet);

impl Pinned {
    /// Pins to the CPU `cpu`.
    pub fn to(cpu: usize) -> Result<Self, Failure> {
        let refused = |error| Failure::System(format!("this thread cannot be pinned: {error}"));
        let before = sched_getaffinity(Pid::from_raw(0)).map_err(refused)?;
        let mut set = CpuSet::new();
        set.set(cpu).map_err(refused)?;
        sched_setaffinity(Pid::from_raw(0), &set).map_err(refused)?;
        Ok(Self(before))
    }

    /// Pins to the last CPU, which has the least other load.
    pub fn to_the_last() -> Result<Self, Failure> {
        Self::to(cpus().last().copied().unwrap_or(0))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If the call fails, the thread stays pinned, which is harmless.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

/// Two CPUs for two threads; the same CPU twice if there is only one.
pub fn two_cpus() -> [usize; 2] {
    match cpus()[..] {
        [.., a, b] => [a, b],
        [one] => [one, one],
        [] => [0, 0],
    }
}

/// CPU time of this process, in seconds.
///
/// # Errors
///
/// If the system has no such clock.
pub fn cpu_time() -> Result<f64, Failure> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_err(|error| Failure::System(format!("the clock of CPU time: {error}")))?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}
