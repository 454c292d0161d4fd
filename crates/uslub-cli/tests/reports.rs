//! From the report that a library writes to what the user sees, with a library
//! of a few lines in place of the real one, so that every figure is known.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::OnceLock;
use support::{compile, text, uslub_command};
use tempfile::{TempDir, tempdir};

/// Writes a report at the end of each process, however it is ended: the text in
/// `FAKE_LINES` with the process id in place of `PID`, or none when that is not set.
/// (`dash` ends by `_exit`, which runs no destructors.)
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((destructor)) static void report(void) {
    const char *folder = getenv("USLUB_REPORT"), *lines = getenv("FAKE_LINES"), *pid;
    char path[4096];
    if (!folder || !lines) return;
    snprintf(path, sizeof path, "%s/%d.json", folder, (int)getpid());
    FILE *file = fopen(path, "w");
    if (!file) return;
    while ((pid = strstr(lines, "PID"))) {
        fprintf(file, "%.*s%d", (int)(pid - lines), lines, (int)getpid());
        lines = pid + 3;
    }
    fputs(lines, file);
    fclose(file);
}
void _exit(int status) {
    report();
    for (;;) syscall(SYS_exit_group, status);
}
"#;

/// The library; `None` where there is no C compiler.
fn library() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempdir().unwrap();
        let library = folder.path().join("libfake.so");
        compile(LIBRARY, &["-shared", "-fPIC"], &library).then_some((folder, library))
    });
    built.as_ref().map(|(_, library)| library.clone())
}

