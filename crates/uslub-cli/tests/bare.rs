//! The report of a program that runs on a bare `LD_PRELOAD`, in the place that `USLUB_REPORT` names.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{text, uslub, uslub_command};
use tempfile::tempdir;

/// The library that the command would preload.
fn library() -> PathBuf {
    let folder = uslub().parent().unwrap().to_owned();
    let places = [folder.clone(), folder.join("deps")].map(|at| at.join("libuslub_malloc.so"));
    let newest = places.into_iter().filter(|file| file.exists());
    newest
        .max_by_key(|file| fs::metadata(file).unwrap().modified().unwrap())
        .unwrap()
}

/// Runs a program on the library, with its report at `place`.
fn run_in(folder: &Path, place: &str, words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder);
    command
        .env("LD_PRELOAD", library())
        .env("USLUB_REPORT", place);
    command.env_remove("USLUB_HELPER").output().unwrap()
}

fn json(file: &Path) -> Value {
    let text = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&text).unwrap()
}

fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().flatten();
    names
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_limit_of_file_sizes_costs_the_report_only() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    std::os::unix::fs::symlink("b.json", at.join("link")).unwrap();
    for limit in [0, 1, 4] {
        for place in ["a.json", "link", "."] {
            fs::write(at.join("b.json"), "").unwrap();
            let line = format!("ulimit -f {limit}; exec ls /");
            let output = run_in(at, place, &["bash", "-c", &line]);
            assert_eq!(output.status.code(), Some(0), "{limit} {place}: {output:?}");
            // The shell had no limit when it made its empty file.
            let left = entries(at)
                .into_iter()
                .filter(|name| !name.ends_with(".map"));
            let left: BTreeSet<_> = left.collect();
            assert!(
                left.iter().eq(["b.json", "link"]),
                "{limit} {place}: {left:?}"
            );
        }
    }
}

#[test]
fn a_file_gets_the_report_of_the_process_that_ends_last() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let absolute = at.join("a.json");
    for place in [text(&absolute), "a.json", "./a.json"] {
        let output = run_in(
            at,
            place,
            &["sh", "-c", "cd /; /bin/ls > /dev/null; exit 4"],
        );
        assert_eq!(output.status.code(), Some(4));
        assert!(output.stderr.is_empty(), "{output:?}");
        // The shell ends after its child, wherever its folder is by then.
        let report = json(&absolute);
        assert_eq!(
            (&report["program"], &report["birth"]),
            (&"sh".into(), &"exec".into())
        );
        assert!(report["allocs"].as_u64().unwrap() > 0, "{report}");
        assert!(!report["caches"].as_array().unwrap().is_empty(), "{report}");
        assert_eq!(entries(at), ["a.json"], "no other file is left");
        fs::remove_file(&absolute).unwrap();
    }
}

#[test]
fn a_folder_gets_the_report_of_each_process() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let output = run_in(at, ".", &["sh", "-c", "/bin/ls > /dev/null; (:); true"]);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let files = entries(at);
    assert!(
        files.iter().all(|name| name.ends_with(".json")),
        "{files:?}"
    );
    let reports: Vec<_> = files.iter().map(|name| json(&at.join(name))).collect();
    let mut kinds: Vec<_> = reports
        .iter()
        .map(|report| format!("{} {}", report["program"], report["birth"]).replace('"', ""))
        .collect();
    kinds.sort();
    assert_eq!(kinds, ["ls exec", "sh exec", "sh fork"]);
    let of = |kind: &str| {
        reports
            .iter()
            .find(|report| report["birth"] == kind || report["program"] == kind)
    };
    let shell = reports
        .iter()
        .find(|one| one["program"] == "sh" && one["birth"] == "exec")
        .unwrap();
    for kind in ["ls", "fork"] {
        assert_eq!(of(kind).unwrap()["parent_pid"], shell["pid"], "{kind}");
    }
    for (name, report) in files.iter().zip(&reports) {
        assert_eq!(*name, format!("{}.json", report["pid"]));
    }
}

#[test]
fn the_command_and_a_bare_preload_write_the_same_object() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    run_in(at, "bare.json", &["ls", "/"]);
    let file = at.join("run.json");
    let words = ["run", "-q", "--report", text(&file), "ls", "/"];
    assert!(uslub_command(&words).output().unwrap().status.success());
    let (bare, run) = (json(&at.join("bare.json")), json(&file));
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&bare), keys(&run["process"]));
    assert_eq!(keys(&bare["caches"][0]), keys(&run["process"]["caches"][0]));
    assert_eq!(bare["version"], run["version"]);
}

#[test]
fn a_place_that_cannot_be_used_is_named_with_the_reason_and_the_program_runs() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("file"), "").unwrap();
    let long = "x".repeat(5000);
    for (place, why) in [
        ("no/such/r.json", "the folder does not exist"),
        ("no/such/", "the folder does not exist"),
        ("file/r.json", "the folder is a file"),
        ("", "it names neither a folder nor a file"),
        ("/proc/r.json", "no file can be created in the folder"),
        (&*long, "the path is too long"),
    ] {
        let output = run_in(at, place, &["/bin/echo", "it runs"]);
        assert_eq!(output.stdout, b"it runs\n");
        let said = String::from_utf8(output.stderr).unwrap();
        let shown = &place[..place.len().min(200)];
        let expected = format!("uslub: USLUB_REPORT={shown}: {why}; there will be no report\n");
        assert_eq!(said, expected);
    }
    assert_eq!(entries(at), ["file"]);
}

#[test]
fn what_is_no_file_is_written_to_and_not_replaced() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    let output = run_in(at, "/dev/stderr", &["/bin/true"]);
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["program"], "true");
    fs::write(at.join("log"), "before\n").unwrap();
    std::os::unix::fs::symlink("log", at.join("link")).unwrap();
    run_in(at, "link", &["/bin/true"]);
    assert!(fs::symlink_metadata(at.join("link")).unwrap().is_symlink());
    let log = fs::read_to_string(at.join("log")).unwrap();
    assert!(log.starts_with("before\n{\"version\":"), "{log}");
}

#[test]
fn a_process_that_is_killed_leaves_an_empty_file_in_the_folder_only() {
    let folder = tempdir().unwrap();
    let at = folder.path();
    run_in(at, "r.json", &["sh", "-c", "kill -9 $$"]);
    assert!(entries(at).is_empty());
    run_in(at, ".", &["sh", "-c", "kill -9 $$"]);
    let files = entries(at);
    assert!(files.len() == 1 && files[0].ends_with(".map"), "{files:?}");
    assert!(
        fs::read(at.join(&files[0]))
            .unwrap()
            .iter()
            .all(|&byte| byte == 0)
    );
}
