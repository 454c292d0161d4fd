//! An rseq area of our own, for threads of programs whose C library registers none.
//!
//! It lies in thread-local memory at a fixed offset from the thread pointer, the same in every
//! thread, like the C library's. Every sequence tests the sign of `cpu_id`. A thread's slow path
//! registers it ([`register`]).
//!
//! | `cpu_id` | the thread is |
//! |---|---|
//! | -1 | not registered yet |
//! | -2 | never registered: the kernel refused |
//! | other | registered |

use crate::thread::{self, SIGNATURE};

pub(crate) use crate::thread::own_offset as offset;

/// Bytes of the area, as registered with the kernel.
const BYTES: usize = 32;
const REFUSED: u32 = -2i32 as u32;

/// Registers this thread's own area. Returns false if the kernel refuses; the thread then never
/// asks again.
pub(crate) fn register() -> bool {
    let area = thread::pointer().wrapping_add_signed(offset());
    // SAFETY: the area is this thread's, has this size and alignment, and lives as long as the
    // thread.
    let result =
        unsafe { thread::call(libc::SYS_rseq, [area, BYTES, 0, SIGNATURE as usize, 0, 0]) };
    if result != 0 {
        // SAFETY: the area is not registered, so it is ours to write.
        unsafe { (area as *mut u32).add(1).write_volatile(REFUSED) };
    }
    result == 0
}

/// Registers this thread's area at an offset, unless it is registered. Returns whether it is
/// registered now.
pub(crate) fn register_at(offset: isize) -> bool {
    let area = thread::pointer().wrapping_add_signed(offset);
    // SAFETY: the area is this thread's, has at least this size, and lives as long as the thread.
    let result =
        unsafe { thread::call(libc::SYS_rseq, [area, BYTES, 0, SIGNATURE as usize, 0, 0]) };
    // The kernel returns EBUSY if this area is registered, EINVAL if it is registered with another
    // size.
    [0, -(libc::EBUSY as isize), -(libc::EINVAL as isize)].contains(&result)
}
