//! `uslub fail`: each allocation of a program fails once.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use support::uslub_command;
use tempfile::{TempDir, tempdir};

/// A program whose second allocation is not checked, and whose third one hangs it.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *volatile kept;
__attribute__((noinline)) static void checked(void) {
    if (!(kept = malloc(24)))
        exit(3);
}
__attribute__((noinline)) static void unchecked(void) {
    kept = malloc(100);
    memset(kept, 1, 100);
}
__attribute__((noinline)) static void patient(void) {
    while (!(kept = malloc(20000)))
        pause();
}
int main(void) {
    checked();
    unchecked();
    patient();
    return 0;
}
"#;

fn compiled() -> Option<(TempDir, PathBuf)> {
    let folder = tempdir().unwrap();
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    fs::write(&source, PROGRAM).unwrap();
    let mut command = Command::new("cc");
    command.args(["-g", "-O1", "-o"]).arg(&program).arg(&source);
    match command.status() {
        Ok(status) => assert!(status.success(), "cc fails"),
        Err(_) => {
            eprintln!("skipped: there is no C compiler");
            return None;
        }
    }
    Some((folder, program))
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_crash_and_a_hang_are_found_with_the_stack_of_the_failure() {
    let Some((_folder, program)) = compiled() else {
        return;
    };
    let mut command = uslub_command(&["fail", "--timeout", "1", "--jobs", "2"]);
    let output = command.arg(&program).output().unwrap();
    let text = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for line in [
        "  without a failure: exited with 0\n",
        "  allocations 1 to 3 failed in turn (the program makes no more):\n",
        "        1 run  exited with 3\n",
        "        1 run  killed by SIGSEGV\n",
        "        1 run  hung\n",
        "killed by SIGSEGV when allocation 2 failed (100 bytes, kmalloc-112):\n  unchecked at ",
        "hung when allocation 3 failed (20000 bytes, large object):\n  patient at ",
        "p.c:",
    ] {
        assert!(text.contains(line), "no '{line}': {text}");
    }
}

#[test]
fn bounds_choose_the_allocations() {
    let Some((_folder, program)) = compiled() else {
        return;
    };
    let mut command = uslub_command(&["fail", "--from", "1", "--to", "1"]);
    let output = command.arg(&program).output().unwrap();
    let text = shown(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("allocations 1 to 1 failed in turn (the last one asked for)"),
        "{text}"
    );
    let mut command = uslub_command(&["fail", "--from", "5", "--to", "2"]);
    let output = command.arg(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("--to is below --from (5)"), "{errors}");
}
