//! An rseq area of our own, for threads of programs whose C library registers none.
//!
//! It lies in thread-local memory at a fixed offset from the thread pointer, the same in every
//! thread, like the C library's. Every sequence tests the sign of `cpu_id`. A thread's slow path
//! registers it ([`register`]).
//!
//! | `cpu_id` | the thread is |
//! |---|---|
//! | -1 | not registered yet |
//! | -2 | never registered: the kernel refused, or a thread of musl is about to end |
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
    } else {
        #[cfg(target_env = "musl")]
        leaving::watch();
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

/// The end of a registration before that of its thread.
///
/// A detached thread of musl unmaps its own stack, with the area, and only then calls the kernel
/// to end. A kernel that stores the CPU's number meanwhile ends the process by SIGSEGV. So a
/// destructor of the thread's data ends the registration; what the thread still allocates takes
/// slow paths.
#[cfg(target_env = "musl")]
mod leaving {
    use core::ffi::c_void;
    use core::ptr::without_provenance;
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::{AcqRel, Acquire};

    use super::{BYTES, REFUSED, SIGNATURE, offset, thread};

    const NO_KEY: u32 = u32::MAX;
    const UNREGISTER: usize = 1;
    static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

    /// Has the destructor run at this thread's end. Without a free key it does not run.
    pub(super) fn watch() {
        let key = key();
        if key != NO_KEY {
            // SAFETY: a key of ours. musl stores the value in the thread, without an allocation.
            unsafe { libc::pthread_setspecific(key, without_provenance(1)) };
        }
    }

    fn key() -> u32 {
        // Acquire: pairs with the exchange, so that the key is made.
        let known = KEY.load(Acquire);
        if known != NO_KEY {
            return known;
        }
        let mut new = NO_KEY;
        // SAFETY: writes the key only. The destructor is never unloaded.
        if unsafe { libc::pthread_key_create(&mut new, Some(leave)) } != 0 {
            return NO_KEY;
        }
        // Release: publishes the key. Acquire: as above, for another thread's key.
        match KEY.compare_exchange(NO_KEY, new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: no other thread knows this key.
                unsafe { libc::pthread_key_delete(new) };
                other
            }
        }
    }

    unsafe extern "C" fn leave(_: *mut c_void) {
        let area = thread::pointer().wrapping_add_signed(offset());
        loop {
            let arguments = [area, BYTES, UNREGISTER, SIGNATURE as usize, 0, 0];
            // SAFETY: the area is this thread's.
            let result = unsafe { thread::call(libc::SYS_rseq, arguments) };
            // SAFETY: the area is not registered, so it is ours to write. If a signal handler has
            // registered it again, the next round ends that.
            unsafe { (area as *mut u32).add(1).write_volatile(REFUSED) };
            if result != 0 {
                return;
            }
        }
    }
}
