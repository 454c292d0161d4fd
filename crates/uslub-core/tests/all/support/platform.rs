//! The platform itself: what a test sets and looks at. What the allocator calls is in
//! `platform/called.rs`.

mod called;

use std::fmt::Arguments;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uslub_core::memory::arena::BLOCK_BYTES;
use uslub_core::percpu::try_lock;
use uslub_core::percpu::{Region, Slot, Table};
use uslub_core::platform::{Backing, FaultSite, PAGE_SIZE, Platform};

use super::calls::Calls;
use super::faults::Faults;
use super::ranges::Ranges;
use super::{Fresh, POISON, Setup, Slots, sleep, system, thread};

#[derive(Default)]
struct Memory {
    mapped: Ranges,
    reserved: Ranges,
    committed: Ranges,
    /// The committed ranges that hold pages, not tables.
    pages: Ranges,
    purged: Vec<(usize, usize)>,
    /// Start, bytes and node of what was bound.
    bound: Vec<(usize, usize, usize)>,
    /// Start and bytes of what was to have other physical memory, and which.
    backed: Vec<(usize, usize, Backing)>,
    /// Objects that were offered to other CPUs.
    offered: Vec<usize>,
    /// Lengths of the arrays that were.
    offered_arrays: Vec<usize>,
    calls: Calls,
    /// Asking calls that still succeed, then calls that fail.
    fail: (usize, usize),
    failed: usize,
}

/// The platform.
pub struct Virtual {
    setup: Setup,
    memory: Mutex<Memory>,
    sequences: Vec<Mutex<()>>,
    clock: AtomicU64,
    random: AtomicU64,
    percpu_usable: AtomicBool,
    purges: AtomicBool,
    releases: AtomicBool,
    disturbed: AtomicU32,
    /// The group of each CPU of a node.
    groups: Mutex<Vec<usize>>,
    faults: Mutex<Faults>,
    warnings: Mutex<Vec<String>>,
}

impl Virtual {
    /// A platform.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            memory: Mutex::default(),
            sequences: (0..setup.cpus).map(|_| Mutex::new(())).collect(),
            clock: AtomicU64::new(1_000_000),
            random: AtomicU64::new(42),
            percpu_usable: AtomicBool::new(true),
            purges: AtomicBool::new(true),
            releases: AtomicBool::new(true),
            disturbed: AtomicU32::new(0),
            groups: Mutex::default(),
            faults: Mutex::default(),
            warnings: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // A panic under the lock comes from one of our checks; what follows may still look.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn groups(&self) -> MutexGuard<'_, Vec<usize>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What decides of failures inside the allocator.
    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // What tests set. All orderings are SeqCst: nothing here is measured.

    /// From now on the next `succeed` calls that ask for memory succeed, and `fail` after them
    /// fail.
    pub fn fail(&self, succeed: usize, fail: usize) {
        let mut memory = self.memory();
        memory.fail = (succeed, fail);
        memory.failed = 0;
    }

    /// Ends what [`fail`](Self::fail) began; returns how many calls failed.
    pub fn heal(&self) -> usize {
        let mut memory = self.memory();
        memory.fail = (0, 0);
        std::mem::take(&mut memory.failed)
    }

    /// Sets the clock, in milliseconds.
    pub fn set_clock(&self, ms: u64) {
        // SeqCst: see above.
        self.clock.store(ms, SeqCst);
    }

    /// Lets time pass.
    pub fn advance(&self, ms: u64) {
        // SeqCst: see above.
        self.clock.fetch_add(ms, SeqCst);
    }

    /// Says whether per-CPU slots may be used.
    pub fn set_percpu_usable(&self, usable: bool) {
        // SeqCst: see above.
        self.percpu_usable.store(usable, SeqCst);
    }

    /// The node that the memory at an address was bound to.
    pub fn node_of(&self, address: usize) -> Option<usize> {
        let memory = self.memory();
        let mut bound = memory.bound.iter();
        let found = bound.find(|(start, bytes, _)| (*start..start + bytes).contains(&address));
        found.map(|&(.., nid)| nid)
    }

