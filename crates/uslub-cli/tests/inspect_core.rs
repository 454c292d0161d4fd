//! A core file says the same as the process, and names the freed object behind a crash.

mod inspected;
mod support;

use inspected::{json, library, preloaded, said, uslub};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use support::{compile, text};

/// Writes the memory of a process that waits as a core file, as a debugger does.
fn write_core(pid: &str, path: &Path) {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let mut parts = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (
            words.next().expect("a range"),
            words.next().expect("rights"),
        );
        let (start, end) = range.split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, end) = (number(start), number(end));
        let mut bytes = Vec::new();
        if rights.starts_with('r') && !line.ends_with("[vvar]") && !line.ends_with("[vsyscall]") {
            bytes.resize((end - start) as usize, 0);
            if memory.read_exact_at(&mut bytes, start).is_err() {
                bytes.clear();
            }
        }
        parts.push((start, end, rights.contains('w'), bytes));
    }
    let mut file = Vec::new();
    let word16 = |file: &mut Vec<u8>, n: u16| file.extend(n.to_le_bytes());
    let word32 = |file: &mut Vec<u8>, n: u32| file.extend(n.to_le_bytes());
    let word64 = |file: &mut Vec<u8>, n: u64| file.extend(n.to_le_bytes());
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    word16(&mut file, 4);
    word16(
        &mut file,
        if cfg!(target_arch = "aarch64") {
            183
        } else {
            62
        },
    );
    word32(&mut file, 1);
    for word in [0, 64, 0] {
        word64(&mut file, word);
    }
    word32(&mut file, 0);
    for half in [64, 56, parts.len() as u16, 0, 0, 0] {
        word16(&mut file, half);
    }
    let mut at = (64 + 56 * parts.len() as u64).next_multiple_of(4096);
    for (start, end, writable, bytes) in &parts {
        word32(&mut file, 1);
        word32(&mut file, if *writable { 6 } else { 4 });
        let length = bytes.len() as u64;
        for word in [at, *start, 0, length, end - start, 4096] {
            word64(&mut file, word);
        }
        at += length;
    }
    file.resize(file.len().next_multiple_of(4096), 0);
    for (.., bytes) in &parts {
        file.extend(bytes);
    }
    fs::write(path, file).expect("the core file");
}

#[test]
fn a_core_file_says_the_same_and_damage_is_no_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let core = folder.path().join("core");
    write_core(&paused.pid(), &core);
    let (process, file) = (json(&paused.pid()), json(text(&core)));
    let caches = &process["allocators"][0]["caches"];
    assert_eq!(caches, &file["allocators"][0]["caches"]);
    assert!(file["resident"].is_null());
    let freed = paused.own("freed").to_string();
    let explain = |target: &str| said(&["explain", target, &freed]);
    assert_eq!(explain(&paused.pid()), explain(text(&core)));
    let map = |target: &str| {
        let map = said(&["map", target, "--json"]);
        map.split_once("\"caches\"").expect("caches").1.to_owned()
    };
    assert_eq!(map(&paused.pid()), map(text(&core)));
    let printed = said(&["inspect", "core", text(&core)]);
    assert!(printed.contains("kmalloc-176"), "{printed}");

    let whole = fs::read(&core).expect("the core file");
    for end in [0, 3, 64, 100, 4096, whole.len() / 2, whole.len() - 5] {
        fs::write(&core, &whole[..end]).expect("a cut file");
        for command in [&["inspect", "core"] as &[&str], &["map"]] {
            let output = uslub(&[command, &[text(&core)]].concat());
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!error.contains("panicked"), "{end}: {error}");
            assert!(
                matches!(output.status.code(), Some(0 | 125 | 126)),
                "{end}: {error}"
            );
        }
    }
}

/// A call through a freed object, and the object.
const CRASHES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
int main(void)
{
    struct rlimit limit = { 256 << 20, 256 << 20 };
    setrlimit(RLIMIT_CORE, &limit);
    void *object = malloc(170);
    malloc(170);
    free(object);
    printf("%p\n", object);
    fflush(stdout);
    ((void (*)(void))object)();
    return 0;
}
"#;

