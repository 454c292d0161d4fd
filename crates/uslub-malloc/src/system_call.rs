//! `syscall`: system calls that the program makes by their numbers.

use core::ffi::c_void;

use libc::c_long;
use uslub_linux::sys;

use crate::sandbox;

/// Any system call.
///
/// # Safety
///
/// As for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: *mut c_void,
    b: *mut c_void,
    c: *mut c_void,
    d: *mut c_void,
    e: *mut c_void,
    f: *mut c_void,
) -> c_long {
    let args = [a, b, c, d, e, f].map(|p| p as usize);
    sandbox::before_system_call(number, &args);
    // SAFETY: passed on.
    sandbox::returned(unsafe { sys::call(number, args) })
}
