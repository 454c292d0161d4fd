//! `uslub run --debug` names the addresses of reports: function, file and line.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::uslub_command;
use tempfile::{TempDir, tempdir};

/// A program of `tests/c`, compiled with lines; nothing without a C compiler.
fn compiled(source: &str, flags: &[&str]) -> Option<(TempDir, PathBuf)> {
    let folder = tempdir().unwrap();
    let program = folder.path().join("planted");
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/c")
        .join(source);
    let mut command = Command::new("cc");
    command
        .args(["-g", "-O1", "-o"])
        .arg(&program)
        .arg(source)
        .args(flags);
    match command.status() {
        Ok(status) => assert!(status.success(), "cc fails"),
        Err(_) => {
            eprintln!("skipped: there is no C compiler");
            return None;
        }
    }
    Some((folder, program))
}

/// What `uslub run` with these options writes to standard error about one bug.
fn report(options: &[&str], bug: &str) -> Option<String> {
    let (_folder, program) = compiled("planted.c", &[])?;
    Some(errors_of(options, &program, bug))
}

fn errors_of(options: &[&str], program: &Path, argument: &str) -> String {
    let mut command = uslub_command(&[&["run", "-q"], options].concat());
    let output = command.arg(program).arg(argument).output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn both_stacks_of_a_report_have_functions_files_and_lines() {
    let Some(report) = report(&["--debug", "FZPU"], "twice") else {
        return;
    };
    for line in [
        "Object already free",
        "Allocated in object at ",
        "Freed in frees at ",
        " twice at ",
        " main at ",
        "planted.c:",
        "[planted+0x",
    ] {
        assert!(report.contains(line), "no '{line}': {report}");
    }
    let stacks = report.split("Call Trace:").next().unwrap();
    assert!(
        !stacks.contains("planted+0x") || stacks.contains("[planted+0x"),
        "{report}"
    );
}

#[test]
fn the_callers_of_leaks_have_names() {
    let Some(report) = report(
        &["--debug", "U", "--set", "slab_debug_leaks=1"],
        "after-free",
    ) else {
        return;
    };
    assert!(report.contains("objects in use"), "{report}");
    assert!(
        report.contains(" at ") && report.contains("planted.c:"),
        "{report}"
    );
}

#[test]
fn a_report_is_printed_while_the_program_goes_on() {
    let options = ["--debug", "FZU", "--set", "slab_debug_fatal=0"];
    let Some(report) = report(&options, "behind") else {
        return;
    };
    assert!(report.contains("FIX kmalloc-48: Restoring"), "{report}");
    assert!(report.contains("Allocated in object at "), "{report}");
}

/// The functions of the stack that found the bug, up to `main`.
fn functions(report: &str) -> Vec<&str> {
    let stack = report.rsplit("Call Trace:\n").next().unwrap_or_default();
    let lines = stack.lines().map_while(|line| line.strip_prefix(' '));
    let names = lines.map(|line| line.split(' ').next().unwrap_or_default());
    let mut names: Vec<_> = names.take_while(|&name| name != "main").collect();
    names.retain(|name| !name.contains("sort"));
    names
}

/// Without frame pointers: large frames, frames full of old words, frames of unknown size, and
/// frames of the C library are passed, and nothing else is named.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_without_frame_pointers_are_exact() {
    let Some((_folder, program)) = compiled("stacks.c", &["-O2", "-fomit-frame-pointer"]) else {
        return;
    };
    let ways: [(&str, &[&str]); 4] = [
        ("large", &["twice", "large"]),
        ("stale", &["twice", "stale_inner", "stale"]),
        ("dynamic", &["twice", "dynamic"]),
        ("callback", &["twice", "compare", "callback"]),
    ];
    for (way, expected) in ways {
        let report = errors_of(&["--debug", "FU"], &program, way);
        assert!(report.contains("Object already free"), "{way}: {report}");
        assert_eq!(functions(&report), expected, "{way}: {report}");
        assert!(report.contains(" main at "), "{way}: {report}");
    }
}
