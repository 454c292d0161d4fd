//! What a program costs: CPU time, and the most memory that was resident at once.
//!
//! The kernel's figure for the latter begins with what the process had before it became the
//! program, and that is its parent's memory: a bench that has measured millions of objects would
//! see its own peak in every program. So a fresh process of ours starts the program and says what
//! it cost; it has a few MiB itself, below which nothing is seen.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// The words in front of those of the process between: `uslub bench program-child LIBRARY PROGRAM
/// ARGUMENT…`, where the library to preload may be empty.
const WORDS: [&str; 2] = ["bench", "program-child"];

/// What one run cost.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// As `wait` has it.
    status: i32,
    /// CPU time in seconds, children included.
    pub cpu: f64,
    /// Greatest resident size in bytes, of the program or a child.
    pub peak: f64,
}

impl Cost {
    /// How it ended.
    pub fn status(&self) -> ExitStatus {
        ExitStatus::from_raw(self.status)
    }
}

/// Runs a program by a fresh process of `command`, which is ours.
pub fn of(
    command: &Path,
    preload: Option<&Path>,
    words: &[OsString],
    variables: &[(&str, &str)],
    stdin: File,
) -> Result<Cost, Failure> {
    let mut between = Command::new(command);
    between
        .args(WORDS)
        .arg(preload.map_or(OsStr::new(""), Path::as_os_str))
        .args(words)
        .envs(variables.iter().copied())
        .env_remove("LD_PRELOAD")
        .env("LC_ALL", "C")
        .stdin(stdin);
    let output = between
        .output()
        .map_err(|error| Failure::System(format!("{} cannot run: {error}", command.display())))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::System(said.trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::Wrong(format!("no cost was said: {error}")))
}

/// In the process between: runs the program with nothing to write to, and returns what the parent
/// reads.
///
/// # Errors
///
/// When the program cannot be started.
pub fn serve(preload: &OsStr, words: &[OsString]) -> Result<String, Failure> {
    let [program, arguments @ ..] = words else {
        return Err(Failure::System("no program".to_owned()));
    };
    let failed = |error| Failure::System(format!("{}: {error}", program.display()));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !preload.is_empty() {
        command.env("LD_PRELOAD", preload);
    }
    let child = command.spawn().map_err(failed)?;
    let cost = wait(child.id()).map_err(failed)?;
    serde_json::to_string(&cost).map_err(|error| Failure::Wrong(error.to_string()))
}

/// Waits for a child.
fn wait(pid: u32) -> std::io::Result<Cost> {
    let mut status = 0;
    // SAFETY: a plain record of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both are ours; the child is waited for nowhere else.
        if unsafe { libc::wait4(pid as libc::pid_t, &raw mut status, 0, &raw mut usage) } >= 0 {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    Ok(Cost {
        status,
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        peak: usage.ru_maxrss as f64 * 1024.0,
    })
}
