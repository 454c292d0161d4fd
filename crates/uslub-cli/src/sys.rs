//! System calls that no safe library offers: `wait4`, the inheritance of signal dispositions, and
//! death by a chosen signal. `signals` and `run` use them.

#![allow(unsafe_code)]

use crate::ending::{Ending, Usage};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;
use nix::unistd::Pid;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A change of a child's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The child has ended and is reaped.
    Ended(Ending, Usage),
    /// This signal stopped the child.
    Stopped(i32),
}

/// The change of the child `pid` since the last call; `None` without a change. Does not wait.
///
/// # Errors
///
/// If `pid` is not, or no longer, a child of this process.
pub fn poll_child(pid: Pid) -> io::Result<Option<Change>> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let flags = libc::WNOHANG | libc::WUNTRACED;
    // SAFETY: both pointers are to live variables of the correct types.
    let changed = unsafe { libc::wait4(pid.as_raw(), &mut status, flags, usage.as_mut_ptr()) };
    if changed < 0 {
        return Err(io::Error::last_os_error());
    }
    if changed == 0 {
        return Ok(None);
    }
    if libc::WIFSTOPPED(status) {
        return Ok(Some(Change::Stopped(libc::WSTOPSIG(status))));
    }
    let ending = if libc::WIFSIGNALED(status) {
        Ending::Killed(libc::WTERMSIG(status))
    } else {
        Ending::Exited(libc::WEXITSTATUS(status))
    };
    // SAFETY: `wait4` has filled in the `rusage`, and zeroes would be valid too.
    let usage = unsafe { usage.assume_init() };
    let usage = Usage {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        max_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10,
    };
    Ok(Some(Change::Ended(ending, usage)))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

/// Whether SIGPIPE was ignored when this process started. Rust's runtime ignores SIGPIPE before
/// `main`, so [`remember`] records the disposition earlier.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Whether SIGXFSZ was ignored when this process started; [`survive_file_limit`] ignores it.
static FILE_LIMIT_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Signals that the GNU library reserves for itself. Its `posix_spawn` starts programs that ignore
/// them. In a process with threads it installs handlers for them.
const INTERNAL: [i32; 2] = [32, 33];
/// Whether each signal of [`INTERNAL`] was ignored when this process started.
static INTERNAL_WERE_IGNORED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

// SAFETY: the section holds pointers to functions. The C library calls each function once, before
// `main`, in a single thread. This function needs nothing that is initialised later.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    // Relaxed: no second thread exists yet.
    PIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    FILE_LIMIT_WAS_IGNORED.store(is_ignored(libc::SIGXFSZ), Ordering::Relaxed);
    for (signal, were) in INTERNAL.into_iter().zip(&INTERNAL_WERE_IGNORED) {
        // Relaxed: as above.
        were.store(kernel_ignores(signal), Ordering::Relaxed);
    }
}

/// From now on a write beyond the limit of file sizes fails. By default it ends the process.
pub fn survive_file_limit() {
    set(libc::SIGXFSZ, libc::SIG_IGN);
}

/// Makes `command` start its child with the disposition of SIGXFSZ that this process inherited.
pub fn pass_on_file_limit(command: &mut Command) {
    // SAFETY: between fork and exec the closure calls only sigaction, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            restore_file_limit();
            Ok(())
        });
    }
}

fn restore_file_limit() {
    // Relaxed: written before `main`.
    if !FILE_LIMIT_WAS_IGNORED.load(Ordering::Relaxed) {
        set(libc::SIGXFSZ, libc::SIG_DFL);
    }
}

/// A disposition in the kernel's layout: handler, flags, restorer, mask.
type KernelAction = [usize; 4];

/// Reads or sets the disposition of a signal by system call. The C library refuses to do it for
/// its own signals.
fn kernel_action(signal: i32, new: *const KernelAction, old: *mut KernelAction) -> bool {
    let bytes = size_of::<u64>();
    // SAFETY: each pointer is null or to a record of the kernel's size. Callers set no handler.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, bytes) == 0 }
}

fn kernel_ignores(signal: i32) -> bool {
    let mut old = [0; 4];
    kernel_action(signal, ptr::null(), &raw mut old) && old[0] == libc::SIG_IGN
}

fn is_ignored(signal: i32) -> bool {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action changes nothing; `old` has the correct type, and zeroes are valid.
    unsafe {
        libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) == 0
            && old.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// The signal state that this process changes for itself and that a child must get unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    mask: SigSet,
    child_ignored: bool,
}

impl Inherited {
    /// Records the present state and makes ended children wait until they are reaped.
    ///
    /// # Errors
    ///
    /// If the system refuses the signal mask.
    pub fn take() -> io::Result<Self> {
        let mask = SigSet::thread_get_mask()?;
        let child_ignored = is_ignored(libc::SIGCHLD);
        if child_ignored {
            set(libc::SIGCHLD, libc::SIG_DFL);
        }
        Ok(Inherited {
            mask,
            child_ignored,
        })
    }

    /// Restores the signal mask in this process.
    ///
    /// # Errors
    ///
    /// If the system refuses the mask.
    pub fn restore_mask(&self) -> io::Result<()> {
        Ok(self.mask.thread_set_mask()?)
    }

    /// Makes `command` start its child with the recorded state.
    pub fn pass_on(self, command: &mut Command) {
        // SAFETY: between fork and exec the closure calls only async-signal-safe functions
        // (sigaction, pthread_sigmask) and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                // Relaxed: written before `main`.
                if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
                    set(libc::SIGPIPE, libc::SIG_IGN);
                }
                restore_file_limit();
                if self.child_ignored {
                    set(libc::SIGCHLD, libc::SIG_IGN);
                }
                for (signal, were) in INTERNAL.into_iter().zip(&INTERNAL_WERE_IGNORED) {
                    // Relaxed: as above. The witness is a thread, so this process has a handler.
                    if were.load(Ordering::Relaxed) {
                        kernel_action(signal, &[libc::SIG_IGN, 0, 0, 0], ptr::null_mut());
                    }
                }
                self.restore_mask()
            });
        }
    }
}

/// Sets the disposition of `signal` to `SIG_DFL` or `SIG_IGN`.
fn set(signal: i32, disposition: libc::sighandler_t) {
    debug_assert!(matches!(disposition, libc::SIG_DFL | libc::SIG_IGN));
    // SAFETY: neither disposition is a function.
    unsafe { libc::signal(signal, disposition) };
}

/// Kills this process with `signal`, without a core dump. It only reports the death of the
/// program, which has written its own core dump.
pub fn die_of(signal: i32) -> ! {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // A `core_pattern` that is a pipe ignores the core size limit.
    let _ = nix::sys::prctl::set_dumpable(false);
    set(signal, libc::SIG_DFL);
    let mut only = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is initialised by sigemptyset before it is read.
    unsafe {
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}
