//! `uslub run` with the library that users get.

mod support;

use serde_json::Value;
use std::fs;
use std::process::Stdio;
use support::{text, uslub_assert, uslub_command};
use tempfile::tempdir;

/// The rows of the slabinfo table in `stderr`, in words.
fn rows(stderr: &str) -> Vec<Vec<&str>> {
    let mut lines = stderr
        .lines()
        .skip_while(|l| *l != "slabinfo - version: 2.1");
    assert!(lines.next().is_some(), "there is no table: {stderr}");
    assert!(
        lines.next().is_some_and(|l| l.starts_with("# name ")),
        "{stderr}"
    );
    lines.map(|l| l.split_whitespace().collect()).collect()
}

#[test]
fn a_program_prints_its_output_and_then_the_table() {
    let input: String = (0..50_000)
        .map(|i| format!("line {}\n", i * 7919 % 50_000))
        .collect();
    let mut sorted: Vec<_> = input.lines().collect();
    sorted.sort_unstable();
    let assert = uslub_assert(&["run", "--slabinfo", "sort"])
        .env("LC_ALL", "C")
        .write_stdin(&*input)
        .assert();
    let output = assert.success().get_output().clone();
    assert_eq!(
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .collect::<Vec<_>>(),
        sorted
    );

    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("uslub: sort exited with 0 in "),
        "{stderr}"
    );
    for label in ["memory", "objects", "pages", "calls", "per-CPU"] {
        assert!(
            stderr.contains(&format!("\n  {label:<9}  ")),
            "{label} is missing: {stderr}"
        );
    }
    let rows = rows(&stderr);
    assert!(
        rows.iter().any(|r| r[0].starts_with("kmalloc-")),
        "{stderr}"
    );
    for row in rows {
        assert_eq!(row.len(), 16, "{row:?}");
        assert_eq!(
            (row[6], row[7], row[11], row[12]),
            (":", "tunables", ":", "slabdata")
        );
        let number = |i: usize| row[i].parse::<u64>().unwrap();
        let [active, all, per_slab, slabs] = [number(1), number(2), number(4), number(14)];
        assert!(active <= all && all == per_slab * slabs, "{row:?}");
        assert!(number(13) <= slabs, "{row:?}");
    }
}

#[test]
fn the_record_of_a_real_run_adds_up() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("r.json");
    uslub_assert(&[
        "run",
        "-q",
        "--report",
        text(&file),
        "--",
        "sh",
        "-c",
        "/bin/true; exit 3",
    ])
    .assert()
    .code(3)
    .stderr("");
    let record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let process = &record["process"];
    let number = |name: &str| {
        process[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {record}"))
    };
    assert!(
        number("allocs") >= number("frees") && number("allocs") > 0,
        "{record}"
    );
    assert!(number("peak_rss_bytes") >= number("rss_bytes"), "{record}");
    assert!(number("live_bytes") > 0, "{record}");
    assert_eq!(record["children"].as_array().unwrap().len(), 1, "{record}");
    assert!(
        !record["process"]["caches"].as_array().unwrap().is_empty(),
        "{record}"
    );
}

#[test]
fn children_stay_off_uslub_when_they_shall_not_follow() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("r.json");
    for (follow, children) in [("yes", 2), ("no", 0)] {
        let mut command = uslub_command(&["run", "-q", "--follow", follow]);
        command.args([
            "--report",
            text(&file),
            "--",
            "sh",
            "-c",
            "/bin/true; /bin/true; exit 0",
        ]);
        assert!(command.stdin(Stdio::null()).status().unwrap().success());
        let record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert!(record["process"].is_object(), "{record}");
        assert_eq!(
            record["children"].as_array().unwrap().len(),
            children,
            "{record}"
        );
    }
}

#[test]
fn tunables_reach_the_library() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("r.json");
    let mode = |set| {
        let report = text(&file);
        uslub_assert(&["run", "-q", "--set", set, "--report", report, "--", "true"])
            .assert()
            .success();
        let record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        record["process"]["mode"].as_str().unwrap().to_owned()
    };
    assert_eq!(mode("rseq=0"), "try-lock");
    // Where there are restartable sequences.
    if mode("rseq=1") != "try-lock" {
        assert_eq!(mode("rseq=2"), "rseq cpu_id");
    }
}
