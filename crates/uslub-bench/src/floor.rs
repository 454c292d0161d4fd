//! The floor: the minimum cost of a call if each CPU has a stack of free objects for each size.
//!
//! The floor runs the same restartable sequences as uslub, on stacks that never run empty or full.
//! Its `free` needs one lookup in a page map, because the address is its only argument. The floor
//! checks, refills and returns nothing. The cost of an allocator above the floor is its overhead;
//! the cost of stacks and map is part of the floor. P1 to P4, K and seed 2 use it.
//!
//! ```text
//!   malloc: size → class → pop          free: address → page → class → push
//! ```

use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use uslub_core::percpu::sheaf::CAPACITY_OFFSET;
use uslub_core::percpu::{ALLOCS_OFFSET, CACHE_WORDS, FREES_OFFSET};
use uslub_rseq::{Area, SHEAF_BYTES};

use crate::error::Failure;
use crate::linux;

/// The floor's name among the competitors.
pub const FLOOR: &str = "floor";
/// The description of the floor for readers of a report.
pub const ABOUT: &str = "Floor: the restartable sequences alone, on stacks that are never empty; for free with a page map";

/// Sizes of the floor's objects, in bytes.
pub const SIZES: [usize; 2] = [64, 256];
/// Objects in a stack.
pub const CAPACITY: usize = 250;
/// Words of a window. The stack lies at its end, above a word that marks the empty stack.
const WORDS: usize = SHEAF_BYTES / 8;
/// CPUs with an entry in the table.
pub const CPUS: usize = 8192;
/// Bytes of a page; the map has one class for each page.
pub const PAGE: usize = 4096;
/// Pages for the objects of each size.
const PAGES: [usize; SIZES.len()] = [pages(SIZES[0]), pages(SIZES[1])];
const ALL_PAGES: usize = PAGES[0] + PAGES[1];
/// Granularity of the size classes, in bytes.
const STEP: usize = 16;
/// The offset that means: no stack.
const NO_STACK: u16 = u16::MAX;

const fn pages(size: usize) -> usize {
    (CAPACITY * size).div_ceil(PAGE)
}

/// The memory of one stack.
#[repr(C, align(4096))]
pub struct Window([usize; WORDS]);

const _: () = assert!(align_of::<Window>() == SHEAF_BYTES);

/// Words in a cache line.
const LINE: usize = 8;

impl Window {
    /// An empty window.
    pub fn new() -> Self {
        let mut window = Self([0; WORDS]);
        // SAFETY: the offset is inside the window.
        unsafe {
            (&raw mut window.0)
                .cast::<u8>()
                .add(CAPACITY_OFFSET)
                .cast::<u16>()
                .write(CAPACITY as u16)
        };
        window
    }

    /// Fills the stack with [`CAPACITY`] objects, by their number, and leaves `more` words free
    /// above it; returns the top.
    pub fn fill(&mut self, more: usize, object: impl Fn(usize) -> usize) -> usize {
        let end = WORDS - more;
        let room = self.0[end - CAPACITY..end].iter_mut().enumerate();
        room.for_each(|(i, slot)| *slot = object(i));
        (&raw const self.0[end - 1]).expose_provenance()
    }

    /// The top of an empty stack.
    pub fn empty_top(&mut self) -> usize {
        (&raw const self.0[WORDS - CAPACITY - 1]).expose_provenance()
    }

    /// Whether the stack with this top is empty.
    pub fn is_empty_at(top: usize) -> bool {
        top % SHEAF_BYTES == 8 * (WORDS - CAPACITY - 1)
    }

    /// Whether the stack with this top is full.
    pub fn is_full_at(top: usize) -> bool {
        top % SHEAF_BYTES == 8 * (WORDS - 1)
    }

    fn lines(top: usize) -> impl Iterator<Item = *mut usize> {
        let first = top - top % SHEAF_BYTES + 8 * (WORDS - CAPACITY);
        (0..CAPACITY)
            .step_by(LINE)
            .map(move |word| with_exposed_provenance_mut(first + 8 * word))
    }

