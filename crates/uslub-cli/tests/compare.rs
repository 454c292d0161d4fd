//! `uslub bench run`: which runs it makes, what it says of them, and how it ends when one fails.

mod support;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::{contains, is_empty};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use support::{text, uslub_assert, uslub_command};
use tempfile::tempdir;

#[test]
fn every_allocator_has_a_row_and_runs_as_often_as_was_asked() {
    let folder = tempdir().unwrap();
    let (json, runs) = (folder.path().join("rows.json"), folder.path().join("runs"));
    let script = format!("echo \"$LD_PRELOAD\" >> {}", text(&runs));
    let words = [
        "bench",
        "run",
        "--rounds",
        "2",
        "--json",
        text(&json),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let table = contains("glibc")
        .and(contains("uslub"))
        .and(contains("2 rounds"));
    uslub_assert(&words).assert().success().stdout(table);
    let json: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(json["rounds"], 2);
    assert_eq!(json["command"][0], "sh");
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.len() + json["absent"].as_array().unwrap().len() == 5);
    assert_eq!(rows[0]["name"], "glibc");
    assert_eq!(rows[1]["name"], "uslub");
    for row in rows {
        for part in ["cpu", "wall", "peak"] {
            let ratio = &row[format!("{part}_ratio")];
            assert!(
                ratio["least"].as_f64() <= ratio["greatest"].as_f64(),
                "{row}"
            );
        }
        assert!(
            row["peak_bytes"]["median"].as_f64() > Some(65536.0),
            "{row}"
        );
    }
    // The warm-up is a run too; one line is empty, the one without a preloaded library.
    let runs = fs::read_to_string(&runs).unwrap();
    assert_eq!(runs.lines().count(), 3 * rows.len());
    assert_eq!(
        runs.lines()
            .filter(|line| line.contains("libuslub_malloc"))
            .count(),
        3
    );
    assert_eq!(runs.lines().next(), Some(""));
}

#[test]
fn the_program_reads_the_file_and_its_output_is_shown_on_request() {
    let folder = tempdir().unwrap();
    let input = folder.path().join("input");
    fs::write(&input, "a line to see\n").unwrap();
    let words = ["bench", "run", "--rounds", "1", "--input", text(&input)];
    let shown = [&words[..], &["--show-output", "--", "cat"]].concat();
    uslub_assert(&shown)
        .assert()
        .success()
        .stdout(contains("a line to see"));
    let hidden = [&words[..], &["--", "cat"]].concat();
    let silent = contains("a line to see").not();
    uslub_assert(&hidden).assert().success().stdout(silent);
}

#[test]
fn a_program_that_fails_is_not_compared_unless_that_is_no_failure() {
    let failed = contains("sh exited with 3 on glibc").and(contains("--ignore-failure"));
    let words = ["bench", "run", "--rounds", "1", "--", "sh", "-c", "exit 3"];
    uslub_assert(&words)
        .assert()
        .code(125)
        .stdout(is_empty())
        .stderr(failed);
    let words = [
        "bench",
        "run",
        "--rounds",
        "1",
        "--ignore-failure",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    uslub_assert(&words)
        .assert()
        .success()
        .stdout(contains("uslub"));
}

#[test]
fn a_signal_of_the_terminal_that_ends_the_program_ends_us() {
    let mut command = uslub_command(&["bench", "run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(command.status().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn wrong_words_are_named() {
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--rounds", "0", "true"], 2, "from 1 to 10000"),
        (
            &["--input", "/no/such", "cat"],
            2,
            "/no/such cannot be read",
        ),
        (
            &["--json", "/no/such/file", "true"],
            125,
            "/no/such/file cannot be written",
        ),
        (
            &["/no/such/program"],
            127,
            "/no/such/program does not exist",
        ),
    ];
    for (words, code, reason) in cases {
        let words = [&["bench", "run"], words].concat();
        uslub_assert(&words)
            .assert()
            .code(code)
            .stderr(contains(reason));
    }
}
