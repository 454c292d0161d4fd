//! The simulated machine as the core's platform.

use std::cell::{Cell, RefCell};
use std::fmt::Arguments;
use std::ptr::NonNull;

use uslub_core_timed::percpu::{Region, Slot, Table, try_lock};
use uslub_core_timed::platform::Platform;
use uslub_core_timed::sync::atomic::AtomicU32;

use crate::engine::{self, fast};
use crate::lines::Kind;
use crate::range::Range;
use crate::topology::Topology;

/// Bytes of memory that the machine reports.
const MEMORY_BYTES: usize = 64 << 30;
/// Distance of a node from itself and of its neighbours, as firmware tables give them.
const DISTANCES: (u32, u32) = (10, 20);

/// A machine in virtual time.
pub struct Timed {
    machine: &'static Topology,
    memory: &'static Range,
    random: Cell<u64>,
    /// The group of each CPU within its node.
    groups: RefCell<Vec<usize>>,
}

// SAFETY: one thread of the system plays all CPUs of a machine.
unsafe impl Sync for Timed {}

impl Timed {
    /// A machine with a range as its memory. Its random words follow from the seed.
    pub fn new(machine: &'static Topology, memory: &'static Range, seed: u64) -> Self {
        Self {
            machine,
            memory,
            random: Cell::new(seed),
            groups: RefCell::new(Vec::new()),
        }
    }

    fn here<'a>(&self, table: &'a Table) -> &'a Region {
        table.here(engine::here())
    }

    /// A step on a word of this CPU. `objects`: how many of its sheaf's addresses it touches, at
    /// most; above the top if it pushes.
    fn step<R>(
        &self,
        table: &Table,
        slot: Slot,
        objects: usize,
        pushes: bool,
        work: impl FnOnce(&Region) -> R,
        did: impl FnOnce(&R) -> bool,
    ) -> R {
        fast(objects == 0, || {
            let region = self.here(table);
            let word = region.word(slot);
            let at = word.as_ptr() as usize;
            // SAFETY: the word is alive, and one thread plays all CPUs.
            let top = unsafe { *word.as_ptr() } & !1;
            let result = work(region);
            let bytes = 8 * objects;
            let (start, kind) = if pushes {
                (top + 8, Kind::Write)
            } else {
                ((top + 8).saturating_sub(bytes), Kind::Read)
            };
            let touched = if did(&result) { bytes } else { 0 };
            (result, [(at, 8, Kind::Write), (start, touched, kind)])
        })
    }
}

/// One round of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word_of(word: &AtomicU32) -> usize {
    word.as_ptr() as usize
}

// SAFETY: memory is zeroed and private to the machine. A step on a slot runs while no other CPU
// does.
unsafe impl Platform for Timed {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.memory.take(bytes, align)
    }

    unsafe fn commit(&self, _start: NonNull<u8>, _bytes: usize) -> bool {
        engine::system_call();
        true
    }

    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let start = start.as_ptr() as usize;
        self.memory.purge(start, bytes);
        engine::forget(start, bytes);
        true
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        engine::system_call();
        self.memory.take(bytes, 4096)
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        let start = start.as_ptr() as usize;
        engine::forget(start, bytes);
        self.memory.give(start, bytes);
    }

    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>> {
        let moved = self.map(new)?;
        // SAFETY: both mappings have this many bytes, and they do not overlap.
        unsafe { moved.copy_from_nonoverlapping(start, old.min(new)) };
        // SAFETY: the caller gave the old mapping up.
        unsafe { self.unmap(start, old) };
        Some(moved)
    }

    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        // SAFETY: the word is alive, and one thread plays all CPUs.
        if unsafe { *word.as_ptr() } == value {
            let until = timeout_ms.map(|ms| engine::now() + u64::from(ms) * 1_000_000_000);
            engine::sleep(word_of(word), until);
        }
    }

    fn wake(word: &AtomicU32) {
        engine::system_call();
        engine::wake_up(word_of(word), 1, engine::wake_cost());
    }

    fn wake_all(word: &AtomicU32) {
        engine::system_call();
        engine::wake_up(word_of(word), usize::MAX, engine::wake_cost());
    }

    fn thread() -> usize {
        engine::here() + 1
    }

    fn now_ms(&self) -> u64 {
        engine::now() / 1_000_000_000
    }

    fn random(&self) -> u64 {
        let next = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(next);
        mix(next)
    }

    fn memory_bytes(&self) -> usize {
        MEMORY_BYTES
    }

    fn nr_cpu_ids(&self) -> usize {
        self.machine.cpus
    }

    fn nr_cpus(&self) -> usize {
        self.machine.cpus
    }

    #[inline]
    fn cpu(&self) -> usize {
        engine::here()
    }

    fn nr_nodes(&self) -> usize {
        self.machine.nodes
    }

    #[inline]
    fn node(&self) -> usize {
        self.machine.node_of(engine::here())
    }

    fn make_groups(&self, cpus: usize) -> usize {
        let (groups, largest) = self.machine.groups(cpus);
        *self.groups.borrow_mut() = groups;
        largest
    }

    #[inline]
    fn group(&self) -> usize {
        self.groups.borrow()[engine::here()]
    }

    #[inline]
    fn node_has_memory(&self, nid: usize) -> bool {
        self.machine.memory[nid]
    }

    fn distance(&self, from: usize, to: usize) -> u32 {
        match self.machine.steps(from, to) {
            0 => DISTANCES.0,
            steps => DISTANCES.1 + steps as u32 - 1,
        }
    }

    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8 {
        // SAFETY: the caller's promise.
        let pop = |region: &Region| unsafe { try_lock::pop(region, slot) };
        self.step(table, slot, 1, false, pop, |object| !object.is_null())
    }

    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        // SAFETY: the caller's promise.
        let push = |region: &Region| unsafe { try_lock::push(region, slot, object) };
        self.step(table, slot, 1, true, push, |done| *done)
    }

    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        let n = out.len();
        // SAFETY: the caller's promise.
        let pop = |region: &Region| unsafe { try_lock::pop_many(region, slot, out) };
        self.step(table, slot, n, false, pop, |done| *done)
    }

    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool {
        // SAFETY: the caller's promise.
        let push = |region: &Region| unsafe { try_lock::push_many(region, slot, objects) };
        self.step(table, slot, objects.len(), true, push, |done| *done)
    }

    unsafe fn compare_exchange(&self, table: &Table, slot: Slot, old: usize, new: usize) -> bool {
        let swap = |region: &Region| try_lock::compare_exchange(region, slot, old, new);
        self.step(table, slot, 0, false, swap, |_| false)
    }

    fn prefetch_lines(&self, array: &[*mut u8]) {
        let bytes = size_of_val(array);
        (0..bytes)
            .step_by(64)
            .for_each(|at| engine::prefetch(array.as_ptr() as usize + at));
    }

    fn prefetch_line(&self, address: *const u8) {
        engine::prefetch(address as usize);
    }

    fn fence(&self) -> bool {
        engine::system_call();
        true
    }

    fn warn(&self, message: Arguments<'_>) {
        eprintln!("uslub sim: {message}");
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        panic!("{message}")
    }
}
