//! The command and the library under test, built once for all tests of a process.

use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::release;
pub use crate::release::workspace;

/// The files under test.
#[derive(Debug)]
pub struct Subject {
    /// The `uslub` command.
    pub command: PathBuf,
    /// `libuslub_malloc.so`.
    pub library: PathBuf,
}

/// Whether the tests run on the C library's own malloc.
pub fn plain() -> bool {
    env::var_os("USLUB_TESTS_PLAIN").is_some_and(|value| value == "1")
}

/// The release build of this workspace, unless `USLUB_COMMAND` and `USLUB_LIBRARY` name other
/// files.
///
/// # Panics
///
/// If the build fails.
pub fn subject() -> &'static Subject {
    static SUBJECT: OnceLock<Subject> = OnceLock::new();
    SUBJECT.get_or_init(
        || match (env::var_os("USLUB_COMMAND"), env::var_os("USLUB_LIBRARY")) {
            (Some(command), Some(library)) => Subject {
                command: command.into(),
                library: library.into(),
            },
            (None, None) => Subject {
                command: release::command(),
                library: release::library("uslub-malloc", "libuslub_malloc.so"),
            },
            _ => panic!("set both USLUB_COMMAND and USLUB_LIBRARY, or neither"),
        },
    )
}