    /// Rewrites each cache line with its present content.
    ///
    /// # Safety
    ///
    /// `top` belongs to a window that the caller owns.
    pub unsafe fn offer(top: usize) {
        // SAFETY: the caller's promise.
        Self::lines(top).for_each(|word| unsafe { word.write_volatile(word.read_volatile()) });
    }

    /// Reads each cache line.
    ///
    /// # Safety
    ///
    /// As for [`offer`](Self::offer).
    pub unsafe fn read(top: usize) {
        for word in Self::lines(top) {
            // SAFETY: the caller's promise.
            black_box(unsafe { word.read_volatile() });
        }
    }

    /// Prefetches each cache line for writing.
    pub fn fetch(top: usize) {
        Self::lines(top).for_each(|word| uslub_rseq::prefetch_write(word.cast()));
    }
}

/// Tops and counters in the layout of a region, on their own page.
#[repr(C, align(4096))]
struct Region([usize; PAGE / 8]);

/// Word of the first top.
const FIRST_TOP: usize = 64;

#[repr(C, align(4096))]
struct Memory([[u8; PAGE]; ALL_PAGES]);

/// Stacks of one thread.
pub struct Floor {
    area: Area,
    /// One region for every CPU, because only one thread uses it.
    table: *mut u8,
    base: usize,
    /// Page → offset of the stack in the region.
    map: [u16; ALL_PAGES],
    /// Sixteenths of a size → offset of the stack.
    classes: [u16; SIZES[1] / STEP + 1],
}

thread_local! {
    /// The floor of this thread.
    static HERE: Cell<Option<&'static Floor>> = const { Cell::new(None) };
}

impl Floor {
    /// The stacks of this thread, if it has restartable sequences. They are never freed.
    pub fn here() -> Result<Option<&'static Self>, Failure> {
        if HERE.get().is_none() {
            let area = linux::steady()?.platform.area();
            HERE.set(area.filter(Area::is_registered_here).map(Self::make));
        }
        Ok(HERE.get())
    }

    fn make(area: Area) -> &'static Self {
        let region = Box::leak(Box::new(Region([0; PAGE / 8])));
        let memory = Box::leak(Box::new(Memory([[1; PAGE]; ALL_PAGES])));
        let base = &raw mut *memory as *mut u8;
        let mut floor = Self {
            area,
            table: null_mut(),
            base: base as usize,
            map: [NO_STACK; ALL_PAGES],
            classes: [NO_STACK; SIZES[1] / STEP + 1],
        };
        let mut page = 0;
        for (class, (size, pages)) in SIZES.into_iter().zip(PAGES).enumerate() {
            let word = FIRST_TOP + CACHE_WORDS * class;
            let window = Box::leak(Box::new(Window::new()));
            let object = |i| base.wrapping_add(page * PAGE + i * size) as usize;
            // Tops at the same offset of two pages would delay each other. Bulks use only the
            // larger size and the whole stack, so the smaller size gets the shift.
            region.0[word] = window.fill(SIZES.len() - 1 - class, object);
            floor.map[page..page + pages].fill(8 * word as u16);
            floor.classes[size / STEP] = 8 * word as u16;
            page += pages;
        }
        floor.table = vec![&raw mut *region; CPUS].leak().as_mut_ptr().cast();
        Box::leak(Box::new(floor))
    }

    /// Pops an object of `size` bytes; null if the floor has no such size.
    #[inline(always)]
    pub fn pop(&self, size: usize) -> *mut u8 {
        let at = self.classes.get(size.div_ceil(STEP));
        let Some(&at) = at.filter(|at| **at != NO_STACK) else {
            return null_mut();
        };
        until(|| {
            // SAFETY: the top belongs to this floor.
            let object =
                unsafe { uslub_rseq::pop::<ALLOCS_OFFSET>(&self.area, self.table, at.into()) };
            (!object.is_null()).then_some(object)
        })
    }

    /// Pushes an object of known size.
    #[inline(always)]
    pub fn push(&self, size: usize, object: *mut u8) {
        self.push_to(self.classes[size / STEP], object);
    }

    /// Pushes an object of which only the address is known. Ignores null and foreign addresses.
    #[inline(always)]
    fn push_by_address(&self, object: *mut u8) {
        if let Some(&at) = self
            .map
            .get((object as usize).wrapping_sub(self.base) / PAGE)
        {
            self.push_to(at, object);
        }
    }

    #[inline(always)]
    fn push_to(&self, at: u16, object: *mut u8) {
        let (area, table, at) = (&self.area, self.table, at.into());
        until(|| {
            // SAFETY: the top belongs to this floor.
            unsafe { uslub_rseq::push::<FREES_OFFSET>(area, table, at, object) }.then_some(())
        });
    }

    /// Pops objects of the larger size until the array is full, and pushes them again.
    #[inline(always)]
    pub fn pop_and_push_many(&self, objects: &mut [*mut u8]) {
        self.pop_many(objects);
        self.push_many(objects);
    }

    /// Pops objects of the larger size until the array is full.
    #[inline(always)]
    pub fn pop_many(&self, objects: &mut [*mut u8]) {
        let (area, table, at) = (&self.area, self.table, self.classes[SIZES[1] / STEP].into());
        until(|| {
            // SAFETY: the top belongs to this floor.
            unsafe {
                uslub_rseq::pop_many::<ALLOCS_OFFSET, CAPACITY_OFFSET>(area, table, at, objects)
            }
            .then_some(())
        });
    }

    /// Pushes objects that the floor popped.
    #[inline(always)]
    pub fn push_many(&self, objects: &[*mut u8]) {
        let (area, table, at) = (&self.area, self.table, self.classes[SIZES[1] / STEP].into());
        until(|| {
            // SAFETY: the top belongs to this floor, and its stack held the objects.
            unsafe { uslub_rseq::push_many::<FREES_OFFSET>(area, table, at, objects) }.then_some(())
        });
    }
}

