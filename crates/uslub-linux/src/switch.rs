//! `slab_debug` for size classes of a running process, as the C functions of the faces take it.
//!
//! Any thread may call.

use core::ffi::{CStr, c_char, c_int};

use libc::{EINVAL, ENOMEM, EOPNOTSUPP};
use uslub_core::kmalloc::SwitchError;

use crate::{complain, set_errno};

/// Passes a value of `slab_debug` to `switch`, which is
/// [`switch_classes`](uslub_core::Allocator::switch_classes) on
/// [request](crate::Linux::on_request). (A face calls it, so that no code of the allocator is
/// compiled in this crate, with other decisions on inlining.) `ready` sets the allocator up.
///
/// Returns 0, or -1 with an error number in `errno`, after a message: `EINVAL` for a value that is
/// null, or has an unknown letter or name; `ENOMEM` without memory for a twin; `EOPNOTSUPP` with
/// `hardened=1`, or if the system refuses `membarrier`. Then nothing is switched. Without memory
/// for the allocator there is no message.
///
/// # Safety
///
/// `value` is null or a C string that does not change.
pub unsafe fn switch_by(
    value: *const c_char,
    ready: fn() -> bool,
    switch: fn(&str) -> Result<(), SwitchError<'_>>,
) -> c_int {
    let switched = match ready() {
        // SAFETY: passed on.
        true => unsafe { text_of(value) }.and_then(|value| switch(value).map_err(refused)),
        false => Err(ENOMEM),
    };
    switched.map_err(set_errno).map_or(-1, |()| 0)
}

/// The text of a value; an error number, after a message, if there is none.
///
/// # Safety
///
/// As for [`switch_by`].
unsafe fn text_of<'v>(value: *const c_char) -> Result<&'v str, c_int> {
    if value.is_null() {
        complain(format_args!("slab_debug: the value is null"));
        return Err(EINVAL);
    }
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(value) }.to_str();
    text.map_err(|_| {
        complain(format_args!("slab_debug: the value is not UTF-8"));
        EINVAL
    })
}

/// Says why nothing was switched; returns the error number.
fn refused(error: SwitchError<'_>) -> c_int {
    complain(format_args!("{error}"));
    match error {
        SwitchError::Create(_) => ENOMEM,
        SwitchError::Hardened | SwitchError::NoFence => EOPNOTSUPP,
        _ => EINVAL,
    }
}
