//! What `uslub run` sees of a program's caches from outside: a program that a signal ends, and
//! caches that the program makes itself.

mod inspected;
mod support;

use inspected::{has_cc, library};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{compile, text, uslub_command};

/// Keeps 5,000 requests, and destroys another cache; without an argument it gives looks the time to
/// see that before.
const OWN: &str = r#"
#include <stdlib.h>
#include <unistd.h>
#include <uslub/slab.h>

struct request { int fd; char path[100]; };

int main(int count, char **arguments)
{
    struct kmem_cache *requests = KMEM_CACHE(request, SLAB_HWCACHE_ALIGN);
    struct kmem_cache *early = kmem_cache_create("early", 200, 0, 0, NULL);
    static void *objects[2000];
    for (int i = 0; i < 5000; i++)
        if (!kmem_cache_alloc(requests, GFP_KERNEL))
            return 1;
    if (!kmem_cache_alloc_bulk(early, GFP_KERNEL, 2000, objects))
        return 1;
    (void)arguments;
    if (count == 1)
        usleep(2500 * 1000);
    kmem_cache_free_bulk(early, 2000, objects);
    kmem_cache_destroy(early);
    return malloc(100) == NULL;
}
"#;

/// What a run said on standard error, and its record.
fn run(words: &[&str], prepare: impl FnOnce(&mut Command)) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record.json");
    let mut command = uslub_command(&[&["run", "--report", text(&record)], words].concat());
    prepare(&mut command);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let record = fs::read(&record).unwrap_or_else(|error| panic!("{error}: {said}"));
    (said, serde_json::from_slice(&record).unwrap())
}

/// The program above, in a folder with its library; `None` without a C compiler.
fn own_program(folder: &Path) -> Option<PathBuf> {
    let installed = folder.join("libuslub.so.0");
    fs::copy(library("uslub-capi", "libuslub_capi.so"), &installed).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../uslub-capi/include");
    let program = folder.join("own");
    let compiled = compile(OWN, &["-I", include, text(&installed)], &program);
    assert!(compiled || !has_cc(), "the program does not compile");
    compiled.then_some(program)
}

#[test]
fn a_program_that_a_signal_ends_has_the_caches_of_the_last_look() {
    if Command::new("perl").arg("--version").output().is_err() {
        eprintln!("skipped: 'perl' is absent");
        return;
    }
    let script = "$h{$_} = [1 .. 3] for 1 .. 30000; sleep 3; kill KILL => $$";
    let (said, record) = run(&["perl", "-e", script], |_| ());
    assert!(said.contains("killed by SIGKILL"), "{said}");
    let (_, table) = said.split_once("\ncaches of malloc, ").expect(&said);
    let (when, table) = table.split_once('\n').expect(&said);
    assert!(when.ends_with(" s before the end:"), "{said}");
    assert!(
        table.lines().any(|line| line.starts_with("kmalloc-48 ")),
        "{said}"
    );
    assert!(
        record["seen_seconds_before_end"]
            .as_f64()
            .is_some_and(|age| age > 0.0)
    );
    let malloc = &record["allocators"][0];
    assert_eq!(malloc["face"], "malloc");
    let caches = malloc["caches"].as_array().unwrap();
    let of_arrays = caches
        .iter()
        .find(|cache| cache["name"] == "kmalloc-48")
        .unwrap();
    assert!(
        of_arrays["live_objs"].as_u64() >= Some(30_000),
        "{of_arrays}"
    );
    assert_eq!(of_arrays["destroyed"], false);
}

#[test]
fn a_programs_own_caches_are_told_also_those_that_it_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = own_program(folder.path()) else {
        return;
    };
    let (said, record) = run(&[text(&program)], |command| {
        command.env("LD_LIBRARY_PATH", folder.path());
    });
    let (_, own) = said
        .split_once("\ncaches of the program itself, on uslub for C:\n")
        .unwrap_or_else(|| panic!("{said}"));
    let (own, malloc) = own.split_once("\ncaches of malloc:\n").expect(&said);
    let live = |name: &str| {
        let line = own.lines().find(|line| line.starts_with(name));
        let rest = line.unwrap_or_else(|| panic!("{name}: {said}"))[name.len()..].trim_start();
        rest.split("  ").next().unwrap_or_default().to_owned()
    };
    assert_eq!(live("request"), "5 000");
    assert_eq!(live("early (destroyed)"), "0");
    assert!(malloc.starts_with("cache "), "{said}");
    assert_eq!(record["seen_seconds_before_end"], 0.0);
    let allocators = record["allocators"].as_array().unwrap();
    assert_eq!(allocators.len(), 1, "malloc has its own report");
    let caches = allocators[0]["caches"].as_array().unwrap();
    let early = caches
        .iter()
        .find(|cache| cache["name"] == "early")
        .unwrap();
    assert_eq!(early["destroyed"], true);
    assert!(early["peak_bytes"].as_u64() >= Some(2000 * 200), "{early}");
}

#[test]
fn a_program_that_ends_at_once_is_seen_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = own_program(folder.path()) else {
        return;
    };
    for _ in 0..20 {
        let (said, record) = run(&[text(&program), "at once"], |command| {
            command.env("LD_LIBRARY_PATH", folder.path());
        });
        assert!(said.contains("\nrequest "), "{said}");
        assert_eq!(record["seen_seconds_before_end"], 0.0);
    }
}
