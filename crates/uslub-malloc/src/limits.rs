//! Programs that limit their own address space: the part of our reservation that is not in
//! use counts against such a limit, so it is given back before the limit is set.

use libc::{c_int, pid_t, rlimit};
use uslub_linux::start;
use uslub_linux::sys;

use crate::ALLOCATOR;
use crate::next::{self, Next, call_next};
use crate::sandbox::returned;

/// What must happen before a limit of a process is set.
fn before(pid: pid_t, resource: c_int, new: *const rlimit) {
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
}

macro_rules! wrappers {
    ($($set:ident, $prlimit:ident, $nexts:ident, $set_name:literal, $prlimit_name:literal;)*) => {$(
        static $nexts: [Next; 2] = [Next::new($set_name), Next::new($prlimit_name)];

        /// Sets a limit of this process.
        ///
        /// # Safety
        ///
        /// `new` points to a limit.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(resource: c_int, new: *const rlimit) -> c_int {
            before(0, resource, new);
            call_next!($nexts[0], unsafe extern "C" fn(c_int, *const rlimit) -> c_int, (resource, new), or {
                returned(start::prlimit(0, resource as usize, new, core::ptr::null_mut())) as c_int
            })
        }

        /// Asks for and sets a limit of a process.
        ///
        /// # Safety
        ///
        /// `new` and `old` are null or point to limits.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $prlimit(pid: pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int {
            before(pid, resource, new);
            call_next!(
                $nexts[1],
                unsafe extern "C" fn(pid_t, c_int, *const rlimit, *mut rlimit) -> c_int,
                (pid, resource, new, old),
                or returned(start::prlimit(pid, resource as usize, new, old)) as c_int
            )
        }
    )*
    /// Looks the next definitions up.
    pub(crate) fn prepare() {
        $(next::resolve(&$nexts.each_ref());)*
    }
    };
}

wrappers! {
    setrlimit, prlimit, NEXT, c"setrlimit", c"prlimit";
    setrlimit64, prlimit64, NEXT_64, c"setrlimit64", c"prlimit64";
}
