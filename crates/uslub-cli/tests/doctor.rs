//! `uslub doctor` and `uslub map` on planted programs: one leaves its slabs sparse, one leaks, and
//! one is well.

mod inspected;
mod support;

use inspected::{Paused, library, number, said, uslub};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Write;
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

/// Two threads, each on a CPU of its own. One allocates and the other frees; or, with `OWN`, each
/// frees its own objects. With one CPU it says so and ends.
const HANDS_OVER: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
static _Atomic(void *) ring[4096];
static int cpus[2];
static void on(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
}
static void *second(void *unused)
{
    on(cpus[1]);
    for (size_t i = 0;; i++) {
        void *object = OWN ? malloc(176) : atomic_exchange(&ring[i % 4096], NULL);
        if (!object)
            i--, sched_yield();
        free(object);
    }
}
int main(void)
{
    cpu_set_t all;
    int n = 0;
    sched_getaffinity(0, sizeof(all), &all);
    for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET(cpu, &all))
            cpus[n++] = cpu;
    if (n < 2)
        puts("one CPU");
    pthread_t thread;
    if (n == 2 && pthread_create(&thread, NULL, second, NULL))
        return 1;
    on(cpus[0]);
    puts("ready");
    fflush(stdout);
    if (n < 2)
        getchar();
    for (size_t i = 0;; i++) {
        void *object = malloc(176);
        while (!OWN && atomic_load(&ring[i % 4096]))
            sched_yield();
        if (OWN)
            free(object);
        else
            atomic_store(&ring[i % 4096], object);
    }
}
"#;

/// Fills 256 MiB. After a line of input it frees half in runs of about 128 KiB, and gives the pages
/// back. With `FORBID` it forbids itself huge pages first.
const SPLITS: &str = r#"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
static void *kept[720000];
int main(void)
{
    if (FORBID)
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    for (int i = 0; i < 720000; i++)
        kept[i] = memset(malloc(368), 1, 368);
    puts("ready");
    fflush(stdout);
    getchar();
    for (int i = 0; i < 720000; i++)
        if (i / 350 % 2)
            free(kept[i]);
    malloc_trim(0);
    getchar();
    getchar();
    return 0;
}
"#;

