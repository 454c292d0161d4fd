//! The watcher of `uslub run` as a broker: a command that the kernel forbids to read a process reads
//! it through the watcher, which is the process's ancestor.
//!
//! The reader is in a user namespace of its own. So the kernel refuses it, as it does under Yama and
//! in sandboxes: a process may trace only processes of its own namespace.

mod inspected;
mod support;

use inspected::{Paused, has_cc, library, number};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, chown};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::compile;
use tempfile::TempDir;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
static void *kept[3000];
int main(int argc, char **argv)
{
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < 3000; i++)
        kept[i] = malloc(176);
    for (int i = 0; i < 3000; i += 3)
        free(kept[i]);
    if (argc > 1 && !strcmp(argv[1], "closed"))
        prctl(PR_SET_DUMPABLE, 0);
    printf("pid = %d\nlive = %zu\n", (int)getpid(), (size_t)kept[1]);
    puts("ready");
    getchar();
    return 0;
}
"#;

/// A user's files: the command, the library, a program, and a folder for sockets.
struct World {
    folder: TempDir,
    user: Option<u32>,
}

impl World {
    /// `None` without a compiler or a kernel that has user namespaces.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        let flags = ["-O0", "-Wno-unused-result"];
        if !compile(PROGRAM, &flags, &program) {
            assert!(!has_cc(), "the program does not compile");
            return None;
        }
        let library = library("uslub-malloc", "libuslub_malloc.so");
        let command = Path::new(env!("CARGO_BIN_EXE_uslub"));
        for (file, name) in [(command, "uslub"), (&*library, "libuslub_malloc.so")] {
            // By a process of its own: see the test of refusals.
            let copied = Command::new("cp")
                .arg(file)
                .arg(folder.path().join(name))
                .status();
            assert!(copied.expect("cp can be started").success());
        }
        let rights = Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), rights).expect("the rights of the folder");
        // Root has a right that lets it read everything, so root becomes another user.
        let user = Uid::effective().is_root().then_some(65534);
        let world = World { folder, user };
        world.private("sockets");
        world.private("elsewhere");
        world.private("work");
        let mut probe = world.command(&["--version"], "sockets", true);
        if !probe.output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this user may not make a user namespace");
            return None;
        }
        Some(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn private(&self, name: &str) {
        let path = self.path(name);
        fs::create_dir(&path).expect("a folder");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its rights");
        if let Some(user) = self.user {
            chown(&path, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).expect("its owner");
        }
    }

    /// The command of the user; `apart` in a user namespace of its own.
    fn command(&self, arguments: &[&str], sockets: &str, apart: bool) -> Command {
        let mut command = Command::new(self.path("uslub"));
        command
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .env("USLUB_LIBRARY", self.path("libuslub_malloc.so"))
            .env("XDG_RUNTIME_DIR", self.path(sockets))
            .env("TMPDIR", self.path("work"))
            .current_dir(self.path("work"));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        if apart {
            let leave = || Ok(unshare(CloneFlags::CLONE_NEWUSER)?);
            // SAFETY: one system call, which allocates nothing.
            unsafe { command.pre_exec(leave) };
        }
        command
    }

    fn run(&self, argument: &str) -> Paused {
        let program = self.path("program");
        let words = [
            "run",
            "-q",
            "--",
            program.to_str().expect("UTF-8"),
            argument,
        ];
        Paused::start(&mut self.command(&words, "sockets", false))
    }

    fn read(&self, arguments: &[&str], sockets: &str, apart: bool) -> Output {
        let mut command = self.command(arguments, sockets, apart);
        command.output().expect("the command can be started")
    }

    /// What a reader that is apart prints, if it succeeds.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.read(arguments, "sockets", true);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Why a reader that is apart fails.
    fn refused(&self, arguments: &[&str], sockets: &str) -> String {
        let output = self.read(arguments, sockets, true);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{error}");
        error
    }
}

fn exact(look: &str) -> (u64, u64, u64) {
    let look: Value = serde_json::from_str(look).expect("JSON");
    let caches = look["allocators"][0]["caches"].as_array().expect("caches");
    let cache = caches.iter().find(|c| c["name"] == "kmalloc-176");
    let resident = look["resident"].as_object().expect("a bridge");
    let parts = resident.iter().filter(|(name, _)| *name != "total_bytes");
    let sum = parts.map(|(_, bytes)| number(bytes)).sum();
    let live = number(&cache.expect("the cache")["live"]);
    (live, sum, number(&resident["total_bytes"]))
}

#[test]
fn a_command_that_may_not_read_reads_through_the_watcher() {
    let Some(world) = World::new() else { return };
    let paused = world.run("open");
    let pid = paused.own("pid").to_string();
    // Without the watcher, the kernel's refusal stands, and says that a watcher would help.
    let error = world.refused(&["info", &pid], "elsewhere");
    assert!(error.contains("cannot read process"), "{error}");
    assert!(error.contains("'uslub run'"), "{error}");

    let through = exact(&world.said(&["info", &pid, "--json"]));
    assert_eq!(through.0, 2000);
    assert_eq!(through.1, through.2, "the parts add up");
    let direct = world.read(&["info", &pid, "--json"], "elsewhere", false);
    assert_eq!(through, exact(&String::from_utf8_lossy(&direct.stdout)));

    let live = format!("{:#x}", paused.own("live"));
    let explained = world.said(&["explain", &pid, &live]);
    assert!(explained.contains("a live object of cache 'kmalloc-176'"));
    let listed = world.said(&["list", &pid, "kmalloc-176", "--limit", "5000"]);
    assert_eq!(listed.lines().filter(|l| l.ends_with("live")).count(), 2000);
    assert!(world.said(&["slabinfo", &pid]).contains("\nkmalloc-176 "));
    assert!(world.said(&["metrics", &pid]).ends_with("# EOF\n"));
}

#[test]
fn the_watcher_speaks_for_its_program_only_and_leaves_nothing_behind() {
    let Some(world) = World::new() else { return };
    let closed = world.run("closed");
    let pid = closed.own("pid").to_string();
    let error = world.refused(&["info", &pid], "sockets");
    assert!(error.contains("closed itself"), "{error}");
    // The parent of the program is the watcher, which is no descendant of itself.
    let watcher = closed.pid();
    let error = world.refused(&["info", &watcher], "sockets");
    assert!(error.contains("cannot read process"), "{error}");

    let sockets = world.path("sockets").join("uslub");
    let socket = sockets.join(format!("{watcher}.sock"));
    assert!(socket.exists());
    let mut child = world.run("open");
    drop(child.child.stdin.take());
    assert!(child.child.wait().expect("the end").success());
    assert!(!sockets.join(format!("{}.sock", child.pid())).exists());
    // A killed watcher leaves its socket. The next one removes it.
    drop(closed);
    assert!(socket.exists());
    let mut last = world.run("open");
    assert!(!socket.exists());
    drop(last.child.stdin.take());
    assert!(last.child.wait().expect("the end").success());
    assert!(!sockets.exists());
}
