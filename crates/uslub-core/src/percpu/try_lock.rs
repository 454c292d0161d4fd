//! Word operations for platforms without restartable sequences: bit 0 of a word is a lock.
//!
//! A thread holds the lock between reading the top and writing the new one. An operation on a
//! locked word fails; no operation waits. Callers: a
//! [`Platform`](crate::platform::Platform) implements its sequences with these functions.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::percpu::sheaf::SHEAF_BYTES;
use crate::percpu::slot::{LOCKED, Top};
use crate::percpu::{ALLOCS_OFFSET, FREES_OFFSET, Region, Slot};
use crate::sync::atomic;

fn try_lock(region: &Region, slot: Slot) -> Option<usize> {
    let word = region.word(slot);
    // Relaxed: confirmed by the compare-and-swap.
    let top = word.load(Relaxed);
    if top & LOCKED != 0 {
        return None;
    }
    // Acquire: see the sheaf's words as the last holder released them.
    word.compare_exchange(top, top | LOCKED, Acquire, Relaxed)
        .ok()
}

fn unlock(region: &Region, slot: Slot, top: usize) {
    // Release: the next holder must see the sheaf's words.
    region.word(slot).store(top, Release);
}

/// [`Platform::pop`](crate::platform::Platform::pop) under the lock bit.
///
/// # Safety
///
/// The region belongs to a [`Table`](crate::percpu::Table).
pub unsafe fn pop(region: &Region, slot: Slot) -> *mut u8 {
    let Some(top) = try_lock(region, slot) else {
        return core::ptr::null_mut();
    };
    atomic::reads(top as *const u8, 8);
    // SAFETY: a top points to the newest object or to null; we hold the sheaf's lock.
    let object = unsafe { *(top as *const *mut u8) };
    if object.is_null() {
        unlock(region, slot, top);
    } else {
        unlock(region, slot, top - 8);
        region.count(slot, ALLOCS_OFFSET, 1);
    }
    object
}

/// [`Platform::push`](crate::platform::Platform::push) under the lock bit.
///
/// # Safety
///
/// The region belongs to a [`Table`](crate::percpu::Table); `object` is free.
pub unsafe fn push(region: &Region, slot: Slot, object: *mut u8) -> bool {
    let Some(top) = try_lock(region, slot) else {
        return false;
    };
    if Top(top).is_full() {
        unlock(region, slot, top);
        return false;
    }
    atomic::writes((top + 8) as *const u8, 8);
    // SAFETY: the sheaf has room behind its top; we hold the sheaf's lock.
    unsafe { *((top + 8) as *mut *mut u8) = object };
    unlock(region, slot, top + 8);
    region.count(slot, FREES_OFFSET, 1);
    true
}

/// [`Platform::pop_many`](crate::platform::Platform::pop_many) under the lock bit.
///
/// # Safety
///
/// As for [`pop`].
pub unsafe fn pop_many(region: &Region, slot: Slot, out: &mut [*mut u8]) -> bool {
    let Some(top) = try_lock(region, slot) else {
        return false;
    };
    let n = out.len();
    let enough = Top(top).len() >= n;
    if enough {
        let first = (top - 8 * (n - 1)) as *const *mut u8;
        atomic::reads(first, 8 * n);
        // SAFETY: the sheaf has at least `n` objects; we hold the sheaf's lock.
        unsafe { first.copy_to_nonoverlapping(out.as_mut_ptr(), n) };
        unlock(region, slot, top - 8 * n);
        region.count(slot, ALLOCS_OFFSET, n);
    } else {
        unlock(region, slot, top);
    }
    enough
}

/// [`Platform::push_many`](crate::platform::Platform::push_many) under the lock bit.
///
/// # Safety
///
/// As for [`push`].
pub unsafe fn push_many(region: &Region, slot: Slot, objects: &[*mut u8]) -> bool {
    let Some(top) = try_lock(region, slot) else {
        return false;
    };
    let n = objects.len();
    let fits = top % SHEAF_BYTES + 8 * n < SHEAF_BYTES;
    if fits {
        let room = (top + 8) as *mut *mut u8;
        atomic::writes(room, 8 * n);
        // SAFETY: the sheaf has room for `n` objects behind its top; we hold the sheaf's lock.
        unsafe { objects.as_ptr().copy_to_nonoverlapping(room, n) };
        unlock(region, slot, top + 8 * n);
        region.count(slot, FREES_OFFSET, n);
    } else {
        unlock(region, slot, top);
    }
    fits
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
