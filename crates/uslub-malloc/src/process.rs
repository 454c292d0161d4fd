//! Processes that this one becomes: forks, and the end.

use libc::c_int;
use uslub_linux::sys;

use crate::front::FRONT;
use crate::{ALLOCATOR, helper, report, start};

extern "C" fn prepare() {
    if start::ready() {
        ALLOCATOR.lock_for_fork();
    }
}

extern "C" fn parent() {
    if start::ready() {
        // SAFETY: `prepare` took them on this thread.
        unsafe { ALLOCATOR.unlock_after_fork() };
    }
}

extern "C" fn child() {
    if start::ready() {
        ALLOCATOR.platform.is_child_of_fork();
        // SAFETY: the child's only thread; `prepare` took the locks.
        unsafe { ALLOCATOR.reset_after_fork() };
        FRONT.open();
        helper::after_fork_in_child();
        report::after_fork_in_child();
    }
}

/// Registers for forks.
pub(crate) fn register() {
    // SAFETY: the functions live as long as the process: the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// Ends the process at once, after the report.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    report::write();
    loop {
        // SAFETY: ends the process.
        unsafe { sys::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// [`_exit`] under its C99 name.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: passed on.
    unsafe { _exit(status) }
}

/// Runs when the process ends in the ordinary way.
extern "C" fn destructor() {
    report::write();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;
