//! The floor: the least that a call takes where each CPU has a stack of free objects for each size.
//!
//! The same restartable sequences as ours, on stacks that are never empty nor full; for `free` one
//! look at a page map, as the address is all that it is told. Nothing is checked, refilled or given
//! back: what an allocator takes above it is its own doing, and what its stacks and its map cost is
//! here.
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

/// The name under which it takes part.
pub const FLOOR: &str = "floor";
/// What it is, for those who read a report.
pub const ABOUT: &str = "Floor: the restartable sequences alone, on stacks that are never empty; for free with a page map";

/// Sizes of its objects, in bytes.
pub const SIZES: [usize; 2] = [64, 256];
/// Objects that a stack holds.
pub const CAPACITY: usize = 250;
/// Words of a window: the stack is at its end, above a word that says where it is empty.
const WORDS: usize = SHEAF_BYTES / 8;
/// CPUs that the table has an entry for.
pub const CPUS: usize = 8192;
/// Bytes of a page, of which the map knows the class.
pub const PAGE: usize = 4096;
/// Pages of the objects of each size.
const PAGES: [usize; SIZES.len()] = [pages(SIZES[0]), pages(SIZES[1])];
const ALL_PAGES: usize = PAGES[0] + PAGES[1];
/// Sizes differ by so many bytes, at least.
const STEP: usize = 16;
/// The offset of no stack.
const NO_STACK: u16 = u16::MAX;

const fn pages(size: usize) -> usize {
    (CAPACITY * size).div_ceil(PAGE)
}

/// Memory of a stack.
#[repr(C, align(4096))]
pub struct Window([usize; WORDS]);

const _: () = assert!(align_of::<Window>() == SHEAF_BYTES);

/// Words of a line.
const LINE: usize = 8;

impl Window {
    /// With nothing in it.
    pub fn new() -> Self {
        let mut window = Self([0; WORDS]);
        // SAFETY: a field of the window.
        unsafe {
            (&raw mut window.0)
                .cast::<u8>()
                .add(CAPACITY_OFFSET)
                .cast::<u16>()
                .write(CAPACITY as u16)
        };
        window
    }

    /// Puts [`CAPACITY`] objects in, by their number, and leaves room for some more; returns the
    /// top.
    pub fn fill(&mut self, more: usize, object: impl Fn(usize) -> usize) -> usize {
        let end = WORDS - more;
        let room = self.0[end - CAPACITY..end].iter_mut().enumerate();
        room.for_each(|(i, slot)| *slot = object(i));
        (&raw const self.0[end - 1]).expose_provenance()
    }

    /// The top of one with nothing in it.
    pub fn empty_top(&mut self) -> usize {
        (&raw const self.0[WORDS - CAPACITY - 1]).expose_provenance()
    }

    /// Whether nothing is below the top.
    pub fn is_empty_at(top: usize) -> bool {
        top % SHEAF_BYTES == 8 * (WORDS - CAPACITY - 1)
    }

    /// Whether there is no room above it.
    pub fn is_full_at(top: usize) -> bool {
        top % SHEAF_BYTES == 8 * (WORDS - 1)
    }

    fn lines(top: usize) -> impl Iterator<Item = *mut usize> {
        let first = top - top % SHEAF_BYTES + 8 * (WORDS - CAPACITY);
        (0..CAPACITY)
            .step_by(LINE)
            .map(move |word| with_exposed_provenance_mut(first + 8 * word))
    }

    /// Writes to each line what is there.
    ///
    /// # Safety
    ///
    /// The top is that of a window in the caller's hands.
    pub unsafe fn offer(top: usize) {
        // SAFETY: by the caller's promise.
        Self::lines(top).for_each(|word| unsafe { word.write_volatile(word.read_volatile()) });
    }

    /// Reads each line.
    ///
    /// # Safety
    ///
    /// As for [`offer`](Self::offer).
    pub unsafe fn read(top: usize) {
        for word in Self::lines(top) {
            // SAFETY: by the caller's promise.
            black_box(unsafe { word.read_volatile() });
        }
    }

    /// Asks for each line, to write to.
    pub fn fetch(top: usize) {
        Self::lines(top).for_each(|word| uslub_rseq::fetch(word.cast()));
    }
}

/// Tops and counters, as a region has them, on a page of their own.
#[repr(C, align(4096))]
struct Region([usize; PAGE / 8]);

/// Word of the first top.
const FIRST_TOP: usize = 64;

