//! What the integration tests share: the release build of the command, and
//! files made on the fly.

// Each test file uses its part of this module.
#![allow(dead_code)]

use nix::sys::signal::{SigHandler, Signal, killpg, signal};
use nix::unistd::Pid;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The `uslub` of the release build, built on the first call. Users run that
/// one, with the library that lies beside it; a debug allocator is another thing.
pub fn uslub() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(uslub_tests::release::command).clone()
}

/// `uslub` with `arguments`, in an environment that says nothing to it.
pub fn uslub_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(uslub());
    command.args(arguments);
    for variable in ["LD_PRELOAD", "USLUB_LIBRARY", "USLUB_REPORT"] {
        command.env_remove(variable);
    }
    for variable in ["USLUB_OPTIONS", "USLUB_FOLLOW", "USLUB_HELPER"] {
        command.env_remove(variable);
    }
    // SAFETY: what it calls is async-signal-safe.
    unsafe { command.pre_exec(forget_ignored_signals) };
    command
}

/// Tests that run under `nohup` or in the background ignore these, which programs would inherit.
fn forget_ignored_signals() -> io::Result<()> {
    for of_terminals in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: there is no handler that could go wrong.
        unsafe { signal(of_terminals, SigHandler::SigDfl) }?;
    }
    Ok(())
}

/// The same, for assertions.
pub fn uslub_assert(arguments: &[&str]) -> assert_cmd::Command {
    assert_cmd::Command::from_std(uslub_command(arguments))
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// Writes a file with these mode bits.
pub fn put(path: &Path, content: impl AsRef<[u8]>, mode: u32) {
    let draft = path.with_extension("draft");
    fs::write(&draft, content).expect("the file can be written");
    copy(&draft, path);
    fs::remove_file(draft).expect("the draft can be removed");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("the mode can be set");
}

/// Copies a program. Another process does it: a file that a child of another test inherits open for
/// writing cannot be executed.
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").args([from, to]).status();
    assert!(status.expect("cp runs").success(), "a copy of {from:?}");
}

/// Kills the process group that `child` leads when a minute has passed before
/// the returned value is dropped, so that a broken command fails a test and
/// does not hang it.
#[must_use]
pub fn watchdog(child: &Child) -> Sender<()> {
    let group = Pid::from_raw(child.id() as i32);
    let (alive, test) = channel();
    std::thread::spawn(move || {
        if test.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            let _ = killpg(group, Signal::SIGKILL);
        }
    });
    alive
}

/// Compiles C `source` to `output` with `cc`; says so and returns false when that fails.
pub fn compile(source: &str, flags: &[&str], output: &Path) -> bool {
    let file = output.with_extension("c");
    fs::write(&file, source).expect("the source can be written");
    let status = Command::new("cc")
        .args(["-o", text(output)])
        .arg(&file)
        .args(flags)
        .status();
    let compiled = status.is_ok_and(|s| s.success());
    if !compiled {
        eprintln!(
            "skipped: 'cc {}' is absent or does not work",
            flags.join(" ")
        );
    }
    compiled
}
