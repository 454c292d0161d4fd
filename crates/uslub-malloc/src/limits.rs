//! Programs that limit their own memory, or lock it: what the allocator has and does not use counts too,
//! so it is given back before.

use core::ffi::c_void;
use core::mem::transmute;

use libc::{c_int, pid_t, rlimit};
use uslub_linux::start;
use uslub_linux::sys;

use crate::next::Next;
use crate::sandbox::returned;
use crate::{ALLOCATOR, set_errno};

fn set(pid: pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int {
    let ours = pid == 0 || pid as u32 == sys::getpid();
    let counts = [libc::RLIMIT_AS, libc::RLIMIT_DATA].contains(&(resource as u32));
    if ours && counts && !new.is_null() && ALLOCATOR.ready() {
        // SAFETY: the caller passes a limit.
        let bytes = unsafe { (*new).rlim_cur } as usize;
        if bytes != libc::RLIM_INFINITY as usize {
            ALLOCATOR.zone.shed(&ALLOCATOR.platform, bytes / 2);
            ALLOCATOR.release_unused();
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

static MLOCKALL: Next = Next::new(c"mlockall");

/// Locks all memory of this process. What the allocator has and does not use goes back before: it would be locked too, and counted.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if ALLOCATOR.ready() {
        ALLOCATOR.zone.shed(&ALLOCATOR.platform, 0);
        ALLOCATOR.release_unused();
    }
    if let Some(next) = MLOCKALL.get() {
        // SAFETY: the C library's function of this name has this type.
        let next =
            unsafe { transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(next.as_ptr()) };
        return next(flags);
    }
    // SAFETY: passed on.
    returned(unsafe { sys::call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
}