/// Retries until the work is done: an interrupted sequence has no effect.
#[inline(always)]
fn until<T>(mut work: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(done) = work() {
            return done;
        }
    }
}

/// C's `malloc`; null on a thread [without a floor](Floor::here).
pub extern "C" fn floor_malloc(size: usize) -> *mut c_void {
    HERE.get()
        .map_or(null_mut(), |floor| floor.pop(size))
        .cast()
}

/// C's `free`; does nothing on a thread [without a floor](Floor::here).
///
/// # Safety
///
/// No thread uses the object any longer.
pub unsafe extern "C" fn floor_free(object: *mut c_void) {
    if let Some(floor) = HERE.get() {
        floor.push_by_address(object.cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_comes_once_and_goes_back() -> Result<(), Failure> {
        let Some(floor) = Floor::here()? else {
            return Ok(());
        };
        for size in SIZES {
            let all: std::collections::BTreeSet<_> =
                (0..CAPACITY).map(|_| floor.pop(size)).collect();
            assert_eq!(all.len(), CAPACITY);
            for object in &all {
                // SAFETY: the object has `size` bytes and is this test's until it is pushed.
                unsafe { object.write_bytes(7, size) };
            }
            for (i, object) in all.into_iter().enumerate() {
                if i % 2 == 0 {
                    floor.push(size, object);
                } else {
                    // SAFETY: the object was popped above.
                    unsafe { floor_free(object.cast()) };
                }
            }
        }
        let mut many = [null_mut(); CAPACITY];
        floor.pop_and_push_many(&mut many);
        assert!(many.iter().all(|object| !object.is_null()));
        let object = floor_malloc(64);
        assert!(!object.is_null());
        // SAFETY: the floor popped the object; null is ignored.
        unsafe {
            floor_free(object);
            floor_free(null_mut());
        }
        assert!(floor_malloc(100).is_null() && floor_malloc(1 << 20).is_null());
        let elsewhere = std::thread::spawn(|| floor_malloc(64).is_null());
        assert!(elsewhere.join().is_ok_and(|none| none));
        Ok(())
    }
}
