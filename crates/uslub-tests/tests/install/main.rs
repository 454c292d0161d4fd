//! What `scripts/install` installs: the command works, static programs link, and nothing is left.

mod carried;
mod installed;
mod statically;
mod symbols;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use uslub_tests::subject::workspace;
use uslub_tests::tools::tool;

/// An installation for all tests of this process; nothing without a C compiler, whose tools it
/// needs.
fn prefix() -> Option<&'static Path> {
    static PREFIX: OnceLock<Option<PathBuf>> = OnceLock::new();
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    extern "C" fn remove() {
        if let Some(folder) = FOLDER.get() {
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
    let made = PREFIX.get_or_init(|| {
        tool("cc")?;
        // SAFETY: the function is `extern "C"`, does not unwind, and uses only data that still
        // exists at exit.
        unsafe { libc::atexit(remove) };
        let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder"));
        let prefix = folder.path().join("usr");
        install(&prefix, None, &[]);
        Some(prefix)
    });
    made.as_deref()
}

/// Runs `scripts/install`.
fn install(prefix: &Path, destination: Option<&Path>, more: &[&str]) -> String {
    let mut command = Command::new(workspace().join("scripts/install"));
    command.arg(prefix).args(more).env_remove("DESTDIR");
    if let Some(destination) = destination {
        command.env("DESTDIR", destination);
    }
    succeed(&mut command)
}

/// Runs a command that must succeed; returns what it wrote to both streams.
fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("a command can be run");
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success(), "{command:?} fails:\n{out}{err}");
    format!("{out}{err}")
}
