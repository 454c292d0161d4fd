//! A machine of a few CPUs, as the allocator's platform. `model` builds an allocator on it.
//!
//! | feature | implementation |
//! |---|---|
//! | the CPU of a thread | the CPU that [`on_cpu`] set |
//! | slot operations, [`Slots::Locked`] | the real code with lock bits |
//! | slot operations, [`Slots::Restartable`] | a mutex for each CPU, held for a whole operation |
//! | fence | waits for the running operation on each CPU |
//! | waiting for a lock, loom | yields to other threads and checks again |
//! | waiting for a lock, shuttle | sleeps until the thread is woken |
//! | time | does not advance |

use std::cell::{Cell, RefCell};
use std::fmt::Arguments;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use uslub_core::percpu::try_lock;
use uslub_core::percpu::{Region, Slot, Table};
use uslub_core::platform::Platform;
use uslub_core::sync::atomic;
use uslub_core::sync::atomic::{AtomicU32, is_active};

use crate::checker::{self, Mutex};
use crate::memory::Memory;

/// The protection of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The lock bit of each word protects a slot.
    Locked,
    /// Operations of a CPU exclude each other, like restartable sequences.
    Restartable,
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    memory: &'static Memory,
    cpus: usize,
    slots: Slots,
    percpu: bool,
}

// SAFETY: the threads of a model run one at a time.
unsafe impl Sync for Machine {}

checker::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

type Sequences = Rc<Vec<Mutex<()>>>;

std::thread_local! {
    static SEQUENCES: RefCell<Option<Sequences>> = const { RefCell::new(None) };
}

/// Puts this thread of a model on a CPU.
pub fn on_cpu(cpu: usize) {
    CPU.with(|here| here.set(cpu));
}

impl Machine {
    /// A machine. `percpu` says whether threads may use per-CPU slots at all.
    pub fn new(memory: &'static Memory, cpus: usize, slots: Slots, percpu: bool) -> Self {
        Self {
            memory,
            cpus,
            slots,
            percpu,
        }
    }

    /// Starts a run of a model.
    pub fn begin(&self) {
        let sequences = (0..self.cpus).map(|_| Mutex::new(())).collect();
        SEQUENCES.set(Some(Rc::new(sequences)));
    }

    /// Ends a run of a model.
    pub fn end(&self) {
        SEQUENCES.set(None);
    }

    /// Runs a slot operation on this thread's CPU, or fails if the operation is disturbed.
    fn on_slot<T>(&self, table: &Table, failed: T, work: impl FnOnce(&Region) -> T) -> T {
        if checker::is_disturbed() {
            return failed;
        }
        let cpu = self.cpu();
        if self.slots == Slots::Restartable
            && let Some(sequences) = SEQUENCES.with_borrow(Clone::clone)
            && is_active()
        {
            let _sequence = sequences[cpu].lock();
            return work(table.here(cpu));
        }
        work(table.here(cpu))
    }
}

// SAFETY: memory is zeroed and has one owner. A slot operation holds the slot's lock bit or the
// CPU's mutex.
unsafe impl Platform for Machine {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.memory.take(bytes, align)? as *mut u8)
    }

    unsafe fn commit(&self, _start: NonNull<u8>, _bytes: usize) -> bool {
        true
    }

    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range is committed, and its content is not needed.
        unsafe { start.write_bytes(0, bytes) };
        true
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.memory.take(bytes, 4096)? as *mut u8)
    }

    unsafe fn unmap(&self, _start: NonNull<u8>, _bytes: usize) {}

    unsafe fn remap(&self, _start: NonNull<u8>, _old: usize, _new: usize) -> Option<NonNull<u8>> {
        None
    }

    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        checker::wait(word, value, timeout_ms);
    }

    fn wake(word: &AtomicU32) {
        checker::wake(word, 1);
    }

    fn wake_all(word: &AtomicU32) {
        checker::wake(word, usize::MAX);
    }

    fn thread() -> usize {
        if is_active() {
            CPU.with(|here| here.as_ptr() as usize)
        } else {
            1
        }
    }

    fn now_ms(&self) -> u64 {
        1_000_000
    }

    fn random(&self) -> u64 {
        0x9e37_79b9_7f4a_7c15
    }

    fn memory_bytes(&self) -> usize {
        1 << 30
    }

    fn nr_cpu_ids(&self) -> usize {
        self.cpus
    }

    fn nr_cpus(&self) -> usize {
        self.cpus
    }

    fn cpu(&self) -> usize {
        if is_active() { CPU.with(Cell::get) } else { 0 }
    }

    fn percpu_usable(&self) -> bool {
        self.percpu
    }

    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.on_slot(table, null_mut(), |region| unsafe {
            try_lock::pop(region, slot)
        })
    }

    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        // SAFETY: the caller's promise.
        self.on_slot(table, false, |region| unsafe {
            try_lock::push(region, slot, object)
        })
    }

    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        // SAFETY: the caller's promise.
        self.on_slot(table, false, |region| unsafe {
            try_lock::pop_many(region, slot, out)
        })
    }

    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool {
        // SAFETY: the caller's promise.
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
        if let Some(sequences) = SEQUENCES.with_borrow(Clone::clone) {
            for sequence in sequences.iter() {
                drop(sequence.lock());
            }
        }
        true
    }

    fn slots_are_locked(&self) -> bool {
        self.slots == Slots::Locked
    }

    fn warn(&self, message: Arguments<'_>) {
        panic!("{message}")
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        panic!("{message}")
    }
}

/// Declares that this thread writes two words of an object. A concurrent access by another thread
/// fails the run.
pub fn use_words(first: usize, link: usize) {
    atomic::writes(first as *const u8, 8);
    atomic::writes(link as *const u8, 8);
}
