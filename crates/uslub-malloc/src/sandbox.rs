//! Programs that shut themselves in: before they forbid themselves system calls, or ask for what only
//! a process with one thread is given, the helper is ended; and in a sandbox
//! we make no call that an ordinary allocator would not make.

use libc::{c_int, c_long, c_ulong};
use uslub_linux::sys;

use crate::next::{self, Next, call_next};
use crate::{ALLOCATOR, helper, set_errno};

static PRCTL: Next = Next::new(c"prctl");
static UNSHARE: Next = Next::new(c"unshare");
static SETNS: Next = Next::new(c"setns");

/// Looks the next definitions up.
pub(crate) fn prepare() {
    next::resolve(&[&PRCTL, &UNSHARE, &SETNS]);
}

fn enter() {
    ALLOCATOR.platform.enter_sandbox();
    helper::stop();
}

/// What must happen before a system call that the program makes by its number.
pub(crate) fn before_system_call(number: c_long) {
    match number {
        libc::SYS_seccomp => enter(),
        libc::SYS_unshare | libc::SYS_setns => helper::stop(),
        _ => {}
    }
}

/// The C library's way to return what the kernel returned.
pub(crate) fn returned(result: isize) -> c_long {
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result as c_long
}

/// Operations on a process.
///
/// # Safety
///
/// As for the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        enter();
    }
    let arguments = [
        option as usize,
        a as usize,
        b as usize,
        c as usize,
        d as usize,
        0,
    ];
    call_next!(PRCTL, unsafe extern "C" fn(c_int, ...) -> c_int, (option, a, b, c, d), or {
        // SAFETY: passed on.
        returned(unsafe { sys::call(libc::SYS_prctl, arguments) }) as c_int
    })
}

/// Leaves namespaces.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    helper::stop();
    call_next!(UNSHARE, unsafe extern "C" fn(c_int) -> c_int, (flags), or {
        // SAFETY: passed on.
        returned(unsafe { sys::call(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
    })
}

/// Joins a namespace.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    helper::stop();
    let arguments = [fd as usize, kind as usize, 0, 0, 0, 0];
    call_next!(SETNS, unsafe extern "C" fn(c_int, c_int) -> c_int, (fd, kind), or {
        // SAFETY: passed on.
        returned(unsafe { sys::call(libc::SYS_setns, arguments) }) as c_int
    })
}
