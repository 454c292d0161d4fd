//! The library installed once, and programs compiled against it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use uslub_tests::Run;
use uslub_tests::run::Outcome;
use uslub_tests::subject::workspace;
use uslub_tests::tools::tool;

/// What a program is linked against.
#[derive(Clone, Copy, Debug)]
pub enum Linked {
    Dynamic,
    Static,
}

/// A folder that is removed when the process ends: a static is never dropped.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    extern "C" fn remove() {
        if let Some(folder) = FOLDER.get() {
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
    FOLDER
        .get_or_init(|| {
            // SAFETY: the function is `extern "C"`, does not unwind and needs
            // nothing that is gone when it is called.
            unsafe { libc::atexit(remove) };
            tempfile::Builder::new()
                .prefix("uslub-capi-")
                .tempdir()
                .expect("a folder for programs")
        })
        .path()
}

/// Where `scripts/install-capi` has put everything; nothing where there is no compiler, whose tools
/// it needs.
pub fn prefix() -> Option<&'static Path> {
    static PREFIX: OnceLock<Option<PathBuf>> = OnceLock::new();
    PREFIX
        .get_or_init(|| {
            tool("cc")?;
            let prefix = folder().join("prefix");
            succeed(
                Command::new(workspace().join("scripts/install-capi"))
                    .arg(&prefix)
                    .env_remove("DESTDIR"),
            );
            Some(prefix)
        })
        .as_deref()
}

/// Runs a command that must succeed; returns what it wrote.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("a command can be run");
    assert!(
        output.status.success(),
        "{command:?} fails:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The program of a source below this workspace; nothing where there is no compiler.
pub fn program(source: &str, linked: Linked, more: &[&str]) -> Option<PathBuf> {
    let prefix = prefix()?;
    let source = workspace().join(source);
    let cxx = source.extension().is_some_and(|ending| ending == "cc");
    let (variable, usual, standard) = if cxx {
        ("CXX", "c++", "-std=c++17")
    } else {
        ("CC", "cc", "-std=gnu11")
    };
    // CC may hold more than a name: `ccache gcc`, `gcc -m64`
    let words = env::var(variable).unwrap_or_default();
    let mut words = words.split_whitespace();
    let compiler = tool(words.next().unwrap_or(usual))?;
    let stem = source.file_stem().expect("a source has a name");
    let target = folder().join(format!(
        "{}-{linked:?}-{}",
        stem.display(),
        std::thread::current()
            .name()
            .unwrap_or("main")
            .replace("::", "-")
    ));
    let mut command = Command::new(compiler);
    command
        .args(words)
        .args([
            standard, "-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror",
        ])
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg("-o")
        .arg(&target)
        .arg(source);
    match linked {
        Linked::Dynamic => command
            .arg(format!("-L{}", prefix.join("lib").display()))
            .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()))
            .arg("-luslub"),
        Linked::Static => command.arg(prefix.join("lib/libuslub.a")),
    };
    succeed(command.args(more));
    Some(target)
}

/// A program that must say that all holds, with everything the machine has and without
/// restartable sequences.
pub fn all_holds(source: &str, linked: Linked) {
    let Some(program) = program(source, linked, &[]) else {
        return;
    };
    let ways = [
        ("", ""),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),
        ("USLUB_OPTIONS", "rseq=0"),
        ("USLUB_OPTIONS", "barn_cpus=1"),
    ];
    for (variable, value) in ways {
        let mut run = Run::of(&program);
        if !variable.is_empty() {
            run = run.variable(variable, value);
        }
        run.plainly().wrote("all holds");
    }
}

/// How a program with these arguments ended.
pub fn outcome(program: &Path, args: &[&str]) -> Outcome {
    Run::of(program).args(args).plainly()
}
