//! The command and the library under test, built once for all tests of a process.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// What is tested.
#[derive(Debug)]
pub struct Subject {
    /// The `uslub` command.
    pub command: PathBuf,
    /// `libuslub_malloc.so`.
    pub library: PathBuf,
}

/// The root folder of this workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the workspace's root")
}

/// Whether everything is to run on the C library's own malloc.
pub fn plain() -> bool {
    env::var_os("USLUB_TESTS_PLAIN").is_some_and(|value| value == "1")
}

/// The release build of this workspace, unless `USLUB_COMMAND` and
/// `USLUB_LIBRARY` name another.
///
/// # Panics
///
/// If it does not build.
pub fn subject() -> &'static Subject {
    static SUBJECT: OnceLock<Subject> = OnceLock::new();
    SUBJECT.get_or_init(
        || match (env::var_os("USLUB_COMMAND"), env::var_os("USLUB_LIBRARY")) {
            (Some(command), Some(library)) => Subject {
                command: command.into(),
                library: library.into(),
            },
            (None, None) => build(),
            _ => panic!("set both USLUB_COMMAND and USLUB_LIBRARY, or neither"),
        },
    )
}

/// Builds, and asks cargo where it put things, so that every way to choose a
/// target folder is honoured.
fn build() -> Subject {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--package", "uslub-cli"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "uslub does not build");
    let messages: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let of = |target: &'static str| {
        messages
            .iter()
            .filter(move |message| message["target"]["name"] == target)
    };
    let command = of("uslub")
        .find_map(|message| message["executable"].as_str())
        .expect("cargo names the command that it built");
    let library = of("uslub_malloc")
        .filter_map(|message| message["filenames"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .find(|file| file.ends_with(".so"))
        .expect("cargo names the library that it built");
    Subject {
        command: command.into(),
        library: library.into(),
    }
}
