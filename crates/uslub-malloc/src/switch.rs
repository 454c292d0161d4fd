//! `slab_debug` for size classes, switched by a program that runs.
//!
//! Any thread may call.

use core::ffi::{c_char, c_int};

use uslub_core::kmalloc::SwitchError;
use uslub_linux::switch::switch_by;

use crate::{ALLOCATOR, start};

fn switch(value: &str) -> Result<(), SwitchError<'_>> {
    (ALLOCATOR.platform).on_request(|| ALLOCATOR.switch_classes(value))
}

/// Debugs size classes from now on, or stops that, by a value of `slab_debug` such as
/// `FZPU,kmalloc-48` or `-`. Returns 0. Returns -1 after a message, with nothing switched: with
/// `EINVAL` for an unknown letter or name, with `ENOMEM` if there is no memory, with `EOPNOTSUPP`
/// if the process cannot be switched.
///
/// # Safety
///
/// `value` is null or a C string that does not change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_malloc_set_debug(value: *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe { switch_by(value, start::ready, switch) }
}
