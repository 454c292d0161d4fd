//! Programs that change their rights or forbid themselves system calls.
//!
//! The helper has the rights that the program had when the helper started. The C library does not
//! know the helper, so a call that changes the rights of all threads leaves the helper's rights as
//! they are. So each wrapper ends the helper first, and none starts until the call returns. Before
//! a program forbids itself system calls, the sandbox is recorded too: from then on the allocator
//! makes only calls that an ordinary allocator makes.
//!
//! | call | before it |
//! |---|---|
//! | `set*id`, `setgroups`, `initgroups`, `capset` | the helper ends |
//! | `unshare`, `setns`, `chroot`, `pivot_root` | the same, though some change one thread only |
//! | `prctl` that changes rights | the same |
//! | `landlock_restrict_self`, `keyctl` by `syscall` | the same |
//! | `seccomp`, `prctl(PR_SET_SECCOMP)` | the same, and the sandbox is recorded |

use libc::{c_char, c_int, c_long, c_ulong, gid_t, size_t, uid_t};
use uslub_linux::sys;

use crate::next::call_next;
use crate::{ALLOCATOR, helper, set_errno};

/// `libc` does not define it for every architecture.
const PR_SET_SPECULATION_CTRL: c_int = 53;

/// Operations of `prctl` that change the rights of the calling thread, or of threads that it
/// starts.
const RIGHTS: &[c_int] = &[
    libc::PR_SET_KEEPCAPS,
    libc::PR_SET_SECCOMP,
    libc::PR_CAPBSET_DROP,
    libc::PR_SET_SECUREBITS,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_CAP_AMBIENT,
    PR_SET_SPECULATION_CTRL,
    libc::PR_SCHED_CORE,
];

/// Acts before a system call that the program makes by its number. `arguments` has three elements
/// or more.
pub(crate) fn before_system_call(number: c_long, arguments: &[usize]) {
    match number {
        // A null filter only asks whether the kernel supports filters.
        libc::SYS_seccomp
            if arguments[0] == libc::SECCOMP_SET_MODE_STRICT as usize
                || arguments[0] == libc::SECCOMP_SET_MODE_FILTER as usize && arguments[2] != 0 =>
        {
            ALLOCATOR.platform.enter_sandbox();
            helper::stop();
        }
        libc::SYS_prctl => {
            if arguments[0] as c_int == libc::PR_SET_SECCOMP {
                ALLOCATOR.platform.enter_sandbox();
            }
            if RIGHTS.contains(&(arguments[0] as c_int)) {
                helper::stop();
            }
        }
        libc::SYS_unshare
        | libc::SYS_setns
        | libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_setgroups
        | libc::SYS_capset
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_landlock_restrict_self
        | libc::SYS_keyctl => helper::stop(),
        _ => {}
    }
}

/// Returns the kernel's result as the C library does.
pub(crate) fn returned(result: isize) -> c_long {
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result as c_long
}

/// Makes the system call, if no other library defines the function.
fn call(number: c_long, args: [usize; 6]) -> c_int {
    // SAFETY: passed on from the program.
    returned(unsafe { sys::call(number, args) }) as c_int
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
    let filters = option == libc::PR_SET_SECCOMP;
    let was_sandboxed = ALLOCATOR.platform.is_sandboxed();
    if filters {
        ALLOCATOR.platform.enter_sandbox();
    }
    let _hold = RIGHTS.contains(&option).then(helper::hold);
    let result = call_next!(
        nexts::prctl,
        unsafe extern "C" fn(c_int, ...) -> c_int,
        (option, a, b, c, d),
        or {
            let [a, b, c, d] = [a, b, c, d].map(|n| n as usize);
            call(libc::SYS_prctl, [option as usize, a, b, c, d, 0])
        }
    );
    if filters && result != 0 && !was_sandboxed {
        // A program may only ask whether the kernel supports filters.
        ALLOCATOR.platform.leave_sandbox();
    }
    result
}

