//! `uslub doctor` and `uslub map` on planted programs: one leaves its slabs sparse, one leaks, and
//! one is well.

mod inspected;
mod support;

use inspected::{Paused, library, number, said, uslub};
use serde_json::Value;
use std::collections::HashMap;
use std::process::Command;
use support::compile;
use tempfile::TempDir;

/// Keeps one object of twenty, so that each slab of 11 slots has one at most.
const SPARSE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
    static void *kept[20000];
    for (int i = 0; i < 20000; i++)
        kept[i] = memset(malloc(368), 1, 368);
    for (int i = 0; i < 20000; i++)
        if (i % 20)
            free(kept[i]);
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

/// Keeps 100 objects more each 10 ms.
const LEAKS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void)
{
    static void *kept[1 << 22];
    puts("ready");
    fflush(stdout);
    for (size_t n = 0; n < 1 << 22; usleep(10000))
        for (int i = 0; i < 100; i++)
            kept[n++] = malloc(176);
}
"#;

/// Replaces its objects at random, and holds as many as before.
const WELL: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
    static void *kept[40000];
    unsigned random = 1;
    for (int i = 0; i < 40000; i++)
        kept[i] = memset(malloc(368), 1, 368);
    puts("ready");
    fflush(stdout);
    for (;; usleep(10000))
        for (int i = 0; i < 100; i++) {
            random = random * 1103515245 + 12345;
            free(kept[random >> 8 & 32767]);
            kept[random >> 8 & 32767] = memset(malloc(368), 1, 368);
        }
}
"#;

/// Frees all of its 24 MiB of objects, and holds 100 MiB of its own mapping. Then it does nothing.
const IDLE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(void)
{
    static void *kept[65536];
    size_t bytes = 100 << 20;
    void *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return 1;
    memset(own, 1, bytes);
    for (int i = 0; i < 65536; i++)
        kept[i] = memset(malloc(368), 1, 368);
    for (int i = 0; i < 65536; i++)
        free(kept[i]);
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

/// Allocates and frees 64 bytes as often as it can.
const BUSY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    puts("ready");
    fflush(stdout);
    for (;;) {
        char *volatile object = malloc(64);
        free(object);
    }
}
"#;

/// A program on the preloaded library; `None` without a compiler.
fn planted(folder: &TempDir, name: &str, source: &str, options: &str) -> Option<Paused> {
    let program = folder.path().join(name);
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let flags = ["-O0", "-Wno-unused-result"];
    if !compile(source, &flags, &program) {
        return None;
    }
    let mut command = Command::new(&program);
    command
        .env("LD_PRELOAD", library)
        .env_remove("USLUB_OPTIONS");
    if !options.is_empty() {
        command.env("USLUB_OPTIONS", options);
    }
    Some(Paused::start(&mut command))
}

/// The findings about a process and the exit status. Findings about the machine are left out: the
/// tests may run on a full one.
fn doctor(target: &Paused, seconds: &str) -> (Vec<Value>, Option<i32>) {
    let arguments = ["doctor", &target.pid(), "--json", "--seconds", seconds];
    let output = uslub(&arguments);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["format"], 1);
    let mut findings = report["findings"].as_array().expect("findings").clone();
    let any = !findings.is_empty();
    assert_eq!(output.status.code(), Some(i32::from(any)), "{findings:?}");
    findings.retain(|finding| finding["rule"] != "limit" && finding["rule"] != "swap");
    (findings, output.status.code())
}

fn rules(findings: &[Value]) -> Vec<&str> {
    let rules = findings.iter().map(|finding| finding["rule"].as_str());
    rules.map(|rule| rule.expect("a rule")).collect()
}

/// The map of a cache as JSON.
fn map(target: &Paused, cache: &str) -> Value {
    let text = said(&["map", &target.pid(), cache, "--json"]);
    let map: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(map["caches"].as_array().expect("caches").len(), 1);
    map["caches"][0].clone()
}

#[test]
fn sparse_slabs_are_found_and_mapped() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "sparse", SPARSE, "") else {
        return;
    };
    let (findings, _) = doctor(&target, "0");
    let slack = &findings[0];
    assert_eq!(
        (&slack["rule"], &slack["cache"]),
        (&"slack".into(), &"kmalloc-368".into())
    );
    let action = format!("uslub map {} kmalloc-368", target.pid());
    assert!(slack["action"].as_str().expect("text").ends_with(&action));

    let cache = map(&target, "kmalloc-368");
    assert_eq!(
        (number(&cache["live"]), number(&cache["needed_slabs"])),
        (1000, 91)
    );
    assert_eq!(number(&cache["pinned_by_one"]), 1000);
    let slabs = number(&cache["slabs"]);
    assert_eq!(number(&cache["sparse_slabs"]), slabs);
    assert_eq!(number(&cache["excess_bytes"]), (slabs - 91) * 4096);
    // The same by the state of every slot.
    let slots = said(&[
        "list",
        &target.pid(),
        "kmalloc-368",
        "--all",
        "--limit",
        "1000000",
    ]);
    let mut live: HashMap<u64, usize> = HashMap::new();
    for line in slots.lines() {
        let (at, state) = line.split_once("  ").expect("an address and a state");
        let at = at.strip_prefix("0x").expect("hexadecimal");
        let page = u64::from_str_radix(at, 16).expect("an address") >> 12;
        *live.entry(page).or_default() += usize::from(state == "live");
    }
    let mut by_live = vec![0; 12];
    live.values().for_each(|&n| by_live[n] += 1);
    let mapped = cache["slabs_by_live"].as_array().expect("slabs");
    let mapped: Vec<_> = mapped.iter().map(number).collect();
    assert_eq!(mapped, by_live);
}

