//! Standing between a program and whoever sends signals to it.
//!
//! The program and uslub share the terminal and the process group. A key such
//! as Ctrl-C therefore reaches both, and uslub must merely survive it; what
//! someone sends to uslub alone must be passed on. All these signals are
//! blocked and read one by one from a descriptor, with their origin:
//!
//! | origin | what happens |
//! |---|---|
//! | the terminal (the kernel), except SIGHUP and SIGCONT | nothing: the program has it too |
//! | the program itself | nothing: it meant its group |
//! | anything else | passed on |
//!
//! SIGHUP from the kernel may reach a session leader alone, so it is always
//! passed on, and a second SIGCONT harms nobody.
//!
//! When the program stops (Ctrl-Z, reading the terminal in the background),
//! uslub stops by the same signal, so that the shell sees its job stopped; when
//! uslub continues, it passes the SIGCONT on.

use crate::ending::{Ending, Usage};
use crate::sys::{self, Change, Inherited};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid};
use std::io;
use std::process::Command;

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

/// Holds back the signals of this process while a program runs. The mask
/// returns to what it was when this is dropped.
pub struct Watch {
    inherited: Inherited,
    arrivals: SignalFd,
}

impl Watch {
    /// Starts to hold signals back; to be called before the program starts.
    ///
    /// # Errors
    ///
    /// When the system refuses the mask or the descriptor.
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

    /// Makes `command` start its child with the signal mask and dispositions
    /// that this process was started with.
    pub fn prepare(&self, command: &mut Command) {
        self.inherited.pass_on(command);
    }

    /// Passes signals on to `program` until it has ended.
    ///
    /// # Errors
    ///
    /// When the program is no child of ours or signals cannot be read.
    pub fn until_end(&self, program: Pid) -> io::Result<(Ending, Usage)> {
        loop {
            while let Some(change) = sys::poll_child(program)? {
                match change {
                    Change::Ended(ending, usage) => return Ok((ending, usage)),
                    Change::Stopped(signal) => stop_too(signal),
                }
            }
            match self.arrivals.read_signal() {
                Ok(Some(arrival)) => pass_on(&arrival, program),
                Ok(None) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Watch {
    /// What arrived for both while the program ended has done its work: it is
    /// taken away, so that a Ctrl-C that ended the program does not end us
    /// before the summary.
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
    // It fails when the program has just ended; that we shall see.
    let _ = kill(program, signal);
}

/// Stops this process as the program was stopped, until someone continues it.
fn stop_too(signal: i32) {
    match Signal::try_from(signal) {
        // Nobody resists SIGSTOP, so it may be used only where a shell will
        // continue us; the kernel asks that itself for the other stop signals.
        Ok(Signal::SIGSTOP) if !under_job_control() => {}
        Ok(signal) => {
            let only = SigSet::from(signal);
            let _ = raise(signal);
            let _ = only.thread_unblock();
            // Here we are stopped; continued, we go on.
            if PASSED_ON.contains(&signal) {
                let _ = only.thread_block();
            }
        }
        Err(_) => {}
    }
}

/// Whether our parent looks after our process group, as a shell does with a job.
fn under_job_control() -> bool {
    let parent = getppid();
    let same_session = getsid(Some(parent)).is_ok_and(|s| getsid(None) == Ok(s));
    let other_group = getpgid(Some(parent)).is_ok_and(|g| g != getpgrp());
    parent.as_raw() != 0 && same_session && other_group
}
