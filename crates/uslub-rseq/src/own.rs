//! An area of our own, for threads of programs whose C library registers none.
//!
//! It lies in thread-local memory of a fixed place, so its offset from the thread pointer is the
//! same in every thread, as with the C library's. A thread that is not registered has a negative
//! `cpu_id` in it, which every sequence tests; its slow path registers it ([`register`]).
//!
//! | `cpu_id` | the thread is |
//! |---|---|
//! | -1 | not registered yet |
//! | -2 | not to be registered: the kernel refused |
//! | other | registered |

use crate::thread::{self, SIGNATURE};

pub(crate) use crate::thread::own_offset as offset;

/// Bytes of the area, as registered.
const BYTES: usize = 32;
const REFUSED: u32 = -2i32 as u32;

/// Registers this thread's own area; false when the kernel refuses, which it is not asked again for
/// this thread.
pub(crate) fn register() -> bool {
    let area = thread::pointer().wrapping_add_signed(offset());
    // SAFETY: the area is this thread's, of that size and alignment, and lives as long as the
    // thread.
    let result =
        unsafe { thread::call(libc::SYS_rseq, [area, BYTES, 0, SIGNATURE as usize, 0, 0]) };
    if result != 0 {
        // SAFETY: not registered, so the area is ours to write.
        unsafe { (area as *mut u32).add(1).write_volatile(REFUSED) };
    }
    result == 0
}

/// Registers this thread's area at an offset, unless it is registered; returns whether it is then.
pub(crate) fn register_at(offset: isize) -> bool {
    let area = thread::pointer().wrapping_add_signed(offset);
    // SAFETY: the area is this thread's, of that size at least, and lives as long as the thread.
    let result =
        unsafe { thread::call(libc::SYS_rseq, [area, BYTES, 0, SIGNATURE as usize, 0, 0]) };
    // The kernel says EBUSY for this area, EINVAL for one of another size.
    [0, -(libc::EBUSY as isize), -(libc::EINVAL as isize)].contains(&result)
}
