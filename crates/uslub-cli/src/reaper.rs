//! The reaper: a process that ends the program and removes the folder when `uslub run` is killed.
//!
//! A process can neither pass on nor handle SIGKILL. A user who kills the command means the
//! program, and without uslub would have killed the program itself. Hence `run` starts a child
//! process, the reaper, which waits on a pipe.
//!
//! | the reaper reads | meaning | action of the reaper |
//! |---|---|---|
//! | a byte | the command has seen the program end, or gives up | nothing |
//! | end of file | the command is dead | kills the program, removes the folder |
//!
//! The reaper has its own session, so keys and signals to the command's process group do not reach
//! it. It closes all inherited descriptors except the pipe and the program's descriptor, so no
//! reader of the command's output waits for the reaper.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pipe2};

/// The reaper. Dropping this tells the reaper to exit.
pub struct Reaper {
    pid: Pid,
    pipe: File,
}

impl Reaper {
    /// Starts the reaper for `folder` and the program `pid`, a child that is not yet reaped.
    ///
    /// Returns `None` if the system lacks a needed call or resource.
    pub fn start(pid: u32, folder: Option<&Path>) -> Option<Self> {
        let program = open_process(pid)?;
        let (read, write) = pipe2(OFlag::O_CLOEXEC).ok()?;
        // SAFETY: the only other thread is the witness. The child uses none of its locks except
        // the lock of the C library's allocator, and `fork` leaves that allocator usable.
        match unsafe { fork() }.ok()? {
            ForkResult::Child => {
                drop(write);
                stand_apart(&[program.as_raw_fd(), read.as_raw_fd()]);
                wait(File::from(read), &program, folder);
                // SAFETY: ends the child without running the command's exit handlers.
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

/// A descriptor of a child. It never refers to another process that reuses the id.
fn open_process(pid: u32) -> Option<OwnedFd> {
    // SAFETY: creates a descriptor that is closed on exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the descriptor is new, and this is its only owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Leaves the command's session, folder and signals, and closes all descriptors except `kept`.
fn stand_apart(kept: &[i32]) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    // SAFETY: changes only this process; no closed descriptor is used again.
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

/// Waits for the command's byte or its death.
fn wait(mut pipe: File, program: &OwnedFd, folder: Option<&Path>) {
    if !matches!(pipe.read(&mut [0]), Ok(0)) {
        return;
    }
    // SAFETY: sends a signal to the program that the descriptor refers to.
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
    // Children of the program are still alive and may create a file during the removal.
    for _ in 0..10 {
        if fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
