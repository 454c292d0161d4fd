//! The restartable sequences of `uslub-rseq`, applied to the allocator's table: its slots and
//! counters.
//!
//! Each runs on the calling thread's CPU, and needs an area that the kernel knows. Any such thread
//! may call.

use uslub_core::percpu::sheaf::CAPACITY_OFFSET;
use uslub_core::percpu::{ALLOCS_OFFSET, FREES_OFFSET, Slot, Table};
use uslub_rseq::Area;

/// Pops by a restartable sequence.
///
/// # Safety
///
/// The table's regions have tops in their slots.
#[inline(always)]
pub(crate) unsafe fn pop(area: &Area, table: &Table, slot: Slot) -> *mut u8 {
    // SAFETY: passed on.
    unsafe { uslub_rseq::pop::<ALLOCS_OFFSET>(area, table.active().cast(), slot.offset()) }
}

/// Pushes by a restartable sequence.
///
/// # Safety
///
/// As for [`pop`].
#[inline(always)]
pub(crate) unsafe fn push(area: &Area, table: &Table, slot: Slot, object: *mut u8) -> bool {
    let active = table.active().cast();
    // SAFETY: passed on.
    unsafe { uslub_rseq::push::<FREES_OFFSET>(area, active, slot.offset(), object) }
}

/// Pops many by a restartable sequence.
///
/// # Safety
///
/// As for [`pop`].
#[inline(always)]
pub(crate) unsafe fn pop_many(area: &Area, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
    let (active, at) = (table.active().cast(), slot.offset());
    // SAFETY: passed on.
    unsafe { uslub_rseq::pop_many::<ALLOCS_OFFSET, CAPACITY_OFFSET>(area, active, at, out) }
}

/// Pushes many by a restartable sequence.
///
/// # Safety
///
/// As for [`pop`].
#[inline(always)]
pub(crate) unsafe fn push_many(
    area: &Area,
    table: &Table,
    slot: Slot,
    objects: &[*mut u8],
) -> bool {
    let (active, at) = (table.active().cast(), slot.offset());
    // SAFETY: passed on.
    unsafe { uslub_rseq::push_many::<FREES_OFFSET>(area, active, at, objects) }
}

/// Pushes many by a restartable sequence that checks that all objects lie within the bounds. `None`
/// if this processor has no such sequence.
///
/// # Safety
///
/// As for [`pop`].
#[inline(always)]
pub(crate) unsafe fn push_many_checked(
    area: &Area,
    table: &Table,
    slot: Slot,
    objects: &[*mut u8],
    bounds: (usize, usize),
) -> Option<bool> {
    let (active, at) = (table.active().cast(), slot.offset());
    // SAFETY: passed on.
    unsafe { uslub_rseq::push_many_checked::<FREES_OFFSET>(area, active, at, objects, bounds) }
}
