//! The platform itself: memory that is watched, slots, and what a test sets and looks at.

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
            faults: Mutex::default(),
            warnings: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // A panic under the lock comes from one of our checks; what follows may still look.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
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

// SAFETY: memory comes from the system with the promised content (poison is only for tests that
// live with it); slot operations hold the slot's lock bit or the CPU's mutex.
unsafe impl Platform for Virtual {
    fn system_page(&self) -> usize {
        self.setup.page
    }

    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let mut memory = self.memory();
        memory.calls.reserve += 1;
        if !self.answer(&mut memory) {
            return None;
        }
        let aligned = system::reserve(bytes, align)?;
        memory.reserved.insert(aligned, aligned + bytes);
        NonNull::new(aligned as *mut u8)
    }

    fn hole(&self, bytes: usize, align: usize) -> Option<usize> {
        self.setup.hole.then(|| system::hole(bytes, align))?
    }

    fn reserve_at(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        if !self.setup.hole {
            return false;
        }
        memory.calls.reserve += 1;
        if !self.answer(&mut memory) || !system::reserve_at(at, bytes) {
            return false;
        }
        memory.reserved.insert(at, at + bytes);
        true
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        assert!(
            memory.reserved.contains(at, at + bytes),
            "release of {at:#x} + {bytes:#x}, which is not reserved"
        );
        // SeqCst: see above.
        if !self.releases.load(SeqCst) {
            return false;
        }
        assert!(memory.reserved.remove(at, at + bytes));
        memory.committed.remove_all(at, at + bytes);
        memory.pages.remove_all(at, at + bytes);
        system::unmap(at, bytes);
        true
    }

    fn is_limited(&self) -> bool {
        self.setup.limited
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        memory.calls.commit += 1;
        assert!(
            memory.reserved.contains(at, at + bytes),
            "commit of {at:#x} + {bytes:#x}, which is not reserved"
        );
        if !self.answer(&mut memory) {
            return false;
        }
        memory.committed.insert(at, at + bytes);
        system::commit(at, bytes);
        if bytes.is_multiple_of(BLOCK_BYTES) {
            memory.pages.insert(at, at + bytes);
            if self.setup.fresh == Fresh::Poisoned {
                // SAFETY: just committed.
                unsafe { start.write_bytes(POISON, bytes) };
            }
        }
        true
    }

    unsafe fn handoff_objects(&self, objects: &[*mut u8]) {
        for object in objects {
            let word = object.cast::<u64>();
            // SAFETY: the caller's, and aligned; under miri it fails where they are not.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
        let addresses = objects.iter().map(|&object| object as usize);
        self.memory().offered.extend(addresses);
    }

    fn handoff_lines(&self, array: &mut [*mut u8]) {
        for line in array.chunks_mut(8) {
            let word = &raw mut line[0];
            // SAFETY: borrowed.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
        self.memory().offered_arrays.push(array.len());
    }

    unsafe fn set_backing(&self, start: NonNull<u8>, bytes: usize, backing: Backing) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        assert!(memory.committed.contains(at, at + bytes));
        memory.backed.push((at, bytes, backing));
        true
    }

    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        // Those of windows are many, and are not counted.
        let mapped = memory.mapped.contains(at, at + bytes);
        memory.calls.purge += usize::from(!mapped);
        assert!(
            mapped || memory.committed.contains(at, at + bytes),
            "purge of {at:#x} + {bytes:#x}, which is not committed"
        );
        // SeqCst: see above.
        if !self.purges.load(SeqCst) {
            return false;
        }
        memory.purged.push((at, bytes));
        let poisoned = self.setup.fresh == Fresh::Poisoned && memory.pages.contains(at, at + 1);
        // SAFETY: committed, and holds nothing of value.
        unsafe { start.write_bytes(if poisoned { POISON } else { 0 }, bytes) };
        true
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        let mut memory = self.memory();
        memory.calls.map += 1;
        if !self.answer(&mut memory) {
            return None;
        }
        self.assert_page_aligned(0, bytes);
        let at = system::map(bytes, self.setup.page)?;
        memory.mapped.insert(at, at + bytes);
        NonNull::new(at as *mut u8)
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        memory.calls.unmap += 1;
        if !memory.mapped.remove(at, at + bytes) {
            assert!(
                memory.reserved.remove(at, at + bytes),
                "unmap of {at:#x} + {bytes:#x}, which is not mapped"
            );
            assert!(
                !memory.committed.touches(at, at + bytes),
                "unmap of {at:#x} + {bytes:#x}, which is committed"
            );
        }
        system::unmap(at, bytes);
    }

    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>> {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, old);
        self.assert_page_aligned(at, new);
        let mut memory = self.memory();
        memory.calls.remap += 1;
        assert!(
            memory.mapped.contains(at, at + old),
            "remap of {at:#x} + {old:#x}, which is not mapped"
        );
        if !self.answer(&mut memory) {
            return None;
        }
        // It always moves, so that a use of the old address is seen.
        let moved = system::map(new, self.setup.page)?;
        // SAFETY: both are mapped and at least so long.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, moved as *mut u8, old.min(new)) };
        assert!(memory.mapped.remove(at, at + old));
        system::unmap(at, old);
        memory.mapped.insert(moved, moved + new);
        NonNull::new(moved as *mut u8)
    }

    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        assert!(thread::may_wait(), "waited for a lock where nobody may");
        if let Some(ms) = timeout_ms {
            return sleep::wait(word, value, ms);
        }
        // A lock: its holder is soon done. SeqCst: see above.
        while word.load(SeqCst) == value {
            std::thread::yield_now();
        }
    }

    fn wake(word: &AtomicU32) {
        sleep::wake(word, 1);
    }

    fn wake_all(word: &AtomicU32) {
        sleep::wake(word, i32::MAX);
    }

    fn thread() -> usize {
        thread::number()
    }

    fn now_ms(&self) -> u64 {
        // SeqCst: see above.
        self.clock.load(SeqCst)
    }

    fn random(&self) -> u64 {
        // SeqCst: see above.
        thread::splitmix(self.random.fetch_add(1, SeqCst))
    }

    fn memory_bytes(&self) -> usize {
        1 << 30
    }

    fn nr_nodes(&self) -> usize {
        self.setup.nodes
    }

    fn node(&self) -> usize {
        self.cpu() * self.setup.nodes / self.setup.cpus
    }

    fn node_has_memory(&self, nid: usize) -> bool {
        self.setup.memory >> nid & 1 == 1
    }

    unsafe fn bind(&self, start: NonNull<u8>, bytes: usize, nid: usize) {
        assert!(self.node_has_memory(nid), "bound to a node without memory");
        let mut memory = self.memory();
        memory.bound.push((start.as_ptr() as usize, bytes, nid));
    }

    fn nr_cpu_ids(&self) -> usize {
        self.setup.cpus
    }

    fn nr_cpus(&self) -> usize {
        self.setup.cpus
    }

    fn cpu(&self) -> usize {
        thread::cpu() % self.setup.cpus
    }

    fn percpu_usable(&self) -> bool {
        // SeqCst: see above.
        self.percpu_usable.load(SeqCst)
    }

    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8 {
        // SAFETY: passed on.
        self.on_slot(table, null_mut(), |region| unsafe {
            try_lock::pop(region, slot)
        })
    }

    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        // SAFETY: passed on.
        self.on_slot(table, false, |region| unsafe {
            try_lock::push(region, slot, object)
        })
    }

    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        // SAFETY: passed on.
        self.on_slot(table, false, |region| unsafe {
            try_lock::pop_many(region, slot, out)
        })
    }

    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool {
        // SAFETY: passed on.
        self.on_slot(table, false, |region| unsafe {
            try_lock::push_many(region, slot, objects)
        })
    }

    unsafe fn compare_exchange(&self, table: &Table, slot: Slot, old: usize, new: usize) -> bool {
        self.on_slot(table, false, |region| {
            try_lock::compare_exchange(region, slot, old, new)
        })
    }

    fn fence(&self) -> bool {
        for sequence in &self.sequences {
            drop(sequence.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.setup.slots != Slots::WithoutFence
    }

    fn should_fail(&self, site: FaultSite) -> bool {
        self.faults().should_fail(site)
    }

    fn slots_are_locked(&self) -> bool {
        self.setup.slots == Slots::Locked
    }

    fn warn(&self, message: Arguments<'_>) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.push(message.to_string());
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        panic!("{message}")
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
