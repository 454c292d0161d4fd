//! `uslub info` and its sisters against real processes: the reader's figures are the process's own,
//! and a refusal says what helps.

mod inspected;
mod support;

use inspected::{Paused, cache, has_cc, json, library, number, preloaded, said, uslub};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use support::{compile, text, uslub_command};

#[test]
fn the_command_itself_names_its_program() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uslub"))
        .args(["run", "-q", "--", "sleep", "60"])
        .env(
            "USLUB_LIBRARY",
            library("uslub-malloc", "libuslub_malloc.so"),
        )
        .spawn()
        .expect("the command can be started");
    let pid = command.id().to_string();
    let children = format!("/proc/{pid}/task/{pid}/children");
    let program = loop {
        let children = fs::read_to_string(&children).unwrap_or_default();
        let mut children = children.split_whitespace().map(str::to_owned);
        let sleeps = |child: &String| {
            fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name == "sleep\n")
        };
        if let Some(program) = children.find(sleeps) {
            break program;
        }
        std::thread::yield_now();
    };
    let output = uslub(&["info", &pid]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(command.id() as i32),
        nix::sys::signal::Signal::SIGTERM,
    )
    .expect("the command runs");
    command.wait().expect("the command ends");
    assert!(
        told.contains(&format!("its program is process {program}")),
        "{told}"
    );
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
    for _ in 0..60 {
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
    struct uslub_cache_args args = { .size = 200 };
    struct uslub_cache *apples = uslub_cache_create("apples", &args);
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
        assert!(!has_cc(), "the program does not compile");
        return;
    }
    let paused =
        Paused::start(Command::new(&program).env("LD_LIBRARY_PATH", folder.path())).at_rest();
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
    // A run looks at such a program's caches at its end.
    let mut command = uslub_command(&["run", text(&program)]);
    command.env("LD_LIBRARY_PATH", folder.path());
    let output = command.stdin(Stdio::null()).output().expect("a run");
    let report = String::from_utf8_lossy(&output.stderr);
    let (_, own) = (report.split_once("\ncaches of the program itself, on uslub for C:\n"))
        .unwrap_or_else(|| panic!("{report}"));
    let apples = own.lines().find(|line| line.starts_with("apples"));
    let words = apples.map(|line| line.split_whitespace().nth(1));
    assert_eq!(words, Some(Some("750")), "{report}");
    assert!(!report.contains("note"), "{report}");
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
        command.args(argument).env("LD_PRELOAD", &library);
        check_bridge(&Paused::start(&mut command).at_rest());
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
    let no_number = "99999999999999";
    refused(&["info", no_number], 127, &["no process", no_number]);
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
    // By a process of its own: a child that another test starts meanwhile would keep a file that this
    // process writes open, and a program that is open for writing cannot be started.
    let copied = Command::new("cp")
        .args([OsStr::new(env!("CARGO_BIN_EXE_uslub")), copy.as_os_str()])
        .status()
        .expect("cp can be started");
    assert!(copied.success(), "a copy");
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

/// Two caches with one name, and the address of an object of each.
const NAMESAKES: &str = r#"
#include <stdio.h>
#include <uslub.h>
int main(void)
{
    struct uslub_cache_args args = { .size = 200 };
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < 2; i++) {
        struct uslub_cache *dup = uslub_cache_create("dup", &args);
        printf("object %d = %zu\n", i, (size_t)uslub_cache_alloc(dup, USLUB_GFP_KERNEL));
    }
    puts("ready");
    getchar();
    return 0;
}
"#;

#[test]
fn all_caches_of_a_name_are_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library("uslub-capi", "libuslub_capi.so");
    let installed = folder.path().join("libuslub.so.0");
    fs::copy(&library, &installed).expect("a copy");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../uslub-capi/include");
    let program = folder.path().join("namesakes");
    if !compile(NAMESAKES, &["-I", include, text(&installed)], &program) {
        assert!(!has_cc(), "the program does not compile");
        return;
    }
    let paused =
        Paused::start(Command::new(&program).env("LD_LIBRARY_PATH", folder.path())).at_rest();
    let pid = paused.pid();
    let listed = said(&["list", &pid, "dup", "--limit", "1"]);
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 4, "{listed}");
    for n in 0..2 {
        let (title, object) = (lines[2 * n], lines[2 * n + 1]);
        let is_title = title.starts_with("'dup', cache ")
            && title.ends_with(" of the allocator 'c' in libuslub.so.0:");
        assert!(is_title, "{listed}");
        let own = paused.own(&format!("object {n}"));
        assert_eq!(object, format!("{own:#x}  live"), "{listed}");
        assert!(said(&["map", &pid, "dup"]).contains(title));
    }
    let map = serde_json::from_str::<serde_json::Value>(&said(&["map", &pid, "dup", "--json"]));
    let map = map.expect("JSON");
    let indices: Vec<_> = (map["caches"].as_array().expect("caches").iter())
        .map(|cache| number(&cache["index"]))
        .collect();
    assert!(indices.len() == 2 && indices[0] != indices[1], "{map}");
}

#[test]
fn a_cache_without_live_objects_is_called_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("frees");
    let source = "#include <stdio.h>\n#include <stdlib.h>\n\
                  int main(void) { setvbuf(stdout, NULL, _IONBF, 0);\n\
                  setvbuf(stdin, NULL, _IONBF, 0); free(malloc(1248)); puts(\"ready\");\n\
                  getchar(); return 0; }";
    if !compile(source, &["-O0", "-Wno-unused-result"], &program) {
        return;
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let paused = Paused::start(Command::new(&program).env("LD_PRELOAD", library)).at_rest();
    let listed = said(&["list", &paused.pid(), "kmalloc-1248"]);
    assert_eq!(listed, "no live objects in cache kmalloc-1248\n");
}
