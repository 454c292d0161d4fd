//! Valgrind and the sanitizers see objects of caches as they see those of malloc.

use std::path::Path;
use std::process::Command;

use uslub_tests::Run;
use uslub_tests::run::Outcome;
use uslub_tests::tools::{say_skipped, tool};

use crate::built::{Linked, prefix, program};

const SOURCE: &str = "crates/uslub-capi/tests/c/watched.c";

/// What memcheck says of the program with one bug.
fn memcheck(valgrind: &Path, program: &Path, bug: &str) -> String {
    let mut command = Command::new(valgrind);
    command
        .env("USLUB_WATCH", "1")
        .args(["-q", "--leak-check=full"])
        .arg(program)
        .arg(bug);
    let output = command.output().expect("valgrind can be run");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn memcheck_sees_overruns_leaks_and_what_follows_a_free() {
    let Some(valgrind) = tool("valgrind") else {
        return say_skipped("checkers: valgrind is not installed");
    };
    let Some(program) = program(SOURCE, Linked::Static, &[]) else {
        return;
    };
    assert_eq!(memcheck(&valgrind, &program, "none"), "");
    for (bug, lines) in [
        (
            "over",
            &[
                "Invalid write of size 1",
                "is 0 bytes after a block of size 40 alloc'd",
            ][..],
        ),
        (
            "under",
            &[
                "Invalid write of size 1",
                "is 1 bytes before a block of size 40 alloc'd",
            ],
        ),
        (
            "after",
            &[
                "Invalid write of size 1",
                "is 1 bytes inside a block of size 40 free'd",
            ],
        ),
        (
            "unset",
            &["Conditional jump or move depends on uninitialised value(s)"],
        ),
        (
            "leak",
            &[" are definitely lost in loss record", ": take (watched.c:"],
        ),
    ] {
        let said = memcheck(&valgrind, &program, bug);
        for line in lines {
            assert!(said.contains(line), "{bug}: no '{line}': {said}");
        }
    }
}

/// Runs the program so that it tells the runtime of its sanitizer.
fn watched(program: &Path, bug: &str) -> Outcome {
    let run = Run::of(program).args([bug]);
    run.variable("USLUB_WATCH", "1").plainly()
}

/// The program, built with a sanitizer; nothing if its runtime is not installed.
fn sanitized(option: &str) -> Option<std::path::PathBuf> {
    prefix()?;
    let folder = tempfile::tempdir().ok()?;
    let (source, target) = (folder.path().join("p.c"), folder.path().join("p"));
    std::fs::write(&source, "int main(void) { return 0; }\n").ok()?;
    let mut command = Command::new(tool("cc")?);
    command.arg(option).arg("-o").arg(&target).arg(&source);
    if !command.output().is_ok_and(|output| output.status.success()) {
        say_skipped(&format!("checkers: no {option}"));
        return None;
    }
    program(SOURCE, Linked::Static, &[option])
}

#[test]
fn address_sanitizer_sees_overruns_and_what_follows_a_free() {
    let Some(program) = sanitized("-fsanitize=address") else {
        return;
    };
    watched(&program, "none").succeeded().wrote("end");
    for bug in ["over", "under", "after"] {
        let said = watched(&program, bug);
        let found = said.stderr.contains("AddressSanitizer: use-after-poison")
            && said.stderr.contains("WRITE of size 1");
        assert!(
            found && !said.status.success(),
            "{bug}: {}",
            said.describe()
        );
    }
}

#[test]
fn thread_sanitizer_sees_no_race_where_objects_change_hands() {
    let Some(program) = sanitized("-fsanitize=thread") else {
        return;
    };
    let said = watched(&program, "threads").succeeded();
    assert!(!said.stderr.contains("data race"), "{}", said.describe());
}
