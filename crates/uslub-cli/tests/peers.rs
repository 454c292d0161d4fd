//! `uslub bench peers`: what it writes where, and what it says when it is asked for something else.

mod support;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;
use std::fs;
use support::{text, uslub_assert};
use tempfile::tempdir;

#[test]
fn rows_say_who_is_best_and_the_page_shows_all() {
    let folder = tempdir().unwrap();
    let (html, json) = (
        folder.path().join("page.html"),
        folder.path().join("rows.json"),
    );
    let words = [
        "bench",
        "peers",
        "P1",
        "--quick",
        "--html",
        text(&html),
        "--json",
        text(&json),
    ];
    let table = contains("P1: One object").and(contains("best peer"));
    uslub_assert(&words).assert().success().stdout(table);
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("Cache&lt;T&gt;"));
    let json: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let names: Vec<_> = json["allocators"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| &a[0])
        .collect();
    assert!(names.contains(&&Value::from("uslub")) && names.contains(&&Value::from("glibc")));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 7);
    for row in rows {
        for key in [
            "name",
            "unit",
            "ours",
            "best",
            "best_name",
            "ratio",
            "goal",
            "met",
        ] {
            assert!(row.get(key).is_some(), "{key} of {row}");
        }
        assert!(row["peers"]["glibc"].is_number(), "{row}");
        let least = row["peers"].as_object().unwrap().values();
        let least = least.filter_map(Value::as_f64).fold(f64::MAX, f64::min);
        assert_eq!(row["best"].as_f64(), Some(least), "{row}");
    }
}

#[test]
fn an_unknown_part_is_named_with_the_known_ones() {
    let known = contains("no part 'P9'; there are P1, P2, P3, P4, P5, P6, P7, P8, K and all");
    uslub_assert(&["bench", "peers", "P1", "P9"])
        .assert()
        .code(2)
        .stderr(known);
}

#[test]
fn a_child_says_nothing_but_its_report() {
    let words = ["bench", "peer-child", "glibc", "sleep", "3"];
    let assert = uslub_assert(&words).assert().success();
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert!(report["per_thread"].is_number());
    let wrong = ["bench", "peer-child", "glibc", "dance", "3"];
    uslub_assert(&wrong)
        .assert()
        .code(2)
        .stderr(contains("no work 'dance'"));
    let nobody = ["bench", "peer-child", "nobody", "sleep", "3"];
    uslub_assert(&nobody)
        .assert()
        .code(125)
        .stderr(contains("nobody is not available"));
}

/// A program's peak must be its own, not that of who started it.
#[test]
fn what_a_program_costs_is_said_of_the_program_alone() {
    let peak = |script: &str| {
        let words = ["bench", "program-child", "", "sh", "-c", script];
        let assert = uslub_assert(&words).assert().success();
        let cost: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
        assert_eq!(cost["status"], 7 << 8);
        cost["peak"].as_f64().unwrap()
    };
    // This process is large now; the program is started by one that is not.
    let large = vec![1u8; 256 << 20];
    let small = peak("exit 7");
    assert!(small < 64e6, "{small}");
    let more = peak("x=$(head -c 100000000 /dev/zero | tr '\\0' x); exit 7");
    assert!(more > small + 90e6, "{more}");
    assert_eq!(large[large.len() / 2], 1);
    let nobody = ["bench", "program-child", "", "no-such-program"];
    uslub_assert(&nobody)
        .assert()
        .code(125)
        .stderr(contains("no-such-program"));
}
