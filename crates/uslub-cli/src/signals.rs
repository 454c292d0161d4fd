//! Passes signals from the command on to the program. `run` holds a [`Watch`] while it waits.
//!
//! The program and uslub share the terminal and the process group. A key such as Ctrl-C reaches
//! both, so uslub only has to survive it. uslub must pass on a signal that was sent to uslub
//! alone. It blocks all these signals and reads them from a descriptor, with their origin:
//!
//! | origin | action |
//! |---|---|
//! | the terminal (the kernel), except SIGHUP and SIGCONT | none: the program gets it too |
//! | the program itself | none: the program signalled its process group |
//! | any other | passed on |
//!
//! The kernel may send SIGHUP to a session leader alone, so uslub always passes SIGHUP on. It
//! always passes SIGCONT on too: a second SIGCONT is harmless.
//!
//! When the program stops (Ctrl-Z, or it reads the terminal in the background), uslub stops with
//! the same signal, so the shell sees that its job stopped. When uslub continues, it passes the
//! SIGCONT on.

use crate::broker::Broker;
use crate::ending::{Ending, Usage};
use crate::sys::{self, Change, Inherited};
use crate::watcher::Watcher;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid};
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

/// Signals that are passed on.
const PASSED_ON: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGURG,
];

/// Blocks the signals of this process while a program runs. Dropping it restores the signal mask.
pub struct Watch {
    inherited: Inherited,
    arrivals: SignalFd,
}

impl Watch {
    /// Blocks the signals. Must be called before the program starts.
    ///
    /// # Errors
    ///
    /// If the system refuses the mask or the descriptor.
    pub fn start() -> io::Result<Self> {
        let inherited = Inherited::take()?;
        let mut watched: SigSet = PASSED_ON.iter().copied().collect();
        watched.add(Signal::SIGCHLD);
        let arrivals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC)?;
        watched.thread_block()?;
        Ok(Watch {
            inherited,
            arrivals,
        })
    }

    /// Makes `command` start its child with the signal mask and dispositions that this process
    /// inherited.
    pub fn prepare(&self, command: &mut Command) {
        self.inherited.pass_on(command);
    }

    /// Passes signals on to `program` until it has ended. Between two signals the watcher looks,
    /// and the broker answers.
    ///
    /// # Errors
    ///
    /// If the program is not a child of this process or signals cannot be read.
    pub fn until_end(
        &self,
        program: Pid,
        watcher: &mut Watcher,
        broker: &mut Broker,
    ) -> io::Result<(Ending, Usage)> {
        loop {
            if has_ended(program) {
                watcher.look_at_dead();
            }
            while let Some(change) = sys::poll_child(program)? {
                match change {
                    Change::Ended(ending, usage) => return Ok((ending, usage)),
                    Change::Stopped(signal) => stop_too(signal),
                }
            }
            if !self.wait(watcher.look_if_due(), broker)? {
                continue;
            }
            match self.arrivals.read_signal() {
                Ok(Some(arrival)) => pass_on(&arrival, program),
                Ok(None) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Watch {
    /// Waits for a signal; false if none arrived within `at_most`, or a request for the broker came
    /// first.
    fn wait(&self, at_most: Duration, broker: &mut Broker) -> io::Result<bool> {
        // Rounded up: a wait of 0 ms would not wait.
        let at_most = PollTimeout::try_from(at_most + Duration::from_millis(1));
        let sources = std::iter::once(self.arrivals.as_fd()).chain(broker.sources());
        let mut polled: Vec<_> = sources
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let number = match poll(&mut polled, at_most.unwrap_or(PollTimeout::MAX)) {
            Ok(number) => number,
            Err(Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let is_signal = polled[0].any().unwrap_or(true);
        if number > i32::from(is_signal) {
            broker.serve();
        }
        Ok(is_signal && number > 0)
    }
}

/// Whether a child is dead; it stays to be reaped.
fn has_ended(child: Pid) -> bool {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let status = waitid(Id::Pid(child), peek);
    status.is_ok_and(|status| status != WaitStatus::StillAlive)
}

impl Drop for Watch {
    /// Discards pending signals before it restores the mask. A Ctrl-C that ended the program must
    /// not end uslub before the summary.
    fn drop(&mut self) {
        let nonblocking = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let watched = PASSED_ON.iter().copied().collect();
        if let Ok(rest) = SignalFd::with_flags(&watched, nonblocking) {
            while let Ok(Some(_)) = rest.read_signal() {}
        }
        let _ = self.inherited.restore_mask();
    }
}

fn pass_on(arrival: &siginfo, program: Pid) {
    let Ok(signal) = Signal::try_from(arrival.ssi_signo as i32) else {
        return;
    };
    let from_kernel = arrival.ssi_code > 0;
    let from_program = !from_kernel && arrival.ssi_pid == program.as_raw() as u32;
    let always = matches!(signal, Signal::SIGHUP | Signal::SIGCONT);
    if signal == Signal::SIGCHLD || from_program || (from_kernel && !always) {
        return;
    }
    // `kill` fails if the program has just ended; the caller sees that end next.
    let _ = kill(program, signal);
}

/// Stops this process with the program's stop signal, until another process continues it.
fn stop_too(signal: i32) {
    match Signal::try_from(signal) {
        // No process can ignore SIGSTOP, so raise it only if a shell will continue uslub. The
        // kernel makes the same check itself for the other stop signals.
        Ok(Signal::SIGSTOP) if !under_job_control() => {}
        Ok(signal) => {
            let only = SigSet::from(signal);
            let _ = raise(signal);
            let _ = only.thread_unblock();
            // uslub is stopped here. The next line runs after it was continued.
            if PASSED_ON.contains(&signal) {
                let _ = only.thread_block();
            }
        }
        Err(_) => {}
    }
}

/// Whether the parent manages this process group, as a shell manages a job.
fn under_job_control() -> bool {
    let parent = getppid();
    let same_session = getsid(Some(parent)).is_ok_and(|s| getsid(None) == Ok(s));
    let other_group = getpgid(Some(parent)).is_ok_and(|g| g != getpgrp());
    parent.as_raw() != 0 && same_session && other_group
}
