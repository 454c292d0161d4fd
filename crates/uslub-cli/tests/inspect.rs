//! `uslub info` and its sisters against real processes: the reader's figures are the process's own,
//! a core file says the same, and a refusal says what helps.

mod support;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::{compile, text};
use tempfile::TempDir;

/// The command of this build. It reads memory that a release build of the library writes.
fn uslub(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uslub"));
    command.args(arguments).env_remove("LD_PRELOAD");
    command.output().expect("the command can be started")
}

/// What the command prints, if it succeeds.
fn said(arguments: &[&str]) -> String {
    let output = uslub(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(target: &str) -> Value {
    serde_json::from_str(&said(&["info", target, "--json"])).expect("JSON")
}

/// The release build of a library of this workspace.
fn library(package: &str, name: &str) -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("LD_PRELOAD")
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "{package} is not built"
    );
    let target = Path::new(env!("CARGO_BIN_EXE_uslub"))
        .parent()
        .and_then(Path::parent);
    target.expect("a target folder").join("release").join(name)
}

/// A program that has said it is ready, and now waits. It is killed at the end.
struct Paused {
    child: Child,
    lines: Vec<String>,
}

impl Paused {
    /// Starts a program and reads its output up to the line `ready`.
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let mut lines = Vec::new();
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        for line in out.lines() {
            let line = line.expect("UTF-8");
            if line == "ready" {
                return Self { child, lines };
            }
            lines.push(line);
        }
        let _ = child.kill();
        panic!("the program ended early: {lines:?}");
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn status(&self, key: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status");
        let line = text
            .lines()
            .find(|line| line.starts_with(key))
            .expect("the key");
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    /// The number of a line `name = number` that the program printed.
    fn own(&self, name: &str) -> u64 {
        let mut lines = self.lines.iter().filter_map(|line| line.split_once('='));
        let found = lines.find(|(key, _)| key.trim() == name);
        let (_, number) = found.unwrap_or_else(|| panic!("no '{name}' in {:?}", self.lines));
        number.trim().parse().expect("a number")
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn cache<'a>(look: &'a Value, name: &str) -> &'a Value {
    let caches = look["allocators"][0]["caches"].as_array().expect("caches");
    let found = caches.iter().find(|cache| cache["name"] == name);
    found.unwrap_or_else(|| panic!("no cache '{name}'"))
}

/// Objects of rare sizes, each third one freed; then the library's own figures.
const PRELOADED: &str = r#"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *kept[4][3000];
int main(void)
{
    static const size_t sizes[4] = { 176, 368, 1248, 20000 };
    static const int counts[4] = { 3000, 3000, 300, 30 };
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < counts[k]; i++)
            kept[k][i] = malloc(sizes[k]);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < counts[k]; i += 3)
            free(kept[k][i]);
    dup2(1, 2);
    malloc_stats();
    printf("first = %zu\n", (size_t)kept[0][1]);
    printf("freed = %zu\n", (size_t)kept[0][0]);
    puts("ready");
    getchar();
    return 0;
}
"#;

/// Starts the program on the preloaded library; `None` without a compiler.
fn preloaded(folder: &TempDir) -> Option<Paused> {
    let program = folder.path().join("preloaded");
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let flags = ["-O0", "-Wno-unused-result", "-Wno-use-after-free"];
    compile(PRELOADED, &flags, &program)
        .then(|| Paused::start(Command::new(&program).env("LD_PRELOAD", library)))
}