    /// The warnings since the last call.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut warnings)
    }

    /// Says whether purges succeed.
    pub fn set_purges(&self, succeed: bool) {
        // SeqCst: see above.
        self.purges.store(succeed, SeqCst);
    }

    /// Says whether parts of reservations can be given back.
    pub fn set_releases(&self, succeed: bool) {
        // SeqCst: see above.
        self.releases.store(succeed, SeqCst);
    }

    /// Mappings that [`Platform::map`] gave, neighbours as one.
    pub fn nr_mapped(&self) -> usize {
        self.memory().mapped.iter().count()
    }

    /// Makes one slot operation in `one_in` fail as if it had been disturbed; 0 for none.
    pub fn disturb(&self, one_in: u32) {
        // SeqCst: see above.
        self.disturbed.store(one_in, SeqCst);
    }

    // What tests look at.

    /// Calls so far.
    pub fn calls(&self) -> Calls {
        self.memory().calls
    }

    /// Bytes that [`Platform::map`] gave and that are not unmapped.
    pub fn mapped_bytes(&self) -> usize {
        self.memory().mapped.bytes()
    }

    /// Bytes of reservations that are not unmapped.
    pub fn reserved_bytes(&self) -> usize {
        self.memory().reserved.bytes()
    }

    /// Whether a range is reserved.
    pub fn is_reserved(&self, start: usize, bytes: usize) -> bool {
        self.memory().reserved.contains(start, start + bytes)
    }

    /// Objects that were offered to other CPUs since the last call.
    pub fn take_offered(&self) -> Vec<usize> {
        std::mem::take(&mut self.memory().offered)
    }

    /// Lengths of the arrays that were offered since the last call.
    pub fn take_offered_arrays(&self) -> Vec<usize> {
        std::mem::take(&mut self.memory().offered_arrays)
    }

    /// What was to have other physical memory since the last call: start, bytes and which.
    pub fn take_backed(&self) -> Vec<(usize, usize, Backing)> {
        std::mem::take(&mut self.memory().backed)
    }

    /// The ranges that were purged since the last call.
    pub fn take_purged(&self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.memory().purged)
    }

    /// Fails the test unless all committed pages read zero.
    pub fn assert_pages_are_zero(&self) {
        static NOTHING: [u8; 64 * PAGE_SIZE] = [0; 64 * PAGE_SIZE];
        for (start, end) in self.memory().pages.iter() {
            for at in (start..end).step_by(NOTHING.len()) {
                // SAFETY: committed, and in use by no one; blocks are multiples of the step.
                let pages = unsafe { std::slice::from_raw_parts(at as *const u8, NOTHING.len()) };
                assert!(pages == NOTHING, "pages near {at:#x} still hold something");
            }
        }
    }

    /// Lets an asking call succeed or fail.
    fn answer(&self, memory: &mut Memory) -> bool {
        if self.faults().asked_in_vain() {
            return false;
        }
        let (succeed, fail) = &mut memory.fail;
        if *succeed > 0 {
            *succeed -= 1;
        } else if *fail > 0 {
            *fail -= 1;
            memory.failed += 1;
            return false;
        }
        true
    }

    fn is_disturbed(&self) -> bool {
        // SeqCst: see above.
        let one_in = self.disturbed.load(SeqCst);
        one_in != 0 && thread::one_in(u64::from(one_in))
    }

    /// The system would round the end up, to what may be in use, and refuse another start.
    fn assert_page_aligned(&self, start: usize, bytes: usize) {
        let page = self.setup.page;
        assert!(
            start.is_multiple_of(page) && bytes.is_multiple_of(page) && bytes > 0,
            "{start:#x} + {bytes:#x} is no range of pages of {page} bytes"
        );
    }

    /// Runs a slot operation on this thread's CPU.
    fn on_slot<T>(&self, table: &Table, disturbed: T, work: impl FnOnce(&Region) -> T) -> T {
        // SeqCst: see above.
        if self.is_disturbed() || !self.percpu_usable.load(SeqCst) {
            return disturbed;
        }
        thread::yield_sometimes();
        let cpu = self.cpu();
        let sequence = (self.setup.slots != Slots::Locked).then(|| self.sequences[cpu].lock());
        let _sequence = sequence.map(|held| held.unwrap_or_else(PoisonError::into_inner));
        work(table.here(cpu))
    }
}

impl Drop for Virtual {
    fn drop(&mut self) {
        let memory = self.memory();
        for (start, end) in memory.mapped.iter().chain(memory.reserved.iter()) {
            system::unmap(start, end - start);
        }
    }
}
