//! The memory of a simulated machine: mappings of the system. Dropping the machine unmaps all.

use std::collections::BTreeMap;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The present mappings: start and size in bytes.
#[derive(Debug, Default)]
pub struct Memory(Mutex<BTreeMap<usize, usize>>);

impl Memory {
    fn mappings(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // A panic cannot leave the map incomplete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New aligned memory; without `usable` it is only reserved.
    pub fn map(&self, bytes: usize, align: usize, usable: bool) -> Option<NonNull<u8>> {
        let protection = if usable { READ_WRITE } else { libc::PROT_NONE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let room = bytes.checked_add(align)?;
        // SAFETY: a new mapping overlaps no other.
        let start = unsafe { libc::mmap(null_mut(), room, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start as usize;
        let aligned = start.next_multiple_of(align.max(1));
        unmap(start, aligned - start);
        unmap(aligned + bytes, start + room - aligned - bytes);
        self.mappings().insert(aligned, bytes);
        NonNull::new(aligned as *mut u8)
    }

    /// Unmaps a mapping, or a part of one.
    pub fn unmap(&self, start: usize, bytes: usize) {
        let mut mappings = self.mappings();
        if let Some((&first, &long)) = mappings.range(..=start).next_back() {
            let end = first + long;
            mappings.remove(&first);
            if first < start {
                mappings.insert(first, start - first);
            }
            if start + bytes < end {
                mappings.insert(start + bytes, end - start - bytes);
            }
        }
        unmap(start, bytes);
    }

    /// Grows or shrinks a mapping. The mapping may move.
    pub fn remap(&self, start: usize, old: usize, new: usize) -> Option<NonNull<u8>> {
        let mut mappings = self.mappings();
        // SAFETY: this is a whole mapping of ours, and its user accepts a move.
        let moved = unsafe { libc::mremap(start as *mut _, old, new, libc::MREMAP_MAYMOVE) };
        if moved == libc::MAP_FAILED {
            return None;
        }
        mappings.remove(&start);
        mappings.insert(moved as usize, new);
        NonNull::new(moved.cast())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mappings = std::mem::take(&mut *self.mappings());
        mappings
            .iter()
            .for_each(|(&start, &bytes)| unmap(start, bytes));
    }
}

fn unmap(start: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the range is part of our mappings, and no thread uses it any longer.
        unsafe { libc::munmap(start as *mut _, bytes) };
    }
}

/// Makes a reserved range usable; returns whether it succeeded.
///
/// # Safety
///
/// The range lies inside one of [`Memory`]'s reservations.
pub unsafe fn commit(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::mprotect(start.as_ptr().cast(), bytes, READ_WRITE) == 0 }
}

/// Returns the pages of a range to the system; the range then reads as zero.
///
/// # Safety
///
/// The range is committed, and its content is not needed.
pub unsafe fn purge(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_known_until_they_are_given_back() {
        let memory = Memory::default();
        let start = memory.map(16 << 12, 1 << 21, true).unwrap().as_ptr() as usize;
        assert!(start.is_multiple_of(1 << 21));
        memory.unmap(start + (4 << 12), 4 << 12);
        let known: Vec<_> = memory.mappings().clone().into_iter().collect();
        assert_eq!(known, [(start, 4 << 12), (start + (8 << 12), 8 << 12)]);
        let moved = memory.remap(start, 4 << 12, 64 << 12).unwrap().as_ptr();
        // SAFETY: the mapping has 64 pages.
        unsafe { moved.add((64 << 12) - 1).write(1) };
        assert_eq!(memory.mappings().get(&(moved as usize)), Some(&(64 << 12)));
        assert!(memory.map(usize::MAX, 1, true).is_none());
    }
}
