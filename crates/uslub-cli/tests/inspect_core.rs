//! A core file says the same as the process, and names the freed object behind a crash.

mod inspected;
mod support;

use inspected::{json, library, preloaded, said, uslub};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use support::{compile, text};

/// The register that [`write_core`] sets: its name, and its place among a thread's registers.
const REGISTER: (&str, usize) = match cfg!(target_arch = "aarch64") {
    true => ("x19", 19),
    false => ("r12", 3),
};

/// The notes of threads (`NT_PRSTATUS`): number of the thread, and the content of one register.
fn notes(threads: &[(u32, u64)]) -> Vec<u8> {
    let mut notes = Vec::new();
    for &(thread, value) in threads {
        let mut status = vec![0; 392];
        status[32..36].copy_from_slice(&thread.to_le_bytes());
        let at = 112 + 8 * REGISTER.1;
        status[at..at + 8].copy_from_slice(&value.to_le_bytes());
        for word in [5, status.len() as u32, 1] {
            notes.extend(word.to_le_bytes());
        }
        notes.extend(b"CORE\0\0\0\0");
        notes.extend(status);
    }
    notes
}

/// Writes the memory of a process that waits as a core file, as a debugger does.
fn write_core(pid: &str, path: &Path, notes: &[u8]) {
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
    for half in [64, 56, parts.len() as u16 + 1, 0, 0, 0] {
        word16(&mut file, half);
    }
    let headers = 64 + 56 * (parts.len() as u64 + 1);
    word32(&mut file, 4);
    word32(&mut file, 0);
    for word in [headers, 0, 0, notes.len() as u64, 0, 4] {
        word64(&mut file, word);
    }
    let mut at = (headers + notes.len() as u64).next_multiple_of(4096);
    for (start, end, writable, bytes) in &parts {
        word32(&mut file, 1);
        word32(&mut file, if *writable { 6 } else { 4 });
        let length = bytes.len() as u64;
        for word in [at, *start, 0, length, end - start, 4096] {
            word64(&mut file, word);
        }
        at += length;
    }
    file.extend(notes);
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
    write_core(&paused.pid(), &core, &[]);
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

#[test]
fn registers_of_all_threads_hold_objects() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let core = folder.path().join("core");
    let (object, name) = (paused.own("first"), REGISTER.0);
    let holders = |options: &[&str]| {
        let address = format!("{object:#x}");
        said(&[&["holders", text(&core), &address], options].concat())
    };
    let held = |printed: &str| -> u64 {
        let (_, rest) = printed.split_once("held by ").expect("a count");
        rest.split(' ')
            .next()
            .expect("a count")
            .parse()
            .expect("a number")
    };
    // Without notes no register is known.
    write_core(&paused.pid(), &core, &[]);
    let before = holders(&[]);
    assert!(
        before.contains("not searched: registers; words"),
        "{before}"
    );
    // The second thread has the object, and the third one has its last byte.
    let threads = notes(&[
        (701, 1),
        (702, object),
        (703, object + 175),
        (704, object + 176),
    ]);
    write_core(&paused.pid(), &core, &threads);
    let printed = holders(&[]);
    assert!(
        printed.contains(&format!("→ +0      in register {name} of thread 702\n")),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("→ +175    in register {name} of thread 703\n")),
        "{printed}"
    );
    assert!(
        !printed.contains("of thread 701") && !printed.contains("of thread 704"),
        "{printed}"
    );
    assert!(printed.contains("not searched: words"), "{printed}");
    assert_eq!(held(&printed), held(&before) + 2);
    let exact = holders(&["--exact"]);
    assert!(
        exact.contains("of thread 702") && !exact.contains("of thread 703"),
        "{exact}"
    );
    let value: serde_json::Value = serde_json::from_str(&holders(&["--json"])).expect("JSON");
    assert_eq!(value["registers"].as_array().expect("registers").len(), 2);
    assert_eq!(value["registers"][1]["thread"], 703);
    assert_eq!(value["registers"][1]["register"], name);
    // Notes that end early, or whose length is impossible.
    for end in [1, 20, 100, 150, threads.len() - 300] {
        write_core(&paused.pid(), &core, &threads[..end]);
        assert!(held(&holders(&[])) >= held(&before), "{end}");
    }
    let mut long = threads.clone();
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    write_core(&paused.pid(), &core, &long);
    assert_eq!(held(&holders(&[])), held(&before));
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

/// A thread has the only pointer to an object in a register; the first thread then aborts.
const IN_REGISTER: &str = r#"
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
static uintptr_t hidden, key = 0x5555555555555555;
static volatile int holds;
static void *hold(void *unused)
{
#if defined(__x86_64__)
    __asm__ volatile("mov %0, %%r12; xor %1, %%r12; movl $1, %2; 1: pause; jmp 1b"
                     : : "m"(hidden), "m"(key), "m"(holds) : "r12");
#else
    __asm__ volatile("ldr x19, %0; ldr x20, %1; eor x19, x19, x20; mov w20, #1; str w20, %2; 1: b 1b"
                     : : "m"(hidden), "m"(key), "m"(holds) : "x19", "x20");
#endif
    return 0;
}
int main(void)
{
    struct rlimit limit = { 256 << 20, 256 << 20 };
    setrlimit(RLIMIT_CORE, &limit);
    hidden = (uintptr_t)malloc(3000) ^ key;
    printf("%#zx\n", (size_t)hidden);
    fflush(stdout);
    pthread_t thread;
    if (pthread_create(&thread, 0, hold, 0))
        return 1;
    while (!holds)
        sched_yield();
    abort();
}
"#;

#[test]
fn a_register_of_another_thread_holds_an_object() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        eprintln!("skipped: the kernel does not write core files into the folder of the program");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("holds");
    if !compile(IN_REGISTER, &["-O0", "-w", "-pthread"], &program) {
        return;
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let output = Command::new(&program)
        .env("LD_PRELOAD", library)
        .current_dir(folder.path())
        .output()
        .expect("the program can be started");
    let hidden = String::from_utf8(output.stdout).expect("UTF-8");
    let hidden = hidden.trim().strip_prefix("0x").expect("an address");
    let object = u64::from_str_radix(hidden, 16).expect("an address") ^ 0x5555_5555_5555_5555;
    let entries = fs::read_dir(folder.path()).expect("the folder").flatten();
    let mut files = entries.map(|entry| entry.path());
    let Some(core) = files.find(|path| text(path).contains("/core")) else {
        eprintln!("skipped: the kernel wrote no core file");
        return;
    };
    let printed = said(&[
        "holders",
        text(&core),
        &format!("{object:#x}"),
        "--limit",
        "100",
    ]);
    let line = format!("→ +0      in register {} of thread ", REGISTER.0);
    assert!(printed.contains(&line), "'{line}' is missing: {printed}");
    assert!(
        printed.contains("live object of cache 'kmalloc-3"),
        "{printed}"
    );
}
