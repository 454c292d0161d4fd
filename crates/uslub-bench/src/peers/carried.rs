//! The floor of P4 by malloc: one restartable sequence for each object, on stacks that two CPUs
//! hand to each other whole.
//!
//! ```text
//!   producer: pop, pop, …, empty ───── empty stacks ────▶ consumer: push, push, …, full
//!      ▲                                                                            │
//!      └────────────────────────────── full stacks ─────────────────────────────────┘
//! ```
//!
//! The floor checks, refills and returns nothing. It moves between the CPUs what an allocator with
//! arrays of addresses must move: the lines of the objects, the lines of the arrays, and, for each
//! array, the list that yields the newest array under a lock. It is not a strict bound: stacks of
//! another length, or another lock, can be some per cent faster. uslub is faster in batches of 32.

use std::cell::UnsafeCell;
use std::sync::{Mutex, PoisonError};

use uslub_core::percpu::{ALLOCS_OFFSET, FREES_OFFSET};
use uslub_rseq::{Area, LineHandoff};

use crate::bulks::Page;
use crate::error::Failure;
use crate::floor::{CAPACITY, CPUS, PAGE, Window};
use crate::linux;
use crate::ring::wait_until;

/// Byte offset of the top in a region.
const TOP: u16 = 512;
/// Stacks beyond the stacks for all objects in transit.
const MORE: usize = 4;

/// A region with one stack. Every CPU shares it, because only one thread uses it.
struct Side {
    region: Box<Page<UnsafeCell<[usize; PAGE / 8]>>>,
    table: Box<[*mut u8]>,
}

impl Side {
    fn new(top: usize) -> Self {
        let mut region = Box::new(Page(UnsafeCell::new([0; PAGE / 8])));
        region.0.get_mut()[usize::from(TOP) / 8] = top;
        let table = vec![region.0.get().cast(); CPUS].into();
        Self { region, table }
    }

    fn table(&self) -> *mut u8 {
        self.table.as_ptr().cast_mut().cast()
    }

    fn word(&self) -> *mut usize {
        self.region
            .0
            .get()
            .cast::<usize>()
            .wrapping_add(usize::from(TOP) / 8)
    }

    /// The top of the present stack.
    fn top(&self) -> usize {
        // SAFETY: only this thread accesses the word.
        unsafe { self.word().read() }
    }

    fn place(&self, top: usize) {
        // SAFETY: only this thread accesses the word.
        unsafe { self.word().write(top) };
    }
}

/// Tops of the stacks that neither thread holds, the newest last.
#[repr(align(128))]
struct Lists(Mutex<[Vec<usize>; 2]>);

/// The index of a list.
const FULL: usize = 0;
const EMPTY: usize = 1;

impl Lists {
    /// Puts a stack into the list `put`, and takes the newest stack of the list `take`. Waits until
    /// the list `take` has a stack.
    #[cold]
    fn exchange(&self, top: usize, put: usize, take: usize) -> usize {
        let mut given = Some(top);
        let mut taken = None;
        wait_until(|| {
            let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lists[put].extend(given.take());
            taken = lists[take].pop();
            taken.is_some()
        });
        taken.unwrap_or_default()
    }
}

/// Objects and stacks that circulate between two threads.
pub struct Carried {
    area: Area,
    offers: LineHandoff,
    /// Address of the first object.
    base: usize,
    /// Page → offset of the top.
    map: Vec<u16>,
    from: Side,
    to: Side,
    lists: Lists,
    _objects: Vec<Page<[u8; PAGE]>>,
    _windows: Vec<Window>,
}

// SAFETY: only the producer uses `from`, and only the consumer uses `to`. A thread that takes a
// stack out of a list owns the stack.
unsafe impl Sync for Carried {}

impl Carried {
    /// At least `objects` objects of `bytes` bytes; `None` without restartable sequences.
    pub fn new(objects: usize, bytes: usize) -> Result<Option<Self>, Failure> {
        let area = linux::steady()?.platform.area();
        let Some(area) = area.filter(Area::is_registered_here) else {
            return Ok(None);
        };
        let stacks = objects.div_ceil(CAPACITY) + MORE;
        let mut memory = vec![Page([0u8; PAGE]); (stacks * CAPACITY * bytes).div_ceil(PAGE)];
        let base = memory.as_mut_ptr().expose_provenance();
        let mut windows: Vec<_> = (0..stacks + MORE).map(|_| Window::new()).collect();
        let (fulls, empties) = windows.split_at_mut(stacks);
        let full = fulls.iter_mut().enumerate().map(|(number, window)| {
            let first = base + number * CAPACITY * bytes;
            window.fill(0, |i| first + i * bytes)
        });
        let mut empty = empties.iter_mut().map(Window::empty_top);
        let (from, to) = (empty.next().unwrap_or(0), empty.next().unwrap_or(0));
        let lists = [full.collect(), empty.collect()];
        Ok(Some(Self {
            area,
            offers: uslub_rseq::line_handoff(),
            base,
            map: vec![TOP; memory.len()],
            from: Side::new(from),
            to: Side::new(to),
            lists: Lists(Mutex::new(lists)),
            _objects: memory,
            _windows: windows,
        }))
    }

    /// Pops an object. Only the producer's thread may call it.
    #[inline(never)]
    pub fn alloc(&self) -> *mut u8 {
        loop {
            // SAFETY: the top belongs to this floor.
            let object = unsafe {
                uslub_rseq::pop::<ALLOCS_OFFSET>(&self.area, self.from.table(), TOP.into())
            };
            if !object.is_null() {
                return object;
            }
            let top = self.from.top();
            // A stack that is not empty means that the sequence was interrupted: retry.
            if Window::is_empty_at(top) {
                if self.offers.arrays {
                    // SAFETY: only this thread holds the stack.
                    unsafe { Window::offer(top) };
                }
                let next = self.lists.exchange(top, EMPTY, FULL);
                // SAFETY: this thread took the stack out of a list.
                unsafe { Window::read(next) };
                self.from.place(next);
            }
        }
    }

    /// Pushes an object. Only the consumer's thread may call it.
    #[inline(never)]
    pub fn free(&self, object: *mut u8) {
        let page = (object as usize).wrapping_sub(self.base) / PAGE;
        let Some(&at) = self.map.get(page) else {
            return;
        };
        loop {
            let table = self.to.table();
            // SAFETY: the top belongs to this floor.
            if unsafe { uslub_rseq::push::<FREES_OFFSET>(&self.area, table, at.into(), object) } {
                return;
            }
            let top = self.to.top();
            if Window::is_full_at(top) {
                let next = self.lists.exchange(top, FULL, EMPTY);
                Window::fetch(next);
                self.to.place(next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_objects_go_round() -> Result<(), Failure> {
        let Some(carried) = Carried::new(3 * CAPACITY, 64)? else {
            return Ok(());
        };
        for round in 0..20 {
            let objects: std::collections::BTreeSet<_> =
                (0..3 * CAPACITY).map(|_| carried.alloc()).collect();
            assert_eq!(objects.len(), 3 * CAPACITY, "{round}");
            for object in objects {
                // SAFETY: the object has 64 bytes and is this thread's until it is freed.
                unsafe { object.write_bytes(7, 64) };
                carried.free(object);
            }
        }
        Ok(())
    }
}
