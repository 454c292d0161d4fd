//! Programs that limit their own address space: the part of our reservation that is not in
//! use counts against such a limit, so it is given back before the limit is set.

use libc::{c_int, pid_t, rlimit};
use uslub_linux::start;
use uslub_linux::sys;

use crate::{ALLOCATOR, set_errno};

fn set(pid: pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int {
    let ours = pid == 0 || pid as u32 == sys::getpid();
    if ours && resource as u32 == libc::RLIMIT_AS && !new.is_null() && ALLOCATOR.ready() {
        // SAFETY: the caller passes a limit.
        let bytes = unsafe { (*new).rlim_cur } as usize;
        if bytes != libc::RLIM_INFINITY as usize {
            ALLOCATOR
                .zone
                .trim_reservation(&ALLOCATOR.platform, bytes / 2);
        }
    }
    match start::prlimit(pid, resource as usize, new, old) {
        0 => 0,
        error => {
            set_errno(-error as c_int);
            -1
        }
    }
}

macro_rules! wrappers {
    ($($set:ident, $prlimit:ident;)*) => {$(
        /// Sets a limit of this process.
        ///
        /// # Safety
        ///
        /// `new` points to a limit.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(resource: c_int, new: *const rlimit) -> c_int {
            set(0, resource, new, core::ptr::null_mut())
        }

        /// Asks for and sets a limit of a process.
        ///
        /// # Safety
        ///
        /// `new` and `old` are null or point to limits.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $prlimit(pid: pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int {
            set(pid, resource, new, old)
        }
    )*};
}

wrappers! {
    setrlimit, prlimit;
    setrlimit64, prlimit64;
}