#[test]
fn the_freed_object_behind_a_crash_is_named() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        eprintln!("skipped: the kernel does not write core files into the folder of the program");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("crashes");
    if !compile(CRASHES, &["-O0", "-w"], &program) {
        return;
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let output = Command::new(&program)
        .env("LD_PRELOAD", library)
        .current_dir(folder.path())
        .output()
        .expect("the program can be started");
    let object = String::from_utf8(output.stdout).expect("UTF-8");
    let core = fs::read_dir(folder.path()).expect("the folder").flatten();
    let mut cores = core
        .map(|entry| entry.path())
        .filter(|path| text(path).contains("/core"));
    let Some(core) = cores.next() else {
        eprintln!("skipped: the kernel wrote no core file");
        return;
    };
    let printed = said(&["inspect", "core", text(&core)]);
    let fault = format!(
        "ended by SIGSEGV\nthe fault: {} is the start of a FREE slot of cache 'kmalloc-176'",
        object.trim()
    );
    assert!(printed.starts_with(&fault), "{printed}");
    assert!(
        printed.contains("in the main sheaf of CPU slot"),
        "{printed}"
    );
    assert!(printed.contains("core of crashes"), "{printed}");
}

/// A call through a wiped object that was freed; with an argument, by a handler that dies of the
/// signal again, as servers do.
const WIPED: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
/* The allocator writes to the first word of a free slot. */
struct object { char text[160]; void (*handler)(struct object *); };
static void again(int number) { signal(number, SIG_DFL); kill(getpid(), number); }
int main(int argc, char **argv)
{
    struct rlimit limit = { 256 << 20, 256 << 20 };
    setrlimit(RLIMIT_CORE, &limit);
    if (argc > 1 && argv[1][0] == 'h')
        signal(SIGSEGV, again);
    struct object *volatile o = calloc(1, sizeof(*o));
    printf("%p\n", (void *)o);
    fflush(stdout);
    free(o);
    if (argc > 1 && argv[1][0] == 'd')
        memset(o, 0x66, sizeof(*o));
    o->handler(o);
    return 0;
}
"#;

#[test]
fn a_register_that_holds_the_freed_object_is_named() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        eprintln!("skipped: the kernel does not write core files into the folder of the program");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("wiped");
    if !compile(WIPED, &["-O0", "-w"], &program) {
        return;
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let inspected = |arguments: &[&str]| -> Option<(String, String)> {
        let output = Command::new(&program)
            .args(arguments)
            .env("LD_PRELOAD", &library)
            .current_dir(folder.path())
            .output()
            .expect("the program can be started");
        let object = String::from_utf8(output.stdout).expect("UTF-8");
        let entries = fs::read_dir(folder.path()).expect("the folder").flatten();
        let mut files = entries.map(|entry| entry.path());
        let core = files.find(|path| text(path).contains("/core"))?;
        let printed = said(&["inspect", "core", text(&core)]);
        fs::remove_file(&core).expect("the file");
        Some((object.trim().to_owned(), printed))
    };
    let Some((object, printed)) = inspected(&[]) else {
        eprintln!("skipped: the kernel wrote no core file");
        return;
    };
    assert!(
        printed.contains("the fault: 0x0 is in no mapping"),
        "{printed}"
    );
    let first = if cfg!(target_arch = "x86_64") {
        "rdi"
    } else {
        "x0"
    };
    let line = format!("  {first:<4} {object}  FREE slot of 'kmalloc-176', in the main sheaf");
    assert!(printed.contains(&line), "'{line}' is missing: {printed}");

    if cfg!(target_arch = "x86_64") {
        let (object, printed) = inspected(&["data"]).expect("a core file");
        assert!(
            printed.contains("an address that no program can have"),
            "{printed}"
        );
        assert!(
            printed.contains(&format!("rdi  {object}  FREE slot")),
            "{printed}"
        );
    }
    let (_, printed) = inspected(&["handler"]).expect("a core file");
    assert!(printed.contains("ended by SIGSEGV"), "{printed}");
    assert!(printed.contains("a process sent the signal"), "{printed}");
}
