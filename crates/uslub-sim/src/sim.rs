//! The implementation of the platform for a simulated machine.

use std::fmt::Arguments;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use uslub_core::platform::Platform;

use crate::memory::{self, Memory};
use crate::{Clock, Machine, cpu};

/// Bytes of memory that the machine reports.
const MEMORY_BYTES: usize = 8 << 30;

/// A simulated machine as a platform.
pub struct Sim {
    machine: Machine,
    clock: Clock,
    memory: Memory,
    random: AtomicU64,
}

impl Sim {
    /// A machine with a clock. Its random numbers are the same in every run.
    pub fn new(machine: Machine, clock: Clock) -> Self {
        Self {
            machine,
            clock,
            memory: Memory::default(),
            random: AtomicU64::new(0),
        }
    }

    /// The CPUs and nodes of the machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The machine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// One round of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The system call that sleeps on a word or wakes its sleepers.
fn futex(word: &AtomicU32, operation: i32, value: u32, limit: *const libc::timespec) {
    // SAFETY: the call only reads the word and the time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            limit,
        )
    };
}

// SAFETY: memory comes from the system and is zeroed and private. A slot operation holds the slot's
// lock bit.
unsafe impl Platform for Sim {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.memory.map(bytes, align, false)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { memory::commit(start, bytes) }
    }

    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { memory::purge(start, bytes) }
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.memory.map(bytes, 1, true)
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        self.memory.unmap(start.as_ptr() as usize, bytes);
    }

    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>> {
        self.memory.remap(start.as_ptr() as usize, old, new)
    }

    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        let limit = timeout_ms.map(|ms| libc::timespec {
            tv_sec: (ms / 1000).into(),
            tv_nsec: (ms % 1000 * 1_000_000).into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), |l| l as *const _);
        futex(word, libc::FUTEX_WAIT, value, limit);
    }

    fn wake(word: &AtomicU32) {
        futex(word, libc::FUTEX_WAKE, 1, std::ptr::null());
    }

    fn wake_all(word: &AtomicU32) {
        futex(word, libc::FUTEX_WAKE, i32::MAX as u32, std::ptr::null());
    }

    fn thread() -> usize {
        cpu::thread()
    }

    fn now_ms(&self) -> u64 {
        self.clock.now_ns() / 1_000_000
    }

    fn random(&self) -> u64 {
        // Relaxed: the numbers of the callers only have to differ.
        mix(self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }

    fn memory_bytes(&self) -> usize {
        MEMORY_BYTES
    }

    fn nr_cpu_ids(&self) -> usize {
        self.machine.cpus()
    }

    fn nr_cpus(&self) -> usize {
        self.machine.cpus()
    }

    #[inline]
    fn cpu(&self) -> usize {
        cpu::here() % self.machine.cpus()
    }

    fn nr_nodes(&self) -> usize {
        self.machine.nodes()
    }

    #[inline]
    fn node(&self) -> usize {
        self.machine.node_of(self.cpu())
    }

    #[inline]
    fn node_has_memory(&self, nid: usize) -> bool {
        self.machine.has_memory(nid)
    }

    fn distance(&self, from: usize, to: usize) -> u32 {
        self.machine.distance(from, to)
    }

    fn fence(&self) -> bool {
        // A drain takes the slots' lock bits and needs no fence.
        true
    }

    fn warn(&self, message: Arguments<'_>) {
        eprintln!("uslub-sim: {message}");
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        panic!("{message}")
    }
}
