//! Memory for callers that must not wait for the set-up.
//!
//! Two kinds of caller are barred from waiting, because the set-up would never end for them:
//!
//! - a call from inside the set-up, on the thread that runs it: from a signal handler, or from a
//!   library that wraps a function which the set-up calls;
//! - the child of a fork that another thread made meanwhile: it has no thread that ends the set-up.
//!
//! They get objects from one mapping, placed one behind the other. A free does nothing. The objects
//! stay valid after the set-up.
//!
//! ```text
//!  mapping: | its size | size, object | size, object | … | not used yet |
//! ```
//!
//! Any thread and any signal handler may call: all state is two words, changed by compare-and-swap.

use core::ptr::null_mut;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::{MAP_NORESERVE, PROT_READ, PROT_WRITE};
use uslub_linux::sys;

/// Bytes of the mapping: the first size that the system grants. Untouched pages cost nothing.
const SIZES: [usize; 3] = [64 << 20, 1 << 20, 64 << 10];
/// Minimum alignment of an object, and size of the header before it, in bytes.
const UNIT: usize = 16;

/// Address of the mapping; 0 before it is made.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Bytes handed out, including the mapping's own header.
static USED: AtomicUsize = AtomicUsize::new(UNIT);

/// The mapping's start and end, if it was made.
fn bounds() -> Option<(usize, usize)> {
    // Acquire: pairs with `mapping`, which wrote the size into the first word.
    let base = BASE.load(Acquire);
    // SAFETY: the size was written before the base was published.
    (base != 0).then(|| (base, base + unsafe { *(base as *const usize) }))
}

/// The mapping's start and end; the first call makes the mapping. A signal handler may interrupt
/// this anywhere and call it again.
fn mapping() -> Option<(usize, usize)> {
    if let Some(bounds) = bounds() {
        return Some(bounds);
    }
    let (base, bytes) = SIZES.iter().find_map(|&bytes| {
        let base = sys::mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE)?;
        Some((base, bytes))
    })?;
    // SAFETY: the mapping is ours.
    unsafe { (base as *mut usize).write(bytes) };
    // AcqRel: publishes the size, or sees the size of the other caller's mapping.
    if BASE.compare_exchange(0, base, AcqRel, Acquire).is_err() {
        // SAFETY: no other code knows this mapping.
        unsafe { sys::munmap(base, bytes) };
    }
    bounds()
}

/// An object of `bytes` zero bytes, or null. `align` is a power of two, in bytes.
pub(crate) fn allocate(bytes: usize, align: usize) -> *mut u8 {
    let Some((base, end)) = mapping() else {
        return null_mut();
    };
    let align = align.max(UNIT);
    // Room for the header, at any start.
    let room = bytes
        .checked_next_multiple_of(UNIT)
        .and_then(|bytes| bytes.checked_add(align));
    let Some(room) = room.filter(|&room| room <= end - base) else {
        return null_mut();
    };
    // Relaxed: the compare-and-swap alone gives each caller its own part.
    let mut used = USED.load(Relaxed);
    loop {
        if room > end - base - used {
            return null_mut();
        }
        // Relaxed: as above.
        match USED.compare_exchange(used, used + room, Relaxed, Relaxed) {
            Ok(_) => break,
            Err(now) => used = now,
        }
    }
    let object = (base + used + UNIT).next_multiple_of(align);
    // SAFETY: within this caller's part, which has the header before the object.
    unsafe { ((object - UNIT) as *mut usize).write(bytes) };
    object as *mut u8
}

/// Whether an object is from this mapping.
#[inline]
pub(crate) fn owns(object: *const u8) -> bool {
    bounds().is_some_and(|(base, end)| (base..end).contains(&(object as usize)))
}

/// The size that was requested, in bytes.
///
/// # Safety
///
/// The object is from this mapping.
pub(crate) unsafe fn size(object: *const u8) -> usize {
    // SAFETY: the header lies before the object.
    unsafe { *object.sub(UNIT).cast::<usize>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_apart_aligned_and_know_their_size() {
        assert!(!owns(null_mut()) && !owns([0u8; 1].as_ptr()));
        let mut last = 0;
        for (bytes, align) in [(0, 1), (1, 1), (100, 64), (5000, 4096), (16, 16)] {
            let object = allocate(bytes, align);
            assert!(object as usize >= last && (object as usize).is_multiple_of(align.max(UNIT)));
            // SAFETY: just handed out.
            unsafe {
                assert!(owns(object) && size(object) == bytes);
                (0..bytes).for_each(|at| assert_eq!(*object.add(at), 0));
                object.write_bytes(0xff, bytes);
            }
            last = object as usize + bytes;
        }
        for bytes in [SIZES[0], usize::MAX, usize::MAX - 20] {
            assert!(allocate(bytes, 16).is_null());
        }
        assert!(allocate(1, 1 << 40).is_null());
    }
}
