//! The command and the library under test, built once for all tests of a process.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The files under test.
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
            (None, None) => build(),
            _ => panic!("set both USLUB_COMMAND and USLUB_LIBRARY, or neither"),
        },
    )
}

/// A library of the release build that is not part of the command: the library of `package`, with
/// the file name `lib<target>.so`.
///
/// # Panics
///
/// If the build fails.
pub fn release_library(package: &str, target: &str) -> PathBuf {
    library_of(&build_package(package), target)
}

fn build() -> Subject {
    let messages = build_package("uslub-cli");
    let command = messages
        .iter()
        .filter(|message| message["target"]["name"] == "uslub")
        .find_map(|message| message["executable"].as_str())
        .expect("cargo names the command that it built");
    Subject {
        command: command.into(),
        library: library_of(&messages, "uslub_malloc"),
    }
}

fn library_of(messages: &[Value], target: &str) -> PathBuf {
    messages
        .iter()
        .filter(|message| message["target"]["name"] == target)
        .filter_map(|message| message["filenames"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .find(|file| file.ends_with(".so"))
        .expect("cargo names the library that it built")
        .into()
}

/// Builds a package. Asks cargo for the paths of the results, so that every setting of the target
/// folder is respected.
fn build_package(package: &str) -> Vec<Value> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    // The command carries the preload library. Both are built at once, always with the same
    // features: two forms of the library have one file name, and each build would make the other
    // stale.
    let both = ["--package", "uslub-malloc", "--package", "uslub-cli"];
    let one = ["--package", package];
    let packages: &[&str] = if both.contains(&package) { &both } else { &one };
    let output = Command::new(cargo)
        .args(["build", "--release"])
        .args(packages)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{package} does not build");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}
