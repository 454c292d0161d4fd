//! How a program ended and what it cost.

use nix::sys::signal::Signal;
use std::time::Duration;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this exit status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// What `wait4` tells of a process that has ended, its reaped children included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Largest resident memory of any one process among them, in bytes.
    pub max_rss_bytes: u64,
}

/// The name of a signal, for example `SIGTERM` or `SIGRTMIN+3`.
pub fn signal_name(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) if signal >= libc::SIGRTMIN() => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
        Err(_) => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(libc::SIGRTMIN() + 2), "SIGRTMIN+2");
    }
}
