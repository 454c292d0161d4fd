//! The `uslub` command under test, built once for all tests of a process.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use uslub_tests::release;
pub use uslub_tests::release::{cargo, workspace};

/// The release build of `uslub`, or the command that `USLUB_COMMAND` names.
///
/// # Panics
///
/// If the command does not build.
pub fn uslub() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| match env::var_os("USLUB_COMMAND") {
        Some(path) => PathBuf::from(path),
        None => release::command(),
    })
}
