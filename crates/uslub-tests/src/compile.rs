//! Compiles C and C++ sources into programs and libraries, once per process, for `tests/c/`.

use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use tempfile::TempDir;

use crate::subject::workspace;
use crate::tools::tool;
use crate::way::scrub;

/// The program of `tests/c/<name>.c` or `.cc`. Without a compiler, returns `None` and prints a
/// note.
///
/// # Panics
///
/// If the source does not compile.
pub fn program(name: &str) -> Option<PathBuf> {
    let sources = sources();
    let cxx = sources.join(format!("{name}.cc"));
    let source = if cxx.is_file() {
        cxx
    } else {
        sources.join(format!("{name}.c"))
    };
    compile(&source, name, &[])
}

/// The program `early`, linked against one copy of its library, and a second copy that the program
/// loads.
///
/// # Panics
///
/// If a source does not compile.
pub fn early() -> Option<(PathBuf, PathBuf)> {
    let source = sources().join("early_lib.c");
    let shared = ["-shared", "-fPIC"];
    let linked = compile(&source, "libearly_linked.so", &shared)?;
    let loaded = compile(&source, "libearly_loaded.so", &shared)?;
    let folder = linked.parent().expect("a file is in a folder");
    let link = format!("-L{}", folder.display());
    let find = format!("-Wl,-rpath,{}", folder.display());
    let program = compile(
        &sources().join("early.c"),
        "early",
        &[&link, "-learly_linked", &find],
    )?;
    Some((program, loaded))
}

/// The library of `tests/c/<name>.c`, to be preloaded or loaded.
///
/// # Panics
///
/// If the source does not compile.
pub fn library(name: &str) -> Option<PathBuf> {
    let source = sources().join(format!("{name}.c"));
    compile(&source, &format!("lib{name}.so"), &["-shared", "-fPIC"])
}

/// The library of `tests/c/deep_lib.c`, with a second library that only its own run path finds.
///
/// # Panics
///
/// If a source does not compile.
pub fn deep_library() -> Option<PathBuf> {
    let source = sources().join("deep_lib.c");
    compile(&source, "libdeep_friend.so", &["-shared", "-fPIC"])?;
    let more = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN"];
    compile(&source, "libdeep.so", &more)
}

/// The program `atfork`, linked against its library. With `first`, the library registers its fork
/// handlers before all others.
///
/// # Panics
///
/// If a source does not compile.
pub fn atfork(first: bool) -> Option<PathBuf> {
    let (name, library) = if first {
        ("atfork_first", "libatfork_first.so")
    } else {
        ("atfork", "libatfork.so")
    };
    let mut shared = vec!["-shared", "-fPIC"];
    if first {
        shared.push("-Wl,-z,initfirst");
    }
    let linked = compile(&sources().join("atfork_lib.c"), library, &shared)?;
    let folder = linked.parent().expect("a file is in a folder");
    let find = format!("-Wl,-rpath,{}", folder.display());
    let linked = linked.to_str().expect("a path of ours is text");
    compile(&sources().join("atfork.c"), name, &[linked, &find])
}

/// The program `own_new`, linked against its library, which replaces `operator new`.
///
/// # Panics
///
/// If a source does not compile.
pub fn own_new() -> Option<PathBuf> {
    let source = sources().join("own_new_lib.c");
    let flags = ["-shared", "-fPIC", "-fno-builtin"];
    let linked = compile(&source, "libown_new.so", &flags)?;
    let folder = linked.parent().expect("a file is in a folder");
    let find = format!("-Wl,-rpath,{}", folder.display());
    let linked = linked.to_str().expect("a path of ours is text");
    compile(&sources().join("own_new.c"), "own_new", &[linked, &find])
}

fn sources() -> PathBuf {
    workspace().join("tests/c")
}

/// The folder for compiled files. It is removed by `atexit`, because a static is never dropped.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    extern "C" fn remove() {
        if let Some(folder) = FOLDER.get() {
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
    FOLDER
        .get_or_init(|| {
            // SAFETY: the function is `extern "C"`, does not unwind, and uses only data that still
            // exists at exit.
            unsafe { libc::atexit(remove) };
            tempfile::Builder::new()
                .prefix("uslub-tests-")
                .tempdir()
                .expect("a folder for programs")
        })
        .path()
}

/// Compiles `source` to `name`, if this process has not done so yet.
fn compile(source: &Path, name: &str, more: &[&str]) -> Option<PathBuf> {
    static DONE: Mutex<Option<HashMap<OsString, Option<PathBuf>>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    done.get_or_insert_default()
        .entry(name.into())
        .or_insert_with(|| {
            let target = folder().join(name);
            compile_now(source, &target, more).then_some(target)
        })
        .clone()
}

/// Compiles `source` to `target`; returns whether a compiler exists.
fn compile_now(source: &Path, target: &Path, more: &[&str]) -> bool {
    let cxx = source.extension() == Some(OsStr::new("cc"));
    let (variable, usual, flags, standard) = if cxx {
        ("CXX", "c++", "CXXFLAGS", "-std=gnu++17")
    } else {
        ("CC", "cc", "CFLAGS", "-std=gnu11")
    };
    // CC may have several words: `ccache gcc`, `gcc -m64`
    let words = env::var(variable).unwrap_or_default();
    let mut words = words.split_whitespace();
    let Some(compiler) = tool(words.next().unwrap_or(usual)) else {
        return false;
    };
    let mut command = Command::new(compiler);
    scrub(&mut command);
    command
        .args(words)
        .args([standard, "-O2", "-g", "-pthread", "-Wall", "-Wextra"])
        .args(env::var(flags).unwrap_or_default().split_whitespace())
        .arg("-o")
        .arg(target)
        .arg(source)
        .args(more)
        // Before glibc 2.34 these were separate libraries.
        .args(["-ldl", "-lrt"]);
    let output = command.output().expect("a compiler can be run");
    assert!(
        output.status.success(),
        "{command:?} fails:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    true
}
