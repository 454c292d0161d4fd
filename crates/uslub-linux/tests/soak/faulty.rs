//! Linux, where so many in 1000 requests fail: reservations, commitments, mappings, resized
//! mappings, purges, fences, and the allocator's own pages, sheaves and records. All else is the
//! real system's.

use std::fmt::Arguments;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use uslub_core::percpu::{Counter, Slot, Table};
use uslub_core::platform::{FaultSite, Platform};
use uslub_linux::Linux;

/// The platform.
pub struct Faulty {
    /// What it is made of.
    pub linux: Linux,
    per_mille: AtomicU64,
    asked: AtomicU64,
    failed: AtomicU64,
}

impl Faulty {
    /// A platform where nothing fails yet.
    pub const fn new() -> Self {
        Self {
            linux: Linux::new(),
            per_mille: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// From now on so many in 1000 requests fail.
    pub fn set(&self, per_mille: u64) {
        // Relaxed, in this file: figures, and a rate that may take effect late.
        self.per_mille.store(per_mille, Relaxed);
    }

    /// Requests, and how many of them failed.
    pub fn figures(&self) -> (u64, u64) {
        // Relaxed: as above.
        (self.asked.load(Relaxed), self.failed.load(Relaxed))
    }

    fn fails(&self) -> bool {
        // Relaxed: as above.
        self.asked.fetch_add(1, Relaxed);
        let fails = self.linux.random() % 1000 < self.per_mille.load(Relaxed);
        if fails {
            // Relaxed: as above.
            self.failed.fetch_add(1, Relaxed);
        }
        fails
    }
}

// SAFETY: what does not fail is Linux's, and a failure has no effect.
unsafe impl Platform for Faulty {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        (!self.fails()).then(|| self.linux.reserve(bytes, align))?
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: passed on, here and below.
        !self.fails() && unsafe { self.linux.commit(start, bytes) }
    }

    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: see above.
        !self.fails() && unsafe { self.linux.purge(start, bytes) }
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        (!self.fails()).then(|| self.linux.map(bytes))?
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: see above.
        unsafe { self.linux.unmap(start, bytes) }
    }

    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>> {
        if self.fails() {
            return None;
        }
        // SAFETY: see above.
        unsafe { self.linux.remap(start, old, new) }
    }

    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        Linux::wait(word, value, timeout_ms);
    }

    fn wake(word: &AtomicU32) {
        Linux::wake(word);
    }

    fn wake_all(word: &AtomicU32) {
        Linux::wake_all(word);
    }

    fn thread() -> usize {
        Linux::thread()
    }

    fn now_ms(&self) -> u64 {
        self.linux.now_ms()
    }

    fn random(&self) -> u64 {
        self.linux.random()
    }

    fn memory_bytes(&self) -> usize {
        self.linux.memory_bytes()
    }

    fn nr_cpu_ids(&self) -> usize {
        self.linux.nr_cpu_ids()
    }

    fn nr_cpus(&self) -> usize {
        self.linux.nr_cpus()
    }

    fn cpu(&self) -> usize {
        self.linux.cpu()
    }

    fn percpu_usable(&self) -> bool {
        self.linux.percpu_usable()
    }

    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8 {
        // SAFETY: see above.
        unsafe { self.linux.pop(table, slot) }
    }

    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        // SAFETY: see above.
        unsafe { self.linux.push(table, slot, object) }
    }

    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        // SAFETY: see above.
        unsafe { self.linux.pop_many(table, slot, out) }
    }

    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool {
        // SAFETY: see above.
        unsafe { self.linux.push_many(table, slot, objects) }
    }

    unsafe fn push_many_checked(
        &self,
        table: &Table,
        slot: Slot,
        objects: &[*mut u8],
        bounds: (usize, usize),
    ) -> bool {
        // SAFETY: see above.
        unsafe { (self.linux).push_many_checked(table, slot, objects, bounds) }
    }

    unsafe fn compare_exchange(&self, table: &Table, slot: Slot, old: usize, new: usize) -> bool {
        // SAFETY: see above.
        unsafe { self.linux.compare_exchange(table, slot, old, new) }
    }

    fn write_at(&self, base: *mut u8, offsets: &[u32], out: &mut [*mut u8]) {
        self.linux.write_at(base, offsets, out);
    }

    fn slots_are_ready(&self) {
        self.linux.slots_are_ready();
    }

    fn count(&self, table: &Table, counter: Counter, n: usize) {
        self.linux.count(table, counter, n);
    }

    fn fence(&self) -> bool {
        !self.fails() && self.linux.fence()
    }

    fn should_fail(&self, _: FaultSite) -> bool {
        self.fails()
    }

    fn slots_are_locked(&self) -> bool {
        self.linux.slots_are_locked()
    }

    fn warn(&self, message: Arguments<'_>) {
        self.linux.warn(message);
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        self.linux.fatal(message)
    }
}
