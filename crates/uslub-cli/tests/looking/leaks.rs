//! `uslub leaks`: the cache that grows is found, the others are not blamed.

use crate::inspected::{Paused, said, uslub};
use crate::start;
use crate::support::put;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Keeps objects of 368 bytes; fills and empties 176; keeps 1248 as they are. Ends after the given
/// number of rounds.
const GROWS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *saw[1000];
int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 100000;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < 500; i++)
        if (!malloc(1248))
            return 1;
    puts("ready");
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < 20; i++)
            if (!malloc(368))
                return 1;
        int part = round % 25;
        for (int i = 0; i < 40; i++)
            saw[part * 40 + i] = malloc(176);
        if (part == 24)
            for (int i = 0; i < 1000; i++)
                free(saw[i]);
        usleep(4000);
    }
    return 0;
}
"#;

fn cache<'a>(report: &'a Value, name: &str) -> &'a Value {
    let caches = report["caches"].as_array().expect("caches");
    let found = caches.iter().find(|cache| cache["name"] == name);
    found.unwrap_or_else(|| panic!("no cache '{name}': {report}"))
}

fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_cache_that_grows_is_suspect_and_no_other_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(running) = start(&folder, "grows", GROWS) else {
        return;
    };
    let pid = running.pid();
    let arguments = ["leaks", &pid, "--for", "2s", "--every", "100ms"];
    let output = uslub(&[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "a finding has status 1");
    let report = parsed(&output);
    assert_eq!(report["format"], 1);
    let leak = cache(&report, "kmalloc-368");
    assert_eq!(leak["verdict"], "suspect", "{leak}");
    let number = |key: &str| leak[key].as_f64().expect("a number");
    assert_eq!(number("bytes"), number("last") * 368.0);
    assert!(number("first") > 0.0 && number("last") > number("first"));
    // The median of the slopes is near the mean rate, and the forecast follows from it.
    let mean = (number("last") - number("first")) / report["seconds"].as_f64().expect("a time");
    let rate = number("objects_per_second");
    assert!(rate > mean / 3.0 && rate < mean * 3.0, "{rate} {mean}");
    let hour = number("bytes") + number("bytes_per_second") * 3600.0;
    assert!((number("bytes_in_an_hour") - hour).abs() < 2.0);
    assert_ne!(cache(&report, "kmalloc-176")["verdict"], "suspect");
    let kept = cache(&report, "kmalloc-1248");
    assert_eq!(
        (&kept["verdict"], &kept["last"]),
        (&"still".into(), &500.into())
    );

    let output = uslub(&arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().find(|line| line.starts_with("kmalloc-368 "));
    assert!(row.is_some_and(|row| row.contains("suspect")), "{text}");
    assert!(
        text.contains(&format!("uslub list {pid} 'kmalloc-368'")),
        "{text}"
    );
    assert!(text.contains("not known: "), "{text}");
    assert!(!text.contains("kmalloc-1248"), "{text}");
}

#[test]
fn a_process_at_rest_has_no_suspect() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = crate::inspected::preloaded(&folder) else {
        return;
    };
    let text = said(&["leaks", &paused.pid(), "--for", "300ms", "--every", "100ms"]);
    assert!(text.contains("4 looks in 0.3"), "{text}");
    assert!(
        !text.contains("suspect") && text.contains("not grow"),
        "{text}"
    );
    let all = said(&[
        "leaks",
        &paused.pid(),
        "--for",
        "100ms",
        "--every",
        "100ms",
        "--all",
    ]);
    let row = all.lines().find(|line| line.starts_with("kmalloc-176 "));
    assert!(
        row.is_some_and(|row| row.contains("does not grow")),
        "{all}"
    );
}

#[test]
fn the_end_of_the_process_or_a_signal_ends_the_watch() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(first) = start(&folder, "grows", GROWS) else {
        return;
    };
    let mut watching = Command::new(env!("CARGO_BIN_EXE_uslub"));
    watching.args([
        "leaks",
        &first.pid(),
        "--for",
        "1h",
        "--every",
        "50ms",
        "--json",
    ]);
    let mut watch = |paused: &Paused, end: &dyn Fn(&Paused, i32)| {
        let watching = watching
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        std::thread::sleep(Duration::from_millis(1500));
        end(paused, watching.id() as i32);
        let report = parsed(&watching.wait_with_output().expect("an end"));
        assert!(report["looks"].as_u64() > Some(1), "{report}");
        report["ended"].as_str().unwrap_or("").to_owned()
    };
    let ended = watch(&first, &|_, command| {
        kill(Pid::from_raw(command), Signal::SIGINT).expect("the command runs");
    });
    assert_eq!(ended, "a signal ended the watch");
    let ended = watch(&first, &|paused, _| {
        let pid = Pid::from_raw(paused.child.id() as i32);
        kill(pid, Signal::SIGKILL).expect("the process runs");
    });
    // The process stays a zombie until the test reaps it.
    assert_eq!(ended, "the process ended");
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |arguments: &[&str], code: i32, word: &str| {
        let output = uslub(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(word), "'{word}' is missing: {error}");
    };
    refused(&["leaks"], 2, "PID is missing");
    refused(
        &["leaks", "1", "--for", "1s", "--every", "2s"],
        2,
        "growth needs two",
    );
    refused(&["leaks", "1", "--for", "soon"], 2, "from 10ms to 168h");
    refused(&["leaks", "8388608"], 127, "no process 8388608");
    let file = folder.path().join("file");
    put(&file, "no core", 0o644);
    refused(
        &["leaks", file.to_str().expect("UTF-8")],
        125,
        "no ELF file",
    );
}