/// Functions of the C library that end the helper first. Each calls the next definition, or without
/// one evaluates `otherwise`.
macro_rules! without_helper {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($arg:ident: $type:ty),*) otherwise $otherwise:expr;
    )*) => {$(
        $(#[$attribute])*
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            let _hold = helper::hold();
            call_next!(nexts::$name, unsafe extern "C" fn($($type),*) -> c_int, ($($arg),*), or $otherwise)
        }
    )*

    /// The next definitions, by the functions' names.
    #[allow(non_upper_case_globals)]
    mod nexts {
        use crate::next::{self, Next};

        /// A function's name in the loader's form.
        const fn name(bytes: &'static [u8]) -> &'static core::ffi::CStr {
            match core::ffi::CStr::from_bytes_with_nul(bytes) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero bytes"),
            }
        }

        pub(super) static prctl: Next = Next::new(c"prctl");
        $(pub(super) static $name: Next =
            Next::new(name(concat!(stringify!($name), "\0").as_bytes()));)*

        /// Looks up all of them.
        pub(super) fn resolve() {
            next::resolve(&[&prctl, $(&$name),*]);
        }
    }
    };
}

/// Looks up the next definitions.
pub(crate) fn prepare() {
    nexts::resolve();
}

/// The kernel's value for "leave it as it is".
const SAME: usize = u32::MAX as usize;

without_helper! {
    /// Leaves namespaces.
    fn unshare(flags: c_int) otherwise
        call(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]);
    /// Joins a namespace.
    fn setns(fd: c_int, kind: c_int) otherwise
        call(libc::SYS_setns, [fd as usize, kind as usize, 0, 0, 0, 0]);
    /// Changes the root.
    fn chroot(path: *const c_char) otherwise
        call(libc::SYS_chroot, [path as usize, 0, 0, 0, 0, 0]);
    /// Changes the root's mount.
    fn pivot_root(new: *const c_char, old: *const c_char) otherwise
        call(libc::SYS_pivot_root, [new as usize, old as usize, 0, 0, 0, 0]);
    /// Changes the user.
    fn setuid(uid: uid_t) otherwise call(libc::SYS_setuid, [uid as usize, 0, 0, 0, 0, 0]);
    /// Changes the group.
    fn setgid(gid: gid_t) otherwise call(libc::SYS_setgid, [gid as usize, 0, 0, 0, 0, 0]);
    /// Changes the effective user.
    fn seteuid(uid: uid_t) otherwise
        call(libc::SYS_setresuid, [SAME, uid as usize, SAME, 0, 0, 0]);
    /// Changes the effective group.
    fn setegid(gid: gid_t) otherwise
        call(libc::SYS_setresgid, [SAME, gid as usize, SAME, 0, 0, 0]);
    /// Changes the real and effective users.
    fn setreuid(real: uid_t, effective: uid_t) otherwise
        call(libc::SYS_setreuid, [real as usize, effective as usize, 0, 0, 0, 0]);
    /// Changes the real and effective groups.
    fn setregid(real: gid_t, effective: gid_t) otherwise
        call(libc::SYS_setregid, [real as usize, effective as usize, 0, 0, 0, 0]);
    /// Changes the real, effective and saved users.
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) otherwise
        call(libc::SYS_setresuid, [real as usize, effective as usize, saved as usize, 0, 0, 0]);
    /// Changes the real, effective and saved groups.
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) otherwise
        call(libc::SYS_setresgid, [real as usize, effective as usize, saved as usize, 0, 0, 0]);
    /// Changes the user for files.
    fn setfsuid(uid: uid_t) otherwise call(libc::SYS_setfsuid, [uid as usize, 0, 0, 0, 0, 0]);
    /// Changes the group for files.
    fn setfsgid(gid: gid_t) otherwise call(libc::SYS_setfsgid, [gid as usize, 0, 0, 0, 0, 0]);
    /// Changes the supplementary groups.
    fn setgroups(count: size_t, groups: *const gid_t) otherwise
        call(libc::SYS_setgroups, [count, groups as usize, 0, 0, 0, 0]);
    /// Changes the supplementary groups to those of a user.
    fn initgroups(user: *const c_char, group: gid_t) otherwise {
        let _ = (user, group);
        set_errno(libc::ENOSYS);
        -1
    };
    /// Changes the capabilities.
    fn capset(header: *mut u8, data: *const u8) otherwise
        call(libc::SYS_capset, [header as usize, data as usize, 0, 0, 0, 0]);
}