#[test]
fn a_preloaded_program_is_read_exactly() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let look = json(&paused.pid());
    let allocator = &look["allocators"][0];
    assert_eq!(
        (&allocator["face"], &look["format"]),
        (&"malloc".into(), &1.into())
    );
    // The process's own figures.
    let huge = paused.own("huge bytes");
    assert_eq!(
        number(&allocator["live_bytes"]) + huge,
        paused.own("live bytes")
    );
    assert_eq!(huge, 0, "the program has no object above 256 KiB");
    assert_eq!(
        number(&allocator["cached_bytes"]),
        paused.own("cached bytes")
    );
    assert_eq!(
        number(&allocator["free_bytes"]),
        paused.own("free bytes in slabs")
    );
    assert_eq!(number(&allocator["large_bytes"]), paused.own("large bytes"));
    let caches = allocator["caches"].as_array().expect("caches");
    let sum = |key: &str| caches.iter().map(|cache| number(&cache[key])).sum::<u64>();
    assert_eq!(sum("slab_bytes"), paused.own("slab bytes"));
    // The model: two thirds of each size are left. Nothing else has these sizes.
    assert_eq!(number(&cache(&look, "kmalloc-176")["live"]), 2000);
    assert_eq!(number(&cache(&look, "kmalloc-368")["live"]), 2000);
    assert_eq!(number(&cache(&look, "kmalloc-1248")["live"]), 200);
    assert_eq!(number(&allocator["large_objects"]), 20);
    assert!(caches.iter().all(|cache| cache["uncertain"] == 0));

    let pid = paused.pid();
    let listed = said(&["list", &pid, "kmalloc-176", "--limit", "5000"]);
    assert_eq!(
        listed.lines().filter(|line| line.ends_with("live")).count(),
        2000
    );
    let (live, freed) = (paused.own("first"), paused.own("freed"));
    let explained = said(&[
        "explain",
        &pid,
        &format!("{:#x}", live + 9),
        &freed.to_string(),
    ]);
    let live_line = format!(
        "{:#x} is 9 bytes into a live object of cache 'kmalloc-176'",
        live + 9
    );
    assert!(explained.starts_with(&live_line), "{explained}");
    let free_line = format!("{freed:#x} is the start of a FREE slot of cache 'kmalloc-176'");
    assert!(explained.contains(&free_line), "{explained}");

    let table = said(&["slabinfo", &pid]);
    let row = table
        .lines()
        .find(|line| line.starts_with("kmalloc-368 "))
        .expect("a row");
    let active: u64 = row
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    let of_json = cache(&look, "kmalloc-368");
    assert_eq!(
        active,
        number(&of_json["live"]) + number(&of_json["cached"])
    );
    let metrics = said(&["metrics", &pid]);
    let line = format!(
        "uslub_cache_objects{{pid=\"{pid}\",face=\"malloc\",cache=\"kmalloc-368\",state=\"live\"}} 2000"
    );
    assert!(metrics.lines().any(|l| l == line), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));
}

#[test]
fn a_look_leaves_the_process_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let cost = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", paused.pid())).expect("stat");
        let words: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        let faults = [words[7].to_owned(), words[9].to_owned()];
        let times = [words[11].to_owned(), words[12].to_owned()];
        (
            paused.status("VmRSS"),
            paused.status("VmPTE"),
            faults,
            times,
        )
    };
    let before = cost();
    for _ in 0..20 {
        said(&["info", &paused.pid()]);
    }
    assert_eq!(cost(), before);
}

/// Caches and objects of any size, and the library's own figures of both.
const LINKED: &str = r#"
#include <stdio.h>
#include <uslub.h>
int main(void)
{
    static void *kept[1000];
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    struct uslub_cache *apples = uslub_cache_create("apples", 200, NULL);
    for (int i = 0; i < 1000; i++)
        kept[i] = uslub_cache_alloc(apples, USLUB_GFP_KERNEL);
    for (int i = 0; i < 1000; i += 4)
        uslub_cache_free(apples, kept[i]);
    for (int i = 0; i < 100; i++)
        uslub_kmalloc(500, USLUB_GFP_KERNEL);
    struct uslub_cache_stats s;
    struct uslub_totals t;
    uslub_cache_get_stats(apples, &s);
    uslub_get_totals(&t);
    printf("apples live = %zu\napples cached = %zu\n", s.live_objs, s.cached_objs);
    printf("apples slots = %zu\napples slabs = %zu\n", s.num_objs, s.num_slabs);
    printf("live = %zu\ncached = %zu\nfree = %zu\n", t.live, t.cached, t.free);
    puts("ready");
    getchar();
    return 0;
}
"#;