#[test]
fn a_map_fits_into_any_width() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "sparse", SPARSE, "") else {
        return;
    };
    let pid = target.pid();
    for columns in [20, 40, 60, 80, 120, 200] {
        for arguments in [
            &["map", &pid, "--ascii"] as &[&str],
            &["map", &pid, "kmalloc-368"],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_uslub"));
            command.args(arguments).env("COLUMNS", columns.to_string());
            let output = command
                .env("LC_ALL", "C.UTF-8")
                .output()
                .expect("the command");
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest.expect("lines") <= columns, "{columns}: {text}");
            assert!(text.contains("kmalloc-368"), "{text}");
            assert_eq!(arguments.contains(&"--ascii"), text.is_ascii(), "{text}");
        }
    }
    let one = said(&["map", &pid, "kmalloc-368"]);
    assert!(
        one.contains("kept by one object: 1 000 slabs, 3.9 MiB"),
        "{one}"
    );
    let row = one.lines().find(|line| line.starts_with("to  10 %"));
    assert!(row.expect("a row").contains(" 1 000 "), "{one}");
    let refused = uslub(&["map", &pid, "kmalloc-369"]);
    assert_eq!(refused.status.code(), Some(125));
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(
        error.contains("no cache is called 'kmalloc-369'"),
        "{error}"
    );
}

#[test]
fn a_leak_is_found_while_it_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "leaks", LEAKS, "") else {
        return;
    };
    let (findings, status) = doctor(&target, "3");
    assert_eq!((rules(&findings), status), (vec!["grows"], Some(1)));
    assert_eq!(findings[0]["cache"], "kmalloc-176");
    // A single look cannot tell.
    let (findings, _) = doctor(&target, "0");
    assert_eq!(rules(&findings), [""; 0]);
}

#[test]
fn a_program_that_is_well_gets_no_finding() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "well", WELL, "") else {
        return;
    };
    let (findings, _) = doctor(&target, "2");
    assert_eq!(rules(&findings), [""; 0], "{findings:?}");
}

#[test]
fn caches_without_sheaves_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "leaks", LEAKS, "init_on_free=1,rseq=0") else {
        return;
    };
    let (findings, _) = doctor(&target, "0");
    assert_eq!(rules(&findings), ["mode", "mode"]);
    let output = uslub(&["doctor", &target.pid(), "--seconds", "0"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        text.contains("started with rseq=0: every call takes a try-lock."),
        "{text}"
    );
    assert!(
        text.contains("\nNothing was found for: grows, slack"),
        "{text}"
    );
}

#[test]
fn kept_pages_and_foreign_memory_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "idle", IDLE, "") else {
        return;
    };
    let (findings, _) = doctor(&target, "2");
    assert_eq!(rules(&findings), ["kept", "not-ours"], "{findings:?}");
    let kept = findings[0]["text"].as_str().expect("text");
    assert!(kept.contains("allocated nothing meanwhile"), "{kept}");
    assert!(number(&findings[1]["bytes"]) > 100 << 20, "{findings:?}");
}

#[test]
fn calls_that_no_sheaf_serves_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let busy = |options| planted(&folder, "busy", BUSY, options);
    let (Some(slow), Some(fast)) = (busy("init_on_free=1"), busy("")) else {
        return;
    };
    let (findings, _) = doctor(&slow, "1");
    assert_eq!(rules(&findings), ["slow-path", "mode"], "{findings:?}");
    assert_eq!(findings[0]["cache"], "kmalloc-64");
    let (findings, _) = doctor(&fast, "1");
    assert_eq!(rules(&findings), [""; 0], "{findings:?}");
}

#[test]
fn what_is_no_process_on_uslub_is_refused_as_by_info() {
    let other = Paused::start(Command::new("sh").args(["-c", "echo ready; read x"]));
    for command in ["doctor", "map"] {
        for target in [other.pid().as_str(), "8388608", "redis", "/etc/passwd"] {
            let (ours, info) = (uslub(&[command, target]), uslub(&["info", target]));
            assert_eq!(ours.status.code(), info.status.code(), "{command} {target}");
            assert_eq!(ours.stderr, info.stderr, "{command} {target}");
        }
        let missing = uslub(&[command]);
        assert_eq!(missing.status.code(), Some(2));
        let error = String::from_utf8_lossy(&missing.stderr).into_owned();
        assert!(
            error.contains("is missing") && error.contains(command),
            "{error}"
        );
    }
}
