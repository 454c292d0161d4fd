//! The commands inside gdb: on a process and on a core file.

use crate::holders::HOLDS;
use crate::inspected::{Paused, library, said};
use crate::start;
use crate::support::{compile, put, text};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The script in a folder; `None` without a gdb that has Python.
fn script(folder: &Path) -> Option<std::path::PathBuf> {
    let probe = Command::new("gdb")
        .args(["-batch", "-nx", "-ex", "python print(6 * 7)"])
        .output();
    let has_python = probe.is_ok_and(|probe| probe.stdout.starts_with(b"42"));
    if !has_python {
        eprintln!("skipped: 'gdb' with Python is absent");
        return None;
    }
    let file = folder.join("uslub.py");
    put(&file, said(&["gdb-script"]), 0o644);
    Some(file)
}

/// What gdb prints on commands: standard output, and its messages.
fn gdb(script: &Path, target: &[&str], commands: &[&str]) -> (String, String) {
    let mut gdb = Command::new("timeout");
    gdb.args(["60", "gdb", "-batch", "-nx"])
        .args(target)
        .args(["-x", text(script)]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let output = gdb
        .env_remove("USLUB")
        .output()
        .expect("gdb can be started");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn a_process_is_explained_inside_gdb() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(script) = script(folder.path()) else {
        return;
    };
    let Some(paused) = start(&folder, "holds", HOLDS).map(Paused::at_rest) else {
        return;
    };
    let pid = paused.pid();
    let commands = [
        "uslub info",
        "echo ---\\n",
        "uslub explain in_data",
        "echo ---\\n",
        "uslub holders object",
        "echo ---\\n",
        "uslub list kmalloc-368 1",
        "echo ---\\n",
        "print $_uslub_cache(dangling)",
        "print $_uslub_cache(&object)",
        "echo ---\\n",
    ];
    // gdb's batch mode ends at the first error, so Python keeps these.
    let failures = [
        ("uslub explain", "an address is missing"),
        ("uslub explain nonsense", "No symbol \"nonsense\""),
        ("uslub list", "the name of a cache is missing"),
        ("uslub list sesion", "no cache is called 'sesion'"),
    ];
    let kept = failures.map(|(command, _)| {
        let lines =
            format!("try:\\n gdb.execute('{command}')\\nexcept gdb.error as e:\\n print(e)");
        format!("python exec(\"{lines}\")")
    });
    let commands = [&commands[..], &kept.each_ref().map(String::as_str)].concat();
    let (out, errors) = gdb(&script, &["-p", &pid], &commands);
    if errors.contains("ptrace") {
        eprintln!("skipped: gdb may not attach: {errors}");
        return;
    }
    let parts: Vec<_> = out.split("---\n").collect();
    assert_eq!(parts.len(), 6, "{out}{errors}");
    let title = format!("holds {pid} on uslub ");
    assert!(
        parts[0].contains(&title) && parts[0].contains("kmalloc-176"),
        "{out}"
    );
    let address = format!("{:#x}", paused.own("object") + 8);
    assert_eq!(parts[1], said(&["explain", &pid, &address]));
    assert!(
        parts[2].contains("in holds: in_bss") && parts[2].contains("register"),
        "{out}"
    );
    assert_eq!(
        parts[3],
        said(&["list", &pid, "kmalloc-368", "--limit", "1"])
    );
    assert!(
        parts[4].contains("\"kmalloc-1248\"") && parts[4].contains("\"(none)\""),
        "{out}"
    );

    let (_, errors) = gdb(&script, &[], &["uslub info"]);
    assert!(errors.contains("no process and no core file"), "{errors}");
}

/// Writes to a freed object's content, and dies in the call of a null pointer.
const DIES: &str = r#"
#include <stdlib.h>
#include <sys/resource.h>
struct node { struct node *next; long value; char rest[160]; };
struct node *live, *old;
int main(void)
{
    struct rlimit limit = { 256 << 20, 256 << 20 };
    setrlimit(RLIMIT_CORE, &limit);
    live = malloc(sizeof(struct node));
    old = malloc(sizeof(struct node));
    live->next = old;
    free(old);
    abort();
}
"#;

#[test]
fn a_core_file_is_explained_inside_gdb() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        eprintln!("skipped: the kernel does not write core files into the folder of the program");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(script) = script(folder.path()) else {
        return;
    };
    let program = folder.path().join("dies");
    if !compile(DIES, &["-O0", "-g", "-w"], &program) {
        return;
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let mut command = Command::new(&program);
    let _ = command
        .env("LD_PRELOAD", library)
        .current_dir(folder.path())
        .output();
    let files = fs::read_dir(folder.path()).expect("the folder").flatten();
    let mut cores = files
        .map(|file| file.path())
        .filter(|file| text(file).contains("/core"));
    let Some(core) = cores.next() else {
        eprintln!("skipped: the kernel wrote no core file");
        return;
    };
    let commands = [
        "uslub explain live",
        "uslub explain live->next",
        "uslub holders old",
        "uslub info",
    ];
    let (out, errors) = gdb(&script, &[text(&program), text(&core)], &commands);
    for words in [
        "is the start of a live object of cache 'kmalloc-176'",
        "is the start of a FREE slot of cache 'kmalloc-176'",
        // The dangling pointers.
        "in dies: old",
        ", live",
        "core of dies ",
    ] {
        assert!(out.contains(words), "'{words}' is missing: {out}{errors}");
    }
}
