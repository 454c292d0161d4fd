//! What happens when `uslub run` itself is killed: a process of its own ends the program and
//! removes the folder.
//!
//! SIGKILL cannot be passed on, and nothing runs in a process that it ends. Whoever kills the
//! command means the program, and would have killed it had it been started without uslub. So a
//! child of the command, the reaper, waits at a pipe.
//!
//! | the reaper reads | meaning | what it does |
//! |---|---|---|
//! | a byte | the command has seen the program's end, or gives up | nothing |
//! | the end | the command is gone | kills the program, removes the folder |
//!
//! It has a session of its own, so that keys and signals to the command's group do not reach it,
//! and none of the command's descriptors but these, so that nobody waits for it.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pipe2};

/// The reaper; it is told to go when this is dropped.
pub struct Reaper {
    pid: Pid,
    pipe: File,
}

impl Reaper {
    /// Starts the reaper for the program `pid`, a child that was not waited for yet, and for
    /// `folder`; `None` where the system does not have what it takes.
    pub fn start(pid: u32, folder: Option<&Path>) -> Option<Self> {
        let program = open_process(pid)?;
        let (read, write) = pipe2(OFlag::O_CLOEXEC).ok()?;
        // SAFETY: the only other thread is the witness. The child uses no lock of it but the C
        // library's allocator's, which `fork` leaves in order.
        match unsafe { fork() }.ok()? {
            ForkResult::Child => {
                drop(write);
                stand_apart(&[program.as_raw_fd(), read.as_raw_fd()]);
                wait(File::from(read), &program, folder);
                // SAFETY: ends the child without what the command does at its own end.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => Some(Reaper {
                pid: child,
                pipe: File::from(write),
            }),
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let _ = self.pipe.write_all(b".");
        let _ = waitpid(self.pid, None);
    }
}

/// A descriptor of a child, which stays that child's when its id is used again.
fn open_process(pid: u32) -> Option<OwnedFd> {
    // SAFETY: makes a descriptor, closed on exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: fresh, and nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Leaves the command's session, folder, signals and descriptors, but for those in `kept`.
fn stand_apart(kept: &[i32]) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    // SAFETY: numbers and sets of this process only; nothing that is closed is used again.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let mut first = 0;
        for fd in kept.into_iter().chain([i32::MAX]) {
            if fd > first {
                libc::syscall(libc::SYS_close_range, first, fd - 1, 0);
            }
            first = fd + i32::from(fd < i32::MAX);
        }
    }
}

/// Waits for the command's word or end.
fn wait(mut pipe: File, program: &OwnedFd, folder: Option<&Path>) {
    if !matches!(pipe.read(&mut [0]), Ok(0)) {
        return;
    }
    // SAFETY: sends a signal to the program that the descriptor stands for.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            program.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<u8>(),
            0,
        )
    };
    let Some(folder) = folder else {
        return;
    };
    // Processes that the program started live on and may just make a file.
    for _ in 0..10 {
        if fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
