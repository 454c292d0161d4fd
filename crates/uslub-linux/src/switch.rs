//! `slab_debug` for size classes of a running process, as the C functions of the faces take it.
//!
//! Any thread may call.

use core::ffi::{CStr, c_char, c_int};

use libc::{EINVAL, ENOMEM, EOPNOTSUPP};
use uslub_core::Allocator;
use uslub_core::kmalloc::SwitchError;

use crate::{Linux, complain};

/// Switches size classes by a value of `slab_debug`; see [`Allocator::switch_classes`].
///
/// # Errors
///
/// An error number, after a message: `EINVAL` for a value that is null, or has an unknown letter or
/// name; `ENOMEM` without memory for a twin; `EOPNOTSUPP` with `hardened=1`, or if the system
/// refuses `membarrier`. Then nothing is switched.
///
/// # Safety
///
/// `value` is null or a C string that does not change.
pub unsafe fn switch_classes(
    allocator: &Allocator<Linux>,
    value: *const c_char,
) -> Result<(), c_int> {
    if value.is_null() {
        complain(format_args!("slab_debug: the value is null"));
        return Err(EINVAL);
    }
    // SAFETY: by the caller's promise.
    let Ok(value) = unsafe { CStr::from_ptr(value) }.to_str() else {
        complain(format_args!("slab_debug: the value is not UTF-8"));
        return Err(EINVAL);
    };
    let switched = (allocator.platform).on_request(|| allocator.switch_classes(value));
    switched.map_err(|error| {
        complain(format_args!("{error}"));
        match error {
            SwitchError::Create(_) => ENOMEM,
            SwitchError::Hardened | SwitchError::NoFence => EOPNOTSUPP,
            _ => EINVAL,
        }
    })
}