#[test]
fn a_program_on_the_c_library_is_read_exactly() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library("uslub-capi", "libuslub_capi.so");
    // The library knows itself by its installed name.
    let installed = folder.path().join("libuslub.so.0");
    fs::copy(&library, &installed).expect("a copy");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../uslub-capi/include");
    let program = folder.path().join("linked");
    let flags = ["-I", include, text(&installed), "-Wno-unused-result"];
    if !compile(LINKED, &flags, &program) {
        return;
    }
    let paused = Paused::start(Command::new(&program).env("LD_LIBRARY_PATH", folder.path()));
    let look = json(&paused.pid());
    let allocator = &look["allocators"][0];
    assert_eq!(allocator["face"], "c");
    let apples = cache(&look, "apples");
    for (key, own) in [
        ("live", "apples live"),
        ("cached", "apples cached"),
        ("slots", "apples slots"),
        ("slabs", "apples slabs"),
    ] {
        assert_eq!(number(&apples[key]), paused.own(own), "{key}");
    }
    assert_eq!(number(&apples["live"]), 750);
    assert_eq!(number(&apples["object_size"]), 200);
    assert_eq!(number(&allocator["live_bytes"]), paused.own("live"));
    assert_eq!(number(&allocator["cached_bytes"]), paused.own("cached"));
    assert_eq!(number(&allocator["free_bytes"]), paused.own("free"));
}

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
    let printed = said(&["inspect", "core", text(&core)]);
    assert!(printed.contains("kmalloc-176"), "{printed}");

    let whole = fs::read(&core).expect("the core file");
    for end in [0, 3, 64, 100, 4096, whole.len() / 2, whole.len() - 5] {
        fs::write(&core, &whole[..end]).expect("a cut file");
        let output = uslub(&["inspect", "core", text(&core)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("panicked"), "{end}: {error}");
        assert!(
            matches!(output.status.code(), Some(0 | 125 | 126)),
            "{end}: {error}"
        );
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

/// Checks that the parts of the bridge are exactly what the kernel counts.
fn check_bridge(paused: &Paused) {
    // A program may do something between the word that it is ready and its wait for input.
    for _ in 0..50 {
        let before = paused.status("VmRSS");
        let look = json(&paused.pid());
        if paused.status("VmRSS") != before {
            std::thread::sleep(std::time::Duration::from_millis(50));
            continue;
        }
        let resident = look["resident"].as_object().expect("a bridge");
        let total = number(&resident["total_bytes"]);
        let parts = resident.iter().filter(|(name, _)| *name != "total_bytes");
        let sum: u64 = parts.map(|(_, bytes)| number(bytes)).sum();
        assert_eq!(sum, total);
        assert!(
            total.abs_diff(before * 1024) <= 4096,
            "{total} against {before} KiB"
        );
        let live = number(&resident["live_bytes"]);
        assert!(live > 0 && live <= number(&look["allocators"][0]["live_bytes"]));
        return;
    }
    panic!("the program is never at rest");
}

#[test]
fn the_bridge_adds_up_for_real_programs() {
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let perl = "my @a = map { \"line $_\" } 1 .. 30000; $| = 1; print \"ready\\n\"; <STDIN>;";
    let python = "a = [str(i) * 9 for i in range(30000)]; print('ready', flush=True); input()";
    for (program, argument) in [("perl", ["-e", perl]), ("python3", ["-c", python])] {
        if Command::new(program).arg("--version").output().is_err() {
            eprintln!("skipped: '{program}' is absent");
            continue;
        }
        let mut command = Command::new(program);
        check_bridge(&Paused::start(
            command.args(argument).env("LD_PRELOAD", &library),
        ));
    }
    // sort says nothing before its input ends. It keeps waiting for more, and is read meanwhile.
    let mut command = Command::new("sort");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .env("LD_PRELOAD", &library);
    let mut child = command.spawn().expect("sort");
    let mut input = child.stdin.take().expect("a pipe");
    for i in 0..20000 {
        writeln!(input, "line {}", i * 7919 % 20000).expect("a line");
    }
    let paused = Paused {
        child,
        lines: Vec::new(),
    };
    check_bridge(&paused);
    drop(input);
}

#[test]
fn refusals_say_what_helps() {
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = uslub(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        for word in words {
            assert!(error.contains(word), "'{word}' is missing: {error}");
        }
    };
    refused(&["info", "8388608"], 127, &["no process 8388608", "pidof"]);
    refused(&["info", "99999999999999"], 127, &["no process"]);
    refused(&["info", "redis"], 2, &["'redis' is neither", "pidof"]);
    refused(&["info"], 2, &["PID|FILE is missing", "usage: uslub info"]);
    refused(&["list", "1"], 2, &["CACHE is missing", "uslub list"]);
    let other = Paused::start(Command::new("sh").args(["-c", "echo ready; read x"]));
    let name = format!("process {} (sh) is not on uslub", other.pid());
    refused(
        &["info", &other.pid()],
        126,
        &[&name, ".note.uslub", "uslub run"],
    );
    refused(
        &["explain", &other.pid(), "12x"],
        2,
        &["'12x' is no address"],
    );
    refused(
        &["inspect", "core", env!("CARGO_BIN_EXE_uslub")],
        125,
        &["a program or a library"],
    );
    refused(&["inspect", "core", "/etc/passwd"], 125, &["no ELF file"]);
    refused(&["inspect", "core", "/no/such"], 125, &["No such file"]);
    if nix::unistd::Uid::effective().is_root() {
        return refused_to_other_users(&other);
    }
    eprintln!("skipped: only root can become another user");
}

/// Another user may not read a process, and is told so.
fn refused_to_other_users(other: &Paused) {
    use std::os::unix::process::CommandExt;
    // Other users may not reach the folder of the build.
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("uslub");
    fs::copy(env!("CARGO_BIN_EXE_uslub"), &copy).expect("a copy");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).expect("the rights of the folder");
    let output = Command::new(&copy)
        .args(["info", &other.pid()])
        .uid(65534)
        .gid(65534)
        .output()
        .expect("the command can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    let name = format!(
        "cannot read process {} (sh, user root): Permission denied",
        other.pid()
    );
    assert!(error.contains(&name), "{error}");
    assert!(
        error.contains(&format!("sudo uslub info {}", other.pid())),
        "{error}"
    );
}

#[test]
fn an_unknown_cache_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let output = uslub(&["list", &paused.pid(), "sesion"]);
    assert_eq!(output.status.code(), Some(125));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no cache is called 'sesion'"), "{error}");
}
