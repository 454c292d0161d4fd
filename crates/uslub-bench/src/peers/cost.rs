//! The cost of a program run: CPU time, and peak resident memory. P6 uses it.
//!
//! The kernel's peak includes the memory of the process before `exec`, which is a copy of the
//! parent's memory. After a benchmark of millions of objects, every program would show the
//! benchmark's own peak. Hence an intermediate process of the command starts the program and
//! reports the cost. The process itself has a few MiB, and smaller peaks are invisible.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// The first words of the intermediate process: `uslub bench program-child LIBRARY PROGRAM
/// ARGUMENT…`. LIBRARY, the library to preload, may be empty.
const WORDS: [&str; 2] = ["bench", "program-child"];

/// The cost of one run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// The status from `wait`.
    status: i32,
    /// CPU time in seconds, children included.
    pub cpu: f64,
    /// Peak resident size in bytes, of the program or of its largest child.
    pub peak: f64,
}

impl Cost {
    /// How the program ended.
    pub fn status(&self) -> ExitStatus {
        ExitStatus::from_raw(self.status)
    }
}

/// Runs a program through an intermediate process of our `command`.
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

/// Runs in the intermediate process: runs the program without output, and returns the text that the
/// parent parses.
///
/// # Errors
///
/// If the program cannot be started.
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
    // SAFETY: zeroes are a valid record of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to local variables; only this call waits for the child.
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
