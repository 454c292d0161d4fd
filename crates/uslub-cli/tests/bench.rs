//! `uslub bench seeds`: what it writes where, and what it says when it is asked for something else.

mod support;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::{contains, is_empty, starts_with};
use serde_json::Value;
use std::fs;
use support::{text, uslub_assert};
use tempfile::tempdir;

#[test]
fn json_on_standard_output_is_nothing_but_json() {
    let mut command = uslub_assert(&["bench", "seeds", "3", "--quick", "--json", "-"]);
    let assert = command.assert().success();
    let output = assert.get_output();
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!(row["seed"], 3);
        for key in [
            "name", "unit", "old", "new", "change", "reported", "goal", "met",
        ] {
            assert!(row.get(key).is_some(), "{key} of {row}");
        }
    }
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(
        said.contains("Not met, ") || said.contains("goals are met."),
        "{said}"
    );
}

#[test]
fn a_page_and_a_file_of_json_beside_the_table() {
    let folder = tempdir().unwrap();
    let (html, json) = (
        folder.path().join("page.html"),
        folder.path().join("rows.json"),
    );
    let words = [
        "bench",
        "seeds",
        "3",
        "--quick",
        "--html",
        text(&html),
        "--json",
        text(&json),
    ];
    let table = contains("Seed 3: ")
        .and(contains("hackbench"))
        .and(contains("reported"));
    uslub_assert(&words).assert().success().stdout(table);
    assert!(
        fs::read_to_string(&html)
            .unwrap()
            .starts_with("<!doctype html>")
    );
    let rows: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 8);
}

#[test]
fn a_seed_that_there_is_not() {
    for wrong in ["5", "two", "0x1"] {
        uslub_assert(&["bench", "seeds", wrong])
            .assert()
            .code(2)
            .stdout(is_empty())
            .stderr(starts_with(format!(
                "uslub: no seed '{wrong}'; there are 0, 1, 2, 3, 4 and all\n"
            )));
    }
}

#[test]
fn a_bench_that_there_is_not_and_an_unknown_option() {
    uslub_assert(&["bench", "oaks"])
        .assert()
        .code(2)
        .stderr(contains("unknown command 'oaks'; known are seeds"));
    uslub_assert(&["bench", "seeds", "--fast"])
        .assert()
        .code(2)
        .stderr(contains("known options: --quick, --html, --json"));
}

#[test]
fn a_file_that_cannot_be_written_is_said_at_once() {
    let words = ["bench", "seeds", "--html", "/no/such/folder/page.html"];
    uslub_assert(&words)
        .assert()
        .code(125)
        .stdout(is_empty())
        .stderr(contains("/no/such/folder/page.html cannot be written"));
}
