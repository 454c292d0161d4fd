//! A kernel's platform: one CPU, a fixed piece of memory, no operating system.
//!
//! | the core needs | a kernel has |
//! |---|---|
//! | address space, mappings | pages of a static array, by a bitmap |
//! | commitment | zeroing: the memory is there already |
//! | purging | refused: there is nobody to give pages back to |
//! | per-CPU slots | one region, its words guarded by their lock bit |
//! | waiting | spinning |
//! | a clock | a counter of looks, as long as no timer ticks |
//!
//! Interrupts need not be switched off. A handler allocates with `GFP_NOSPIN`, which waits for
//! nothing: if it interrupted the holder of a lock or a slot, it takes another way or gets null.

use core::cell::UnsafeCell;
use core::fmt::Arguments;
use core::hint::spin_loop;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use uslub_core::platform::{PAGE_SIZE, Platform};
use uslub_core::sync::Lock;

/// Bytes that the allocator may have: its arena of 16 MiB, the tables beside it, room to align
/// them, and its records.
pub const MEMORY_BYTES: usize = 24 << 20;
const PAGES: usize = MEMORY_BYTES / PAGE_SIZE;

/// The memory itself. A real kernel learns from its boot loader where it is.
#[repr(C, align(4096))]
struct Memory(UnsafeCell<[u8; MEMORY_BYTES]>);

// SAFETY: its pages belong to those whom the bitmap gives them to.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; MEMORY_BYTES]));

/// Which pages are in use: a bit a page.
struct Bitmap([u64; PAGES / 64]);

static USED: Lock<Kernel, Bitmap> = Lock::new(Bitmap([0; PAGES / 64]));

impl Bitmap {
    fn is_used(&self, page: usize) -> bool {
        self.0[page / 64] & (1 << (page % 64)) != 0
    }

    fn set(&mut self, first: usize, count: usize, used: bool) {
        for page in first..first + count {
            assert_ne!(self.is_used(page), used, "page {page} changes hands twice");
            self.0[page / 64] ^= 1 << (page % 64);
        }
    }

    /// The first run of `count` free pages from a multiple of `align` bytes on.
    fn find(&self, count: usize, align: usize) -> Option<usize> {
        let base = MEMORY.0.get() as usize;
        let mut first = 0;
        loop {
            first = ((base + first * PAGE_SIZE).next_multiple_of(align) - base) / PAGE_SIZE;
            if first + count > PAGES {
                return None;
            }
            match (first..first + count).rfind(|&page| self.is_used(page)) {
                None => return Some(first),
                Some(used) => first = used + 1,
            }
        }
    }
}

/// Takes pages; their content is arbitrary.
fn take(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let count = bytes.div_ceil(PAGE_SIZE);
    let mut used = USED.lock();
    let first = used.find(count, align.max(PAGE_SIZE))?;
    used.set(first, count, true);
    NonNull::new(MEMORY.0.get().cast::<u8>().wrapping_add(first * PAGE_SIZE))
}

/// The platform.
pub struct Kernel {
    looks: AtomicU64,
    seed: AtomicU64,
    warnings: AtomicU32,
}

impl Kernel {
    /// The platform. There may be more than one; they share the memory.
    pub const fn new() -> Self {
        Self {
            looks: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            warnings: AtomicU32::new(0),
        }
    }

    /// Warnings so far; a real kernel prints them.
    pub fn warnings(&self) -> u32 {
        // Relaxed: a figure.
        self.warnings.load(Relaxed)
    }

    /// Bytes of the memory that are in use, arena and all.
    pub fn used_bytes() -> usize {
        let used = USED.lock();
        used.0
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum::<usize>()
            * PAGE_SIZE
    }
}

// SAFETY: pages belong to one owner at a time, by the bitmap, and are zeroed; slot operations hold
// the slot's lock bit.
unsafe impl Platform for Kernel {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        take(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: inside a reservation, so inside the array, and the caller's.
        unsafe { start.write_bytes(0, bytes) };
        true
    }

    unsafe fn purge(&self, _start: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        let start = take(bytes, PAGE_SIZE)?;
        // SAFETY: just taken.
        unsafe { start.write_bytes(0, bytes) };
        Some(start)
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        let first = (start.as_ptr() as usize - MEMORY.0.get() as usize) / PAGE_SIZE;
        USED.lock().set(first, bytes.div_ceil(PAGE_SIZE), false);
    }

    unsafe fn remap(&self, _start: NonNull<u8>, _old: usize, _new: usize) -> Option<NonNull<u8>> {
        None
    }

    fn wait(_word: &AtomicU32, _value: u32, _timeout_ms: Option<u32>) {
        spin_loop();
    }

    fn wake(_word: &AtomicU32) {}

    fn wake_all(_word: &AtomicU32) {}

    fn thread() -> usize {
        1
    }

    fn now_ms(&self) -> u64 {
        // Relaxed: it only grows.
        self.looks.fetch_add(1, Relaxed)
    }

    /// For the example the same each time; a kernel asks its hardware.
    fn random(&self) -> u64 {
        // Relaxed: each caller gets a number of its own.
        let seed = self.seed.fetch_add(1, Relaxed) + 1;
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    }

    fn memory_bytes(&self) -> usize {
        MEMORY_BYTES
    }

    fn nr_cpu_ids(&self) -> usize {
        1
    }

    fn nr_cpus(&self) -> usize {
        1
    }

    fn cpu(&self) -> usize {
        0
    }

    /// On one CPU nobody is inside an operation, but for what a handler interrupted; and handlers
    /// never get here.
    fn fence(&self) -> bool {
        true
    }

    fn warn(&self, _message: Arguments<'_>) {
        // Relaxed: a figure.
        self.warnings.fetch_add(1, Relaxed);
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        panic!("{message}")
    }
}
