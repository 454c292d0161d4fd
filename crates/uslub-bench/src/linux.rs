//! The real allocator on this machine, and the CPUs to pin to.

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use uslub_core::Allocator;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::tunables::Tunables;
use uslub_linux::Linux;

use crate::error::Failure;

/// The real allocator.
pub type Slub = Allocator<Linux>;

/// Address space that each reserves, in bytes.
const RESERVE: usize = 16 << 30;
/// Milliseconds after which memory is given back: not while this program runs.
const NEVER_MS: u32 = 3_600_000;

/// An allocator that keeps all memory that it ever had, so that no round pays for another's pages.
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
        // SAFETY: once; nobody else has it yet.
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

/// This thread stays on one CPU until the value is dropped.
#[must_use]
pub struct Pinned(CpuSet);

impl Pinned {
    /// On one CPU.
    pub fn to(cpu: usize) -> Result<Self, Failure> {
        let refused = |error| Failure::System(format!("this thread cannot be pinned: {error}"));
        let before = sched_getaffinity(Pid::from_raw(0)).map_err(refused)?;
        let mut set = CpuSet::new();
        set.set(cpu).map_err(refused)?;
        sched_setaffinity(Pid::from_raw(0), &set).map_err(refused)?;
        Ok(Self(before))
    }

    /// On the last CPU, where least else happens.
    pub fn to_the_last() -> Result<Self, Failure> {
        Self::to(cpus().last().copied().unwrap_or(0))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If that fails the thread stays where it is, which harms nobody.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

/// Two CPUs for two threads; the same one twice where there is no other.
pub fn two_cpus() -> [usize; 2] {
    match cpus()[..] {
        [.., a, b] => [a, b],
        [one] => [one, one],
        [] => [0, 0],
    }
}