/// Runs `uslub run` with that library and lines; `None` where it cannot be built.
fn run(lines: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = uslub_command(&[&["run"], arguments].concat());
    command
        .env("USLUB_LIBRARY", library()?)
        .env("FAKE_LINES", lines);
    Some(command.output().unwrap())
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A report with one cache that has objects and one that has none.
fn lines() -> String {
    let process = json!({
        "version": 2, "pid": 4711, "parent_pid": 1, "birth": "exec", "program": "fake",
        "own_malloc": 0, "mode": "rseq mm_cid", "large_objs": 0, "peak_large_bytes": 0,
        "rss_bytes": 2 << 20, "peak_rss_bytes": 3 << 20, "live_bytes": 1024, "cached_bytes": 512,
        "free_bytes": 256, "slab_bytes": 8192, "large_bytes": 0, "huge_bytes": 0,
        "dirty_bytes": 0, "metadata_bytes": 4096, "allocs": 1000, "frees": 990,
    });
    let cache = |name, objects: u64| {
        json!({
            "name": name, "live_objs": objects / 2, "live_bytes": objects * 32,
            "cached_bytes": 512, "slab_bytes": objects * 64, "peak_bytes": objects * 128,
            "active_objs": objects, "num_objs": objects, "objsize": 64,
            "objperslab": 64, "pagesperslab": 1, "active_slabs": objects.div_ceil(64),
            "num_slabs": objects.div_ceil(64), "cached_objs": 8, "alloc_fastpath": objects * 9,
            "alloc_slowpath": objects, "free_fastpath": 0, "free_slowpath": 0, "alloc_slab": 1,
            "free_slab": 0, "sheaf_refill": 0, "sheaf_flush": 0, "barn_get": 0,
            "barn_get_fail": 0, "barn_put": 0, "barn_put_fail": 0,
        })
    };
    let mut process = process;
    process["caches"] = json!([cache("kmalloc-64", 100), cache("kmalloc-96", 0)]);
    process.to_string().replace("4711", "PID")
}

#[test]
fn the_summary_and_the_table_show_the_report() {
    let Some(output) = run(&lines(), &["true"]) else {
        return;
    };
    let text = stderr(&output);
    let (headline, rest) = text.split_once('\n').unwrap();
    assert!(
        headline.starts_with("uslub: true exited with 0 in 0."),
        "{headline}"
    );
    assert_eq!(
        rest,
        "  memory     peak 3.0 MiB, at exit 2.0 MiB
  objects    live 1.0 KiB, cached in sheaves 512 B, free in slabs 256 B
  pages      slabs 8.0 KiB, large 0 B, huge 0 B, kept for reuse 0 B, tables 4.0 KiB
  calls      1 000 allocations, 990 frees; 90.0 % from sheaves
  per-CPU    rseq mm_cid

cache       live objects  live bytes  cached  peak bytes     use
kmalloc-64            50     3.1 KiB   512 B    12.5 KiB  50.0 %
"
    );
    let Some(output) = run(&lines(), &["--slabinfo", "true"]) else {
        return;
    };
    let text = stderr(&output);
    let table = "
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
kmalloc-64           100    100     64   64    1 : tunables    0    0    0 : slabdata      2      2      0
";
    assert!(text.ends_with(table), "{text}");
}

#[test]
fn children_are_told_in_a_line() {
    let Some(output) = run(&lines(), &["sh", "-c", "/bin/true; /bin/true; exit 3"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    let line = "\n  children   2 on uslub, largest peak 3.0 MiB, 2 000 allocations\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_process_that_another_program_took_over_reports_as_one() {
    let Some(output) = run(&lines(), &["sh", "-c", "exec true"]) else {
        return;
    };
    let text = stderr(&output);
    assert!(
        text.contains("uslub: sh exited with 0") && text.contains("kmalloc-64"),
        "{text}"
    );
    assert!(!text.contains("children"), "{text}");
}

#[test]
fn a_malformed_report_is_told_and_the_exit_status_stays() {
    for (lines, words) in [
        ("{\"version\": 2", "the report is malformed"),
        (
            "{\"version\": 2, \"caches\": []}\n",
            "the report is malformed: missing field",
        ),
        ("{\"version\": 99}\n", "format version 99, not 2"),
        ("\n", "the report is empty"),
    ] {
        let Some(output) = run(lines, &["sh", "-c", "exit 4"]) else {
            return;
        };
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(4));
        assert!(
            text.contains(words) && text.contains("  memory     peak "),
            "{text}"
        );
    }
}

#[test]
fn a_program_that_does_not_report_is_told_with_the_reason() {
    for (script, words) in [
        (
            "kill -9 $$",
            "no report  it was killed by SIGKILL before it could report",
        ),
        (
            "unset FAKE_LINES; exec true",
            "no report  it ended as 'true', without uslub",
        ),
    ] {
        let Some(output) = run(&lines(), &["sh", "-c", script]) else {
            return;
        };
        let text = stderr(&output);
        assert!(
            text.contains(words) && text.contains("  memory     peak "),
            "{text}"
        );
        assert!(!text.contains("live objects"), "{text}");
    }
}

#[test]
fn the_record_holds_all_that_is_known() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("r.json");
    let read = || -> Value { serde_json::from_slice(&fs::read(&file).unwrap()).unwrap() };
    let options = ["-q", "--report", text(&file), "--", "sh", "-c"];

    let Some(output) = run(&lines(), &[&options[..], &["/bin/true; exit 7"]].concat()) else {
        return;
    };
    assert_eq!(stderr(&output), "");
    let record = read();
    assert_eq!(record["command"], json!(["sh", "-c", "/bin/true; exit 7"]));
    assert_eq!(record["exit_status"], 7);
    assert_eq!(record["signal"], Value::Null);
    assert!(record["wall_seconds"].as_f64().unwrap() > 0.0);
    assert!(record["max_rss_bytes"].as_u64().unwrap() > 100_000);
    assert_eq!(record["process"]["allocs"], 1000);
    assert_eq!(record["process"]["caches"].as_array().unwrap().len(), 2);
    assert_eq!(record["process"]["caches"][0]["name"], "kmalloc-64");
    assert_eq!(record["children"].as_array().unwrap().len(), 1);
    assert_ne!(record["children"][0]["pid"], record["process"]["pid"]);

    run(&lines(), &[&options[..], &["kill -15 $$"]].concat());
    let record = read();
    assert_eq!(record["signal"], 15);
    assert_eq!(record["signal_name"], "SIGTERM");
    assert_eq!(record["process"], Value::Null);
    let why = record["no_report"].as_str().unwrap();
    assert!(why.starts_with("it was killed by SIGTERM"), "{why}");
}
