//! Release builds of this workspace, for the tests of each crate.
//!
//! The command carries the preload library. Both are built at once, always with the same features:
//! two forms of the library have one file name, and each makes the other stale.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Builds the command `uslub`.
///
/// # Panics
///
/// If the build fails, as all functions of this module.
pub fn command() -> PathBuf {
    build("uslub-cli")
        .iter()
        .filter(|message| message["target"]["name"] == "uslub")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the command that it built")
}

/// Builds the library of a package; `file` is its file name.
pub fn library(package: &str, file: &str) -> PathBuf {
    let messages = build(package);
    let files = (messages.iter()).filter_map(|message| message["filenames"].as_array());
    files
        .flatten()
        .filter_map(|path| path.as_str().map(PathBuf::from))
        .find(|path| path.ends_with(file))
        .expect("cargo names the library that it built")
}

/// Builds a package. Asks cargo for the paths of the results, so that every setting of the target
/// folder is respected.
fn build(package: &str) -> Vec<Value> {
    let both = ["--package", "uslub-malloc", "--package", "uslub-cli"];
    let one = ["--package", package];
    let packages: &[&str] = if both.contains(&package) { &both } else { &one };
    let output = Command::new(cargo())
        .args(["build", "--release"])
        .args(packages)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace())
        .env_remove("LD_PRELOAD")
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{package} does not build");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}
