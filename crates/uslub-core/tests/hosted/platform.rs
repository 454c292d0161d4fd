//! A platform on plain `std`: no system call, no assembly, nothing of Linux. `docs/porting.md` walks
//! through it.
//!
//! | the core needs | plain `std` has |
//! |---|---|
//! | address space, mappings | zeroed blocks of `std::alloc` |
//! | commitment | zeroing: a reserved block is there already |
//! | purging | refused: `std` cannot give a part of a block back |
//! | per-CPU slots | a slot for each of a few numbers that threads draw, guarded by its lock bit |
//! | waiting | a short sleep |
//! | a clock, randomness | `Instant`, `RandomState` |

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::hash::{BuildHasher, RandomState};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use uslub_core::platform::{PAGE_SIZE, Platform};

/// Numbers that threads draw: as a CPU has one slot for many threads, a number has one for some.
const SLOTS: usize = 4;

/// The blocks that the core has: start and layout. A block goes back when all of its bytes do.
static BLOCKS: Mutex<BTreeMap<usize, (Layout, usize)>> = Mutex::new(BTreeMap::new());

/// The platform.
#[derive(Default)]
pub struct Hosted {
    warnings: AtomicU32,
}

impl Hosted {
    pub const fn new() -> Self {
        Self {
            warnings: AtomicU32::new(0),
        }
    }

    /// Warnings so far.
    pub fn warnings(&self) -> u32 {
        // Relaxed: a figure.
        self.warnings.load(Relaxed)
    }

    /// Bytes that the core has of `std`.
    pub fn held_bytes() -> usize {
        let blocks = BLOCKS.lock().unwrap();
        blocks.values().map(|(_, left)| left).sum()
    }
}

fn take(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, align.max(PAGE_SIZE)).ok()?;
    // SAFETY: the core asks for at least a page.
    let block = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    let mut blocks = BLOCKS.lock().unwrap();
    blocks.insert(block.as_ptr() as usize, (layout, bytes));
    Some(block)
}

/// Takes back a block or a part of it.
fn give(start: NonNull<u8>, bytes: usize) {
    let mut blocks = BLOCKS.lock().unwrap();
    let address = start.as_ptr() as usize;
    let (&first, (layout, left)) = blocks.range_mut(..=address).next_back().expect("a block");
    assert!(address + bytes <= first + layout.size(), "of one block");
    *left -= bytes;
    if *left == 0 {
        let layout = *layout;
        blocks.remove(&first);
        // SAFETY: from `alloc_zeroed` with this layout, and all of it was given back.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(first), layout) };
    }
}

/// The number of this thread, drawn at its first call.
fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: each thread gets a number of its own.
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Relaxed) + 1);
    NUMBER.with(|number| *number)
}

// SAFETY: memory is that of `std`, zeroed, with one owner; slot operations are the core's own, which
// hold the slot's lock bit.
unsafe impl Platform for Hosted {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        take(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: inside a reservation, and the caller's.
        unsafe { start.write_bytes(0, bytes) };
        true
    }

    unsafe fn purge(&self, _start: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        take(bytes, PAGE_SIZE)
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        give(start, bytes);
    }

    /// No: the core copies.
    unsafe fn remap(&self, _start: NonNull<u8>, _old: usize, _new: usize) -> Option<NonNull<u8>> {
        None
    }

    /// May return early, so the core looks again. A system with a futex waits for a wake here.
    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        // SeqCst: nothing here is measured.
        if word.load(SeqCst) == value && timeout_ms != Some(0) {
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn wake(_word: &AtomicU32) {}

    fn wake_all(_word: &AtomicU32) {}

    fn thread() -> usize {
        number()
    }

    fn now_ms(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_millis() as u64
    }

    fn random(&self) -> u64 {
        RandomState::new().hash_one(number())
    }

    fn memory_bytes(&self) -> usize {
        1 << 30
    }

    fn nr_cpu_ids(&self) -> usize {
        SLOTS
    }

    fn nr_cpus(&self) -> usize {
        SLOTS
    }

    fn cpu(&self) -> usize {
        number() % SLOTS
    }

    /// A drain takes the slots' lock bits and needs no fence.
    fn fence(&self) -> bool {
        true
    }

    fn warn(&self, message: Arguments<'_>) {
        // Relaxed: a figure.
        self.warnings.fetch_add(1, Relaxed);
        eprintln!("{message}");
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        panic!("{message}")
    }
}