#[repr(C, align(4096))]
struct Memory([[u8; PAGE]; ALL_PAGES]);

/// Stacks of one thread.
pub struct Floor {
    area: Area,
    /// The same region for each CPU, as one thread uses it.
    table: *mut u8,
    base: usize,
    /// Page → offset of the stack in the region.
    map: [u16; ALL_PAGES],
    /// Sixteenths of a size → offset of the stack.
    classes: [u16; SIZES[1] / STEP + 1],
}

thread_local! {
    /// This thread's.
    static HERE: Cell<Option<&'static Floor>> = const { Cell::new(None) };
}

impl Floor {
    /// The stacks of this thread, if it has restartable sequences. They live for ever.
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
            // Tops at the same place of their pages would wait for each other. (Bulks are of the
            // larger size, and of all.)
            region.0[word] = window.fill(SIZES.len() - 1 - class, object);
            floor.map[page..page + pages].fill(8 * word as u16);
            floor.classes[size / STEP] = 8 * word as u16;
            page += pages;
        }
        floor.table = vec![&raw mut *region; CPUS].leak().as_mut_ptr().cast();
        Box::leak(Box::new(floor))
    }

    /// An object of so many bytes; null where there is none of the size.
    #[inline(always)]
    pub fn pop(&self, size: usize) -> *mut u8 {
        let at = self.classes.get(size.div_ceil(STEP));
        let Some(&at) = at.filter(|at| **at != NO_STACK) else {
            return null_mut();
        };
        until(|| {
            // SAFETY: a top of ours.
            let object =
                unsafe { uslub_rseq::pop::<ALLOCS_OFFSET>(&self.area, self.table, at.into()) };
            (!object.is_null()).then_some(object)
        })
    }

    /// Puts an object back whose size is known.
    #[inline(always)]
    pub fn push(&self, size: usize, object: *mut u8) {
        self.push_to(self.classes[size / STEP], object);
    }

    /// Puts an object back of which the address alone is known; null is ignored, and what is none
    /// of ours.
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
            // SAFETY: a top of ours.
            unsafe { uslub_rseq::push::<FREES_OFFSET>(area, table, at, object) }.then_some(())
        });
    }

    /// Takes objects of the larger size, as many as the array has room for, and puts them back.
    #[inline(always)]
    pub fn pop_and_push_many(&self, objects: &mut [*mut u8]) {
        self.pop_many(objects);
        self.push_many(objects);
    }

    /// Takes objects of the larger size, as many as the array has room for.
    #[inline(always)]
    pub fn pop_many(&self, objects: &mut [*mut u8]) {
        let (area, table, at) = (&self.area, self.table, self.classes[SIZES[1] / STEP].into());
        until(|| {
            // SAFETY: a top of ours.
            unsafe {
                uslub_rseq::pop_many::<ALLOCS_OFFSET, CAPACITY_OFFSET>(area, table, at, objects)
            }
            .then_some(())
        });
    }

    /// Puts objects back that it took.
    #[inline(always)]
    pub fn push_many(&self, objects: &[*mut u8]) {
        let (area, table, at) = (&self.area, self.table, self.classes[SIZES[1] / STEP].into());
        until(|| {
            // SAFETY: a top of ours, and what it held.
            unsafe { uslub_rseq::push_many::<FREES_OFFSET>(area, table, at, objects) }.then_some(())
        });
    }
}

/// Tries until it is done: a sequence that was interrupted did nothing.
#[inline(always)]
fn until<T>(mut work: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(done) = work() {
            return done;
        }
    }
}

/// As C's `malloc`; null on a thread that [has none](Floor::here).
pub extern "C" fn floor_malloc(size: usize) -> *mut c_void {
    HERE.get()
        .map_or(null_mut(), |floor| floor.pop(size))
        .cast()
}

/// As C's `free`, likewise.
///
/// # Safety
///
/// Nobody uses the object any more.
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
                // SAFETY: so large, and ours until it is pushed.
                unsafe { object.write_bytes(7, size) };
            }
            for (i, object) in all.into_iter().enumerate() {
                if i % 2 == 0 {
                    floor.push(size, object);
                } else {
                    // SAFETY: popped a moment ago.
                    unsafe { floor_free(object.cast()) };
                }
            }
        }
        let mut many = [null_mut(); CAPACITY];
        floor.pop_and_push_many(&mut many);
        assert!(many.iter().all(|object| !object.is_null()));
        let object = floor_malloc(64);
        assert!(!object.is_null());
        // SAFETY: allocated there; null is ignored.
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
