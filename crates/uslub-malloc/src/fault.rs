//! The program's action at SIGSEGV, while guarded objects are watched.
//!
//! The handler of [`fault`](uslub_linux::fault) stands in front of the program's. So `sigaction`
//! and its like keep the program's action there instead of telling the kernel, and the program sees
//! its own action. For all other signals, and without guarded objects, the calls are passed on.
//!
//! | call | its handler |
//! |---|---|
//! | `sigaction` | as its arguments say |
//! | `signal`, `bsd_signal`, `ssignal` | stays, and restarts system calls |
//! | `sysv_signal`, `__sysv_signal` | runs once, and may interrupt itself |
//! | `sigset` | stays |
//! | `sigignore` | none |
//!
//! Any thread may call, in a signal handler too.

use core::ffi::c_int;

use libc::{SIGSEGV, sighandler_t};
use uslub_linux::fault::{self, Action};

use crate::next::{self, Next, call_next};
use crate::set_errno;

static SIGACTION: Next = Next::new(c"sigaction");
static SIGIGNORE: Next = Next::new(c"sigignore");
/// `sigset`'s request to block the signal.
const SIG_HOLD: sighandler_t = 2;

/// Looks up the next definitions.
pub(crate) fn prepare() {
    next::resolve(&[&SIGACTION, &SIGIGNORE]);
    next::resolve(&SIGNALS.each_ref());
}

/// Whether a call is about the signal that is watched.
#[inline]
fn is_watched(signal: c_int) -> bool {
    signal == SIGSEGV && fault::is_watching()
}

/// The first 64 signals of a set, as the kernel has them.
fn mask_of(set: &libc::sigset_t) -> u64 {
    // SAFETY: a set has at least eight bytes, of which the first are the kernel's.
    unsafe { core::ptr::from_ref(set).cast::<u64>().read_unaligned() }
}

/// Examines and changes the action at a signal.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_watched(signal) {
        return call_next!(
            SIGACTION,
            unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
            (signal, new, old),
            or {
                set_errno(libc::ENOSYS);
                -1
            }
        );
    }
    // SAFETY: the caller's records, or null.
    unsafe {
        let wanted = new.as_ref().map(|new| Action {
            handler: new.sa_sigaction,
            flags: new.sa_flags as u32 as u64,
            mask: mask_of(&new.sa_mask),
        });
        let before = fault::exchange(wanted);
        if let Some(old) = old.as_mut() {
            *old = core::mem::zeroed();
            old.sa_sigaction = before.handler;
            old.sa_flags = before.flags as c_int;
            core::ptr::from_mut(&mut old.sa_mask)
                .cast::<u64>()
                .write_unaligned(before.mask);
        }
    }
    0
}

/// Sets a handler with these flags; returns the one before.
fn set_handler(handler: sighandler_t, flags: c_int, mask: u64) -> sighandler_t {
    let action = Action {
        handler,
        flags: u64::from(flags as u32),
        mask,
    };
    fault::exchange(Some(action)).handler
}

/// The signal's own bit of a mask.
const OWN: u64 = 1 << (SIGSEGV - 1);
const ONCE: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;

macro_rules! signals {
    ($($at:literal, $name:ident, $text:literal, $flags:expr, $mask:expr;)*) => {
        static SIGNALS: [Next; [$($at),*].len()] = [$(Next::new($text)),*];

        $(
            /// Sets the handler of a signal; returns the one before, or `SIG_ERR`.
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
                if is_watched(signal) && handler != libc::SIG_ERR && !is_hold($text, handler) {
                    return set_handler(handler, $flags, $mask);
                }
                call_next!(
                    SIGNALS[$at],
                    unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t,
                    (signal, handler),
                    or {
                        set_errno(libc::ENOSYS);
                        libc::SIG_ERR
                    }
                )
            }
        )*
    };
}

signals! {
    0, signal, c"signal", libc::SA_RESTART, OWN;
    1, bsd_signal, c"bsd_signal", libc::SA_RESTART, OWN;
    2, ssignal, c"ssignal", libc::SA_RESTART, OWN;
    3, sysv_signal, c"sysv_signal", ONCE, 0;
    4, __sysv_signal, c"__sysv_signal", ONCE, 0;
    5, sigset, c"sigset", 0, 0;
}

/// Whether the call only blocks the signal, which changes no action.
fn is_hold(name: &core::ffi::CStr, handler: sighandler_t) -> bool {
    handler == SIG_HOLD && name == c"sigset"
}

/// Ignores a signal.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if is_watched(signal) {
        set_handler(libc::SIG_IGN, 0, 0);
        return 0;
    }
    call_next!(SIGIGNORE, unsafe extern "C" fn(c_int) -> c_int, (signal), or {
        set_errno(libc::ENOSYS);
        -1
    })
}
