//! Address space: where the allocator reserves it, and whether a limit counts it.
//!
//! Reserved address space is mapped without access and holds no memory. Any thread may call.

use uslub_core::platform::PAGE_SIZE;

use crate::{start, sys};

/// Reserves `bytes` bytes of address space, aligned to `align` bytes, where the kernel places it.
pub(crate) fn reserve(bytes: usize, align: usize) -> Option<usize> {
    let total = bytes.checked_add(align)?;
    let start = sys::mmap(0, total, libc::PROT_NONE, libc::MAP_NORESERVE)?;
    let aligned = start.next_multiple_of(align);
    // SAFETY: the ends of the mapping just made.
    unsafe {
        if aligned > start {
            sys::munmap(start, aligned - start);
        }
        if start + total > aligned + bytes {
            sys::munmap(aligned + bytes, start + total - aligned - bytes);
        }
    }
    Some(aligned)
}

/// An address with `bytes` bytes of address space behind it that are most likely free and stay
/// free.
pub(crate) fn hole(bytes: usize, align: usize, random: u64) -> Option<usize> {
    // The kernel places mappings downwards from `there`, or upwards from a third of the address
    // space. Programs and their heaps lie at its start or above its half. The hole lies from a
    // quarter to a half of `there`.
    let there = sys::mmap(0, PAGE_SIZE, libc::PROT_NONE, libc::MAP_NORESERVE)?;
    // SAFETY: just mapped.
    unsafe { sys::munmap(there, PAGE_SIZE) };
    let room = (there / 4).checked_sub(bytes.checked_add(align)?)?;
    let offset = random as usize % (room + 1);
    Some((there / 4 + offset).next_multiple_of(align))
}

/// Reserves exactly this range. Returns false, without any effect, if a part of it is in use or the
/// kernel refuses.
pub(crate) fn reserve_at(start: usize, bytes: usize) -> bool {
    let flags = libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    match sys::mmap(start, bytes, libc::PROT_NONE, flags) {
        Some(there) if there == start => true,
        Some(elsewhere) => {
            // Kernels before 4.17 take the address as a hint. SAFETY: just mapped.
            unsafe { sys::munmap(elsewhere, bytes) };
            false
        }
        None => false,
    }
}

/// Whether a limit of the process counts reserved or committed memory that is not in use. Asks the
/// system.
pub(crate) fn is_limited() -> bool {
    let limits = [libc::RLIMIT_AS, libc::RLIMIT_DATA];
    (limits.into_iter()).any(|resource| start::limit(resource as usize) != usize::MAX)
}
