//! `uslub sim`: tables, files, and messages for wrong options.

use assert_cmd::Command;
use predicates::prelude::*;

fn sim(words: &[&str]) -> Command {
    let mut command = Command::cargo_bin("uslub").unwrap();
    command
        .arg("sim")
        .args(words)
        .args(["--warm-ms", "0.1", "--run-ms", "0.2"]);
    command
}

#[test]
fn a_sweep_prints_every_combination_and_writes_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (folder.path().join("a.json"), folder.path().join("a.html"));
    let files = [
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ];
    let words = [
        "--workload",
        "maple",
        "--cpus",
        "1,4",
        "--set",
        "sheaf_spill=0,1",
        "--set",
        "empty_reserve=0,1",
    ];
    let output = sim(&[&words[..], &files].concat()).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 9, "{text}");
    assert!(text.contains("sheaf_spill=1 empty_reserve=1"), "{text}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["points"].as_array().unwrap().len(), 8);
    let page = std::fs::read_to_string(html).unwrap();
    assert_eq!(page.matches("<svg").count(), 6);
    assert!(page.contains("Waiting for list locks"));
}

#[test]
fn the_same_command_prints_the_same() {
    let print = || {
        sim(&["--workload", "hackbench", "--cpus", "8", "--json", "-"])
            .output()
            .unwrap()
            .stdout
    };
    let first = print();
    assert!(!first.is_empty());
    assert_eq!(first, print());
}

#[test]
fn a_wrong_option_is_named_with_the_accepted_ones() {
    for (words, message) in [
        (
            ["--workload", "tree"],
            "pairs, flow, ublk, maple, hackbench, bulk, trace",
        ),
        (["--cpus", "513"], "1 to 512"),
        (["--nodes", "17"], "1 to 16"),
        (["--set", "colour=1"], "unknown tunable 'colour'"),
        (["--set", "sheaf_spill=3"], "takes 0 to 2"),
        (["--cost", "far=1"], "remote_memory"),
        (["--link", "long"], "near, far, ring"),
        (["--workload", "trace"], "no trace is given"),
        (["--trace", "/dev/null"], "for the load 'trace'"),
    ] {
        sim(&words)
            .assert()
            .code(2)
            .stderr(predicate::str::contains(message));
    }
}

#[test]
fn a_trace_of_ones_own_is_played() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0 a 1 256\n1 f 1\n0 w 100\n").unwrap();
    let path = file.path().to_str().unwrap();
    sim(&["--workload", "trace", "--trace", path, "--cpus", "2"])
        .assert()
        .success();
    std::fs::write(file.path(), "0 a 1\n").unwrap();
    sim(&["--workload", "trace", "--trace", path])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("line 1"));
}
