//! Word operations for platforms without restartable sequences: bit 0 of a word is a lock.
//!
//! A thread holds the lock between reading the top and writing the new one. An operation on a
//! locked word fails; no operation waits. Callers: a
//! [`Platform`](crate::platform::Platform) implements its sequences with these functions.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::percpu::slot::{LOCKED, Top};
use crate::percpu::{ALLOCS_OFFSET, FREES_OFFSET, Region, Slot};
use crate::sync::atomic;

/// Replaces a slot's top by what `work` returns for it, under the lock bit, and counts the objects
/// popped or pushed. Returns whether the top changed; false also if the slot is locked.
#[inline]
fn change(region: &Region, slot: Slot, work: impl FnOnce(usize) -> usize) -> bool {
    let word = region.word(slot);
    // Relaxed: confirmed by the compare-and-swap. Acquire: see the sheaf's words as the last holder
    // released them.
    let top = word.load(Relaxed);
    let lock = || word.compare_exchange(top, top | LOCKED, Acquire, Relaxed);
    if top & LOCKED != 0 || lock().is_err() {
        return false;
    }
    let new = work(top);
    // Release: the next holder must see the sheaf's words.
    word.store(new, Release);
    if new < top {
        region.count(slot, ALLOCS_OFFSET, (top - new) / 8);
    } else if new > top {
        region.count(slot, FREES_OFFSET, (new - top) / 8);
    }
    new != top
}

/// [`Platform::pop`](crate::platform::Platform::pop) under the lock bit.
///
/// # Safety
///
/// The region belongs to a [`Table`](crate::percpu::Table).
pub unsafe fn pop(region: &Region, slot: Slot) -> *mut u8 {
    let mut object = core::ptr::null_mut();
    change(region, slot, |top| {
        atomic::reads(top as *const u8, 8);
        // SAFETY: a top points to the newest object or to null; we hold the sheaf's lock.
        object = unsafe { *(top as *const *mut u8) };
        if object.is_null() { top } else { top - 8 }
    });
    object
}

/// [`Platform::push`](crate::platform::Platform::push) under the lock bit.
///
/// # Safety
///
/// The region belongs to a [`Table`](crate::percpu::Table); `object` is free.
pub unsafe fn push(region: &Region, slot: Slot, object: *mut u8) -> bool {
    change(region, slot, |top| {
        if Top(top).is_full() {
            return top;
        }
        let room = (top + 8) as *mut *mut u8;
        atomic::writes(room, 8);
        // SAFETY: the sheaf has room behind its top; we hold the sheaf's lock.
        unsafe { *room = object };
        top + 8
    })
}

/// [`Platform::pop_many`](crate::platform::Platform::pop_many) under the lock bit.
///
/// # Safety
///
/// As for [`pop`].
pub unsafe fn pop_many(region: &Region, slot: Slot, out: &mut [*mut u8]) -> bool {
    let n = out.len();
    change(region, slot, |top| {
        if Top(top).len() < n {
            return top;
        }
        let rest = top - 8 * n;
        let first = (rest + 8) as *const *mut u8;
        atomic::reads(first, 8 * n);
        // SAFETY: the sheaf has at least `n` objects; we hold the sheaf's lock.
        unsafe { first.copy_to_nonoverlapping(out.as_mut_ptr(), n) };
        rest
    })
}

/// [`Platform::push_many`](crate::platform::Platform::push_many) under the lock bit.
///
/// # Safety
///
/// As for [`push`].
pub unsafe fn push_many(region: &Region, slot: Slot, objects: &[*mut u8]) -> bool {
    let n = objects.len();
    change(region, slot, |top| {
        if Top(top).room() < n {
            return top;
        }
        let room = (top + 8) as *mut *mut u8;
        atomic::writes(room, 8 * n);
        // SAFETY: the sheaf has room for `n` objects behind its top; we hold the sheaf's lock.
        unsafe { objects.as_ptr().copy_to_nonoverlapping(room, n) };
        top + 8 * n
    })
}

/// Replaces a word by one compare-and-swap, as
/// [`Platform::compare_exchange`](crate::platform::Platform::compare_exchange) does.
pub fn compare_exchange(region: &Region, slot: Slot, old: usize, new: usize) -> bool {
    // AcqRel: acquires the old sheaf's words, releases the new sheaf's.
    region
        .word(slot)
        .compare_exchange(old, new, AcqRel, Relaxed)
        .is_ok()
}
