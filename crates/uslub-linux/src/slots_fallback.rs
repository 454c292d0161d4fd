//! Slot operations where the fast paths cannot go.
//!
//! | state | operation |
//! |---|---|
//! | sequences exist but are not open yet | a sequence |
//! | no sequences | a try-lock in the slot |
//! | a child shares its parent's memory | refused in the child: slabs serve it |
//!
//! Any thread may call. A refusal is a miss: null or false. Single pops and pushes may come before
//! there is a table, and are refused then.

use core::sync::atomic::Ordering::Relaxed;

use uslub_core::percpu::try_lock;
use uslub_core::percpu::{Counter, Slot, Table};
use uslub_core::platform::Platform;

use crate::Linux;
use crate::slots::{pop, pop_many, push, push_many};

impl Linux {
    #[cold]
    #[inline(never)]
    pub(crate) fn pop_fallback(&self, table: &Table, slot: Slot) -> *mut u8 {
        // SAFETY: the table's regions have tops in their slots.
        unsafe {
            match self.any_area() {
                Ok(Some(area)) if table.is_there() => pop(&area, table, slot),
                Ok(None) if table.is_there() => try_lock::pop(self.region(table), slot),
                _ => core::ptr::null_mut(),
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn push_fallback(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        // SAFETY: as in `pop_fallback`.
        unsafe {
            match self.any_area() {
                Ok(Some(area)) if table.is_there() => push(&area, table, slot, object),
                Ok(None) if table.is_there() => try_lock::push(self.region(table), slot, object),
                _ => false,
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn pop_many_fallback(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        // SAFETY: as in `pop_fallback`.
        unsafe {
            match self.any_area() {
                Ok(Some(area)) => pop_many(&area, table, slot, out),
                Ok(None) => try_lock::pop_many(self.region(table), slot, out),
                Err(()) => false,
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn push_many_fallback(
        &self,
        table: &Table,
        slot: Slot,
        objects: &[*mut u8],
    ) -> bool {
        // SAFETY: as in `pop_fallback`.
        unsafe {
            match self.any_area() {
                Ok(Some(area)) => push_many(&area, table, slot, objects),
                Ok(None) => try_lock::push_many(self.region(table), slot, objects),
                Err(()) => false,
            }
        }
    }

    #[cold]
    pub(crate) fn count_atomically(&self, table: &Table, counter: Counter, n: usize) {
        let region = match self.area() {
            // The running CPU's: on another CPU's counter, a sequence there, which is not atomic,
            // could undo this addition.
            Some(area) => table.here(area.index_here() as usize % self.nr_cpu_ids()),
            // Without sequences all additions are atomic, and readers add up all regions. The
            // thread pointer selects one: asking the kernel for the CPU takes more stack than is
            // left at the end of deep paths. The factor is 2^64 / φ.
            None => {
                let thread = uslub_rseq::thread_pointer() as u64;
                table.any_region((thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize)
            }
        };
        // Relaxed: statistics.
        region.counter(counter).fetch_add(n as u64, Relaxed);
    }
}
