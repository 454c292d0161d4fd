//! The `uslub` command under test, built once for all tests of a process.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The cargo binary that runs the tests.
pub fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into())
}

/// The root folder of this workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the workspace's root")
}

/// The release build of `uslub`, or the command that `USLUB_COMMAND` names.
///
/// # Panics
///
/// If the command does not build.
pub fn uslub() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| match env::var_os("USLUB_COMMAND") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

/// Builds the command as the tests do: the same features, so that no build makes the other's files
/// stale. Asks cargo for the path of the result, so that every setting of the target folder is
/// respected.
fn build() -> PathBuf {
    let output = Command::new(cargo())
        .args(["build", "--release"])
        .args(["--package", "uslub-malloc", "--package", "uslub-cli"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "uslub does not build");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "uslub")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the executable that it built")
}
