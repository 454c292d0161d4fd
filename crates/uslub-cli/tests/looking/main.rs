//! `uslub leaks`, `holders`, `metrics`, `sysfs` and the script for gdb, against real processes.

mod gdb;
mod holders;
#[path = "../inspected/mod.rs"]
mod inspected;
mod leaks;
mod looks;
mod metrics;
#[path = "../support/mod.rs"]
mod support;
mod sysfs;

use inspected::{Paused, has_cc, library};
use std::process::Command;

/// Compiles a C program and starts it on the preloaded library; `None` without a compiler.
fn start(folder: &tempfile::TempDir, name: &str, source: &str) -> Option<Paused> {
    let program = folder.path().join(name);
    let flags = [
        "-O0",
        "-g",
        "-pthread",
        "-Wno-unused-result",
        "-Wno-use-after-free",
    ];
    if !support::compile(source, &flags, &program) {
        assert!(!has_cc(), "the program does not compile");
        return None;
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    Some(Paused::start(
        Command::new(&program).env("LD_PRELOAD", library),
    ))
}
