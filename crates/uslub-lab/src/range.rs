//! The memory of a simulated machine: one range of address space.
//!
//! Everything that CPUs share lies in the range: the allocator, its arena and records, and the
//! queues of workloads. An address is known by its distance from the start, which is the same in
//! each run. So a run does not depend on where the system places mappings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::{NonNull, null_mut};

use crate::error::Failure;

/// Bytes of the range.
const BYTES: usize = 16 << 30;
/// Alignment of the range: more than anything inside asks for.
const ALIGN: usize = 1 << 30;

/// A range of zeroed memory, and what is free of it.
pub struct Range {
    start: usize,
    /// Free parts: offset and size, in bytes.
    free: RefCell<BTreeMap<usize, usize>>,
}

/// New zeroed memory of the system.
pub fn map(bytes: usize) -> Result<usize, Failure> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping overlaps no other.
    let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Failure::NoMemory(bytes >> 20));
    }
    Ok(start as usize)
}

/// Returns memory of [`map`] to the system.
///
/// # Safety
///
/// No one uses the range any longer.
pub unsafe fn unmap(start: usize, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start as *mut _, bytes) };
}

impl Range {
    /// A new range.
    pub fn new() -> Result<Self, Failure> {
        let room = map(BYTES + ALIGN)?;
        let start = room.next_multiple_of(ALIGN);
        // SAFETY: both ends lie outside the range, and no one uses them.
        unsafe {
            if start > room {
                unmap(room, start - room);
            }
            unmap(start + BYTES, room + ALIGN - start);
        }
        Ok(Self {
            start,
            free: RefCell::new(BTreeMap::from([(0, BYTES)])),
        })
    }

    /// The first address.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Bytes of the range.
    pub fn bytes(&self) -> usize {
        BYTES
    }

    /// Takes the lowest free part that fits.
    pub fn take(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let mut free = self.free.borrow_mut();
        let found = free.iter().find_map(|(&at, &long)| {
            let aligned = at.next_multiple_of(align.max(1));
            (aligned + bytes <= at + long).then_some((at, long, aligned))
        });
        let (at, long, aligned) = found?;
        free.remove(&at);
        if at < aligned {
            free.insert(at, aligned - at);
        }
        if aligned + bytes < at + long {
            free.insert(aligned + bytes, at + long - aligned - bytes);
        }
        NonNull::new((self.start + aligned) as *mut u8)
    }

    /// Gives a part back, zeroed.
    pub fn give(&self, start: usize, bytes: usize) {
        self.purge(start, bytes);
        let mut free = self.free.borrow_mut();
        let (mut at, mut long) = (start - self.start, bytes);
        if let Some((&before, &its)) = free.range(..at).next_back()
            && before + its == at
        {
            free.remove(&before);
            (at, long) = (before, long + its);
        }
        if let Some(its) = free.remove(&(at + long)) {
            long += its;
        }
        free.insert(at, long);
    }

    /// Zeroes a part.
    pub fn purge(&self, start: usize, bytes: usize) {
        // SAFETY: the part lies in the range, and its owner does not need its content.
        unsafe { libc::madvise(start as *mut _, bytes, libc::MADV_DONTNEED) };
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: whoever had a part of the range is gone with the machine.
        unsafe { unmap(self.start, BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_same_places_in_each_range_and_join_when_given_back() {
        let places = |range: &Range| {
            let mut all = Vec::new();
            for (bytes, align) in [(4096, 1), (8192, 1 << 21), (100, 64)] {
                all.push(range.take(bytes, align).unwrap().as_ptr() as usize - range.start());
            }
            all
        };
        let (a, b) = (Range::new().unwrap(), Range::new().unwrap());
        assert_eq!(places(&a), [0, 1 << 21, 4096]);
        assert_eq!(places(&b), places(&Range::new().unwrap()));
        let all = a.free.borrow().len();
        assert_eq!(all, 2);
        a.give(a.start(), 4096);
        a.give(a.start() + 4096, 100);
        a.give(a.start() + (1 << 21), 8192);
        assert_eq!(*a.free.borrow(), BTreeMap::from([(0, BYTES)]));
        assert!(a.take(BYTES + 1, 1).is_none());
    }
}
