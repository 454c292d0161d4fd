//! Memory from the system: address space without access, and access to it. An interpreter (Miri)
//! has no address space to reserve; there a reservation is an allocation whose bytes nobody has
//! written, so that a read of what was never committed is seen too.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use uslub_core::platform::PAGE_SIZE;

/// More than any test needs; absurd requests are refused like the system does.
const LIMIT: usize = 1 << 40;

/// Address space without access.
pub fn reserve(bytes: usize, align: usize) -> Option<usize> {
    (bytes <= LIMIT).then(|| real::reserve(bytes, align))?
}

/// Where so much address space is free, though it is not reserved: each time elsewhere, where the
/// system places nothing by itself. An interpreter has none.
pub fn hole(bytes: usize, align: usize) -> Option<usize> {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    // SeqCst: nothing here is measured.
    let start = NEXT.fetch_add(bytes + align, SeqCst);
    (!cfg!(miri)).then_some(start.next_multiple_of(align))
}

/// Exactly this address space without access; false if any of it is in use.
pub fn reserve_at(start: usize, bytes: usize) -> bool {
    real::reserve_at(start, bytes)
}

/// Zeroed memory, aligned to `page` bytes and no more.
pub fn map(bytes: usize, page: usize) -> Option<usize> {
    (bytes <= LIMIT).then(|| real::map(bytes, page))?
}

/// Gives memory back that [`reserve`] or [`map`] gave, or a part of it.
pub fn unmap(start: usize, bytes: usize) {
    real::unmap(start, bytes);
}

/// Makes a part of a reservation usable; it reads zero where it was never used.
pub fn commit(start: usize, bytes: usize) {
    real::commit(start, bytes);
}

#[cfg(not(miri))]
mod real {
    use std::ptr::null_mut;

    use super::PAGE_SIZE;

    const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn fresh(bytes: usize, protection: i32) -> Option<usize> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping harms nobody.
        let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(start as usize)
    }

    pub fn reserve(bytes: usize, align: usize) -> Option<usize> {
        let start = fresh(bytes + align, libc::PROT_NONE)?;
        let aligned = start.next_multiple_of(align);
        if aligned > start {
            unmap(start, aligned - start);
        }
        unmap(aligned + bytes, start + align - aligned);
        Some(aligned)
    }

    pub fn reserve_at(start: usize, bytes: usize) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let exactly = flags | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: it replaces nothing.
        let there = unsafe { libc::mmap(start as *mut _, bytes, libc::PROT_NONE, exactly, -1, 0) };
        there as usize == start
    }

    pub fn map(bytes: usize, page: usize) -> Option<usize> {
        if page == PAGE_SIZE {
            return fresh(bytes, READ_WRITE);
        }
        let start = fresh(bytes + 2 * page, READ_WRITE)?;
        // An odd multiple: nobody may rely on more.
        let at = (start + page).next_multiple_of(2 * page) - page;
        if at > start {
            unmap(start, at - start);
        }
        unmap(at + bytes, start + 2 * page - at);
        Some(at)
    }

    pub fn unmap(start: usize, bytes: usize) {
        // SAFETY: the platform's records say that the range is the allocator's, who uses it no
        // more.
        assert_eq!(unsafe { libc::munmap(start as *mut _, bytes) }, 0);
    }

    pub fn commit(start: usize, bytes: usize) {
        // SAFETY: inside one of our reservations.
        let done = unsafe { libc::mprotect(start as *mut _, bytes, READ_WRITE) };
        assert_eq!(done, 0);
    }
}

#[cfg(miri)]
mod real {
    use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::PAGE_SIZE;

    /// By start: how it was allocated, and the bytes that are still in use.
    static ALL: Mutex<BTreeMap<usize, (Layout, usize)>> = Mutex::new(BTreeMap::new());

    fn keep(start: *mut u8, layout: Layout) -> Option<usize> {
        if start.is_null() {
            return None;
        }
        let start = start.expose_provenance();
        ALL.lock().unwrap().insert(start, (layout, layout.size()));
        Some(start)
    }

    pub fn reserve(bytes: usize, align: usize) -> Option<usize> {
        let layout = Layout::from_size_align(bytes, align.max(PAGE_SIZE)).ok()?;
        // SAFETY: of some size.
        keep(unsafe { alloc(layout) }, layout)
    }

    pub fn reserve_at(_start: usize, _bytes: usize) -> bool {
        false
    }

    pub fn map(bytes: usize, page: usize) -> Option<usize> {
        let layout = Layout::from_size_align(bytes, page).ok()?;
        // SAFETY: of some size.
        keep(unsafe { alloc_zeroed(layout) }, layout)
    }

    /// What is in part unmapped goes back when all of it is.
    pub fn unmap(start: usize, bytes: usize) {
        let mut all = ALL.lock().unwrap();
        let (&at, (layout, left)) = all.range_mut(..=start).next_back().expect("mapped");
        *left -= bytes;
        if *left == 0 {
            // SAFETY: allocated like this, and used no more.
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(at), *layout) };
            all.remove(&at);
        }
    }

    pub fn commit(start: usize, bytes: usize) {
        // SAFETY: inside one of our reservations.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).write_bytes(0, bytes) };
    }
}