/// A program on the preloaded library; `None` without a compiler.
fn planted(folder: &TempDir, name: &str, source: &str, options: &str) -> Option<Paused> {
    let program = folder.path().join(name);
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let flags = ["-O0", "-pthread", "-Wno-unused-result"];
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

/// Fills slabs of 11 slots and frees all but one object of 22. Nine of ten objects that stay are in
/// a static table, one is in a node of a list of 64 bytes; nobody holds the last five.
const PINS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct node { struct node *next; void *object; char rest[48]; };
static void *all[22000], *table[1000];
static struct node *list;
int main(void)
{
    for (int i = 0; i < 22000; i++)
        all[i] = memset(malloc(368), 1, 368);
    for (int i = 0; i < 1000; i++) {
        if (i % 10 && i < 995)
            table[i] = all[22 * i];
        else if (i < 995) {
            struct node *node = calloc(1, sizeof(*node));
            node->next = list;
            node->object = all[22 * i];
            list = node;
        }
        for (int k = 1; k < 22; k++)
            free(all[22 * i + k]);
    }
    memset(all, 0, sizeof(all));
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

#[test]
fn those_who_pin_sparse_slabs_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "pins", PINS, "").map(Paused::at_rest) else {
        return;
    };
    let pid = target.pid();
    let map = said(&["map", &pid, "kmalloc-368", "--who", "--json"]);
    let map: Value = serde_json::from_str(&map).expect("JSON");
    let pins = &map["pins"];
    assert_eq!(
        (number(&pins["objects"]), number(&pins["slabs"])),
        (1000, 1000)
    );
    let held: HashMap<_, _> = (pins["holders"].as_array().expect("holders").iter())
        .map(|holder| {
            (
                holder["by"].as_str().expect("text"),
                number(&holder["objects"]),
            )
        })
        .collect();
    // 995 less those in the list, which has each tenth of them.
    assert_eq!(held["pins: table"], 895, "{held:?}");
    assert_eq!(held["'kmalloc-64' +8"], 100, "{held:?}");
    // Calls may have left words on the stack for some of the others.
    assert!(number(&pins["unheld_objects"]) <= 5, "{pins}");
    let all: u64 = held.values().sum();
    assert!(all + number(&pins["unheld_objects"]) >= 1000, "{pins}");

    let text = said(&["map", &pid, "kmalloc-368", "--who"]);
    assert!(
        text.contains("who pins: 1 000 objects in 1 000 sparse slabs ("),
        "{text}"
    );
    let line = text.lines().find(|line| line.ends_with("  pins: table"));
    assert!(line.expect("a line").contains(" 895   89.5 %"), "{text}");
    // The next command that it names works.
    let next = text
        .lines()
        .last()
        .expect("a line")
        .strip_prefix("next: uslub ");
    let words: Vec<_> = next.expect("a command").split(' ').collect();
    assert!(said(&words).contains("live object of cache 'kmalloc-368'"));

    // A program whose slabs are full has none, and without the option nobody searches.
    drop(target);
    let well = planted(&folder, "well", WELL, "").expect("it compiles");
    let text = said(&["map", &well.pid(), "kmalloc-368", "--who"]);
    // It runs, so a few slabs may just begin.
    let (_, rest) = text.split_once("who pins: ").expect("a count");
    let n: u64 = rest
        .split(' ')
        .next()
        .expect("a count")
        .parse()
        .expect("a number");
    assert!(n < 50, "{text}");
    let text = said(&["map", &well.pid(), "kmalloc-368"]);
    let hint = format!("who pins: uslub map {} kmalloc-368 --who\n", well.pid());
    assert!(text.ends_with(&hint), "{text}");
    assert_eq!(uslub(&["map", &well.pid(), "--who"]).status.code(), Some(2));
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
fn frees_on_another_cpu_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = |name, own| {
        let source = HANDS_OVER.replace("OWN", own);
        planted(&folder, name, &source, "")
    };
    let Some(target) = program("hands", "0") else {
        return;
    };
    if target.lines == ["one CPU"] {
        eprintln!("skipped: two threads need two CPUs");
        return;
    }
    let (findings, _) = doctor(&target, "1");
    let found = (findings.iter()).find(|finding| finding["rule"] == "remote-frees");
    let found = found.unwrap_or_else(|| panic!("{findings:?}"));
    assert_eq!(found["cache"], "kmalloc-176");
    drop(target);
    let target = program("own", "1").expect("it compiles");
    let (findings, _) = doctor(&target, "1");
    assert!(!rules(&findings).contains(&"remote-frees"), "{findings:?}");
}

#[test]
fn split_huge_pages_are_found() {
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    if std::fs::metadata(file).is_err() {
        eprintln!("skipped: the kernel has no huge pages");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = planted(&folder, "splits", &SPLITS.replace("FORBID", "0"), "") else {
        return;
    };
    let mut target = target.at_rest();
    // The kernel's own figures: what is in huge pages, and what is resident.
    let in_huge_pages = |target: &Paused| {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", target.pid()));
        let smaps = smaps.expect("smaps");
        let lines = (smaps.lines()).filter_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib = lines.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>());
        kib.map(|kib| kib.expect("a number") << 10).sum::<u64>()
    };
    let before = in_huge_pages(&target);
    if before < 32 << 20 {
        eprintln!("skipped: the system supplies few huge pages");
        return;
    }
    let (findings, _) = doctor(&target, "0");
    assert!(!rules(&findings).contains(&"huge-pages"), "{findings:?}");
    let input = target.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"\n").expect("a line");
    // It waits again when the memory has gone back.
    let resident = target.status("VmRSS");
    while target.status("VmRSS") > resident * 3 / 4 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let target = target.at_rest();
    assert!(in_huge_pages(&target) < before / 4);
    let (findings, _) = doctor(&target, "0");
    let found = (findings.iter()).find(|finding| finding["rule"] == "huge-pages");
    let found = found.unwrap_or_else(|| panic!("{findings:?}"));
    // About half of what was in huge pages is left.
    let bytes = number(&found["bytes"]);
    assert!((before / 4..before).contains(&bytes), "{before}: {found:?}");
    drop(target);
    let source = SPLITS.replace("FORBID", "1");
    let target = planted(&folder, "forbids", &source, "").expect("it compiles");
    let target = target.at_rest();
    let (findings, _) = doctor(&target, "0");
    assert!(in_huge_pages(&target) == 0 && !rules(&findings).contains(&"huge-pages"));
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
