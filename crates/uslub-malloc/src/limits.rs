//! Programs that limit their own memory, or lock it.
//!
//! The limit and the lock count what the allocator has but does not use too. So before each such
//! call the allocator gives it back, and from then on reserves and commits nothing ahead of use.
//! The wrappers are the C library's functions; any thread of the program may call them.

use libc::{c_int, pid_t, rlimit};
use uslub_linux::start;
use uslub_linux::sys;

use crate::ALLOCATOR;
use crate::next::{self, Next, call_next};
use crate::sandbox::returned;

/// Gives unused memory back if a limit on this process's memory is about to be set.
fn before(pid: pid_t, resource: c_int, new: *const rlimit) {
    let ours = pid == 0 || pid as u32 == sys::getpid();
    // The type of these numbers differs between C libraries.
    let counts = [libc::RLIMIT_AS as c_int, libc::RLIMIT_DATA as c_int].contains(&resource);
    if ours && counts && !new.is_null() && ALLOCATOR.ready() {
        // SAFETY: the caller passes a valid limit.
        let bytes = unsafe { (*new).rlim_cur } as usize;
        if bytes != libc::RLIM_INFINITY as usize {
            ALLOCATOR.platform.memory_is_limited();
            ALLOCATOR.zone.shed(&ALLOCATOR.platform, bytes / 2);
            ALLOCATOR.release_unused();
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

        /// Reads and sets a limit of a process.
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
    /// Looks up the next definitions.
    pub(crate) fn prepare() {
        $(next::resolve(&$nexts.each_ref());)*
        next::resolve(&[&MLOCKALL, &MUNLOCKALL]);
    }
    };
}

wrappers! {
    setrlimit, prlimit, NEXT, c"setrlimit", c"prlimit";
    setrlimit64, prlimit64, NEXT_64, c"setrlimit64", c"prlimit64";
}

static MLOCKALL: Next = Next::new(c"mlockall");

/// Locks all memory of this process. The allocator first gives back what it does not use, because
/// it would be locked and counted too.
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if ALLOCATOR.ready() {
        ALLOCATOR.zone.shed(&ALLOCATOR.platform, 0);
        ALLOCATOR.release_unused();
    }
    let before = ALLOCATOR.platform.memory_is_locked(true);
    let result = call_next!(MLOCKALL, extern "C" fn(c_int) -> c_int, (flags), or {
        // SAFETY: passed on.
        returned(unsafe { sys::call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
    });
    if result != 0 {
        ALLOCATOR.platform.memory_is_locked(before);
    }
    result
}

static MUNLOCKALL: Next = Next::new(c"munlockall");

/// Ends the lock of [`mlockall`].
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    let result = call_next!(MUNLOCKALL, extern "C" fn() -> c_int, (), or {
        // SAFETY: passed on.
        returned(unsafe { sys::call(libc::SYS_munlockall, [0; 6]) }) as c_int
    });
    if result == 0 {
        ALLOCATOR.platform.memory_is_locked(false);
    }
    result
}
