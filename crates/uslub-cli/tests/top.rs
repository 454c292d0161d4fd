//! `uslub top` on real processes: in a pipe, and in a terminal that it leaves as it was.

mod inspected;
mod screen;
mod support;

use inspected::{Paused, library, preloaded, uslub};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use screen::Terminal;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::compile;
use tempfile::TempDir;

/// Allocates 100 objects of 176 bytes each 10 ms and keeps them, and as many of 64 bytes in pairs.
const LEAKS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void)
{
    static void *kept[1 << 20];
    size_t n = 0;
    for (int i = 0; i < 1000; i++)
        kept[n++] = malloc(368);
    kept[n++] = malloc(176);
    puts("ready");
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 100 && n < 1 << 20; i++) {
            kept[n++] = malloc(176);
            free(malloc(64));
        }
        usleep(10000);
    }
}
"#;

/// The program, on the preloaded library; `None` without a compiler.
fn leaking(folder: &TempDir) -> Option<Paused> {
    let program = folder.path().join("leaking");
    let library = library("uslub-malloc", "libuslub_malloc.so");
    compile(LEAKS, &["-O0"], &program)
        .then(|| Paused::start(Command::new(&program).env("LD_PRELOAD", library)))
}

#[test]
fn a_pipe_gets_plain_lines_with_rates() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = leaking(&folder) else {
        return;
    };
    let pid = target.pid();
    let output = uslub(&["top", &pid, "-d", "0.5", "-n", "2", "--ascii"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(text.is_ascii(), "{text}");
    let looks: Vec<_> = text.split("\n\n").collect();
    assert_eq!(looks.len(), 2, "{text}");
    for look in looks {
        assert!(look.starts_with(&format!("leaking {pid}: up ")), "{look}");
        assert!(look.contains(" allocs/s, "), "{look}");
        let row = look.lines().find(|line| line.starts_with("kmalloc-176"));
        let row = row.expect("the cache that grows");
        let growth = row.split_whitespace().find(|word| word.starts_with('+'));
        let growth: f64 = growth.expect("its growth").parse().expect("a number");
        // 10 000 a second on an idle machine.
        assert!(growth > 0.0 && growth < 20_000.0, "{row}");
        let kept = look.lines().find(|line| line.starts_with("kmalloc-368"));
        assert!(kept.is_some_and(|row| row.contains("1 000 ")), "{look}");
    }
    let output = uslub(&["top", &pid, "-d", "0.1", "-f", "368", "-s", "cache"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let rows: Vec<_> = text.lines().filter(|l| l.starts_with("kmalloc")).collect();
    assert_eq!(rows.len(), 1, "{text}");
}

#[test]
fn looks_leave_the_process_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = preloaded(&folder) else {
        return;
    };
    let cost = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", target.pid())).expect("stat");
        let (_, rest) = stat.rsplit_once(") ").expect("a name");
        let words: Vec<_> = rest.split_whitespace().map(str::to_owned).collect();
        // Faults and CPU time.
        let costs = [7, 9, 11, 12].map(|i| words[i].clone());
        (target.status("VmRSS"), target.status("VmPTE"), costs)
    };
    let before = cost();
    let output = uslub(&["top", &target.pid(), "-d", "0.1", "-n", "30"]);
    assert!(output.status.success());
    assert_eq!(cost(), before);
}

#[test]
fn the_end_of_the_process_is_said_in_a_pipe_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = leaking(&folder) else {
        return;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_uslub"));
    command.args(["top", &target.pid(), "-d", "0.1", "-n", "1000"]);
    let mut top = command.stdout(Stdio::piped()).spawn().expect("the command");
    let mut out = top.stdout.take().expect("a pipe");
    let mut first = [0; 7];
    out.read_exact(&mut first).expect("the first look");
    let pid = Pid::from_raw(target.child.id() as i32);
    kill(pid, Signal::SIGKILL).expect("the end");
    let mut text = String::new();
    out.read_to_string(&mut text).expect("UTF-8");
    assert!(top.wait().expect("an end").success());
    // The test has not fetched the status, so the kernel still knows it.
    let last = format!("leaking {pid}: it was killed by SIGKILL; this was the last look\n");
    assert!(text.ends_with(&last), "{text}");
}

#[test]
fn what_cannot_be_shown_is_refused_as_by_info() {
    let other = Paused::start(Command::new("sh").args(["-c", "echo ready; read x"]));
    for target in [other.pid().as_str(), "8388608", "redis", "/etc/passwd"] {
        let (top, info) = (uslub(&["top", target]), uslub(&["info", target]));
        assert_eq!(top.status.code(), info.status.code(), "{target}");
        assert_eq!(top.stderr, info.stderr, "{target}");
        assert!(top.stdout.is_empty());
    }
    assert_eq!(uslub(&["top", &other.pid()]).status.code(), Some(126));
    for (arguments, words) in [
        (&["top"] as &[&str], "PID is missing"),
        (&["top", "1", "-d", "0"], "0.1 to 60"),
        (&["top", "1", "-s", "age"], "growth/s"),
        (&["top", "1", "-n", "0"], "--looks"),
        (&["top", "1", "-n", "0"], "uslub top --help"),
    ] {
        let output = uslub(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(words), "{error}");
    }
}

/// `uslub top` in a terminal of its own.
fn top(pid: &str, folder: &Path, columns: u16, lines: u16) -> Terminal {
    Terminal::start(&["top", pid, "-d", "0.2"], folder, columns, lines)
}

#[test]
fn keys_work_in_a_terminal_and_it_is_left_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = leaking(&folder) else {
        return;
    };
    let mut terminal = top(&target.pid(), folder.path(), 100, 30);
    terminal.wait_for("\u{1b}[?1049h");
    terminal.wait_for("kmalloc-176");
    terminal.press("?");
    terminal.wait_for("Ctrl-C");
    // Only what changes is written: a text of one word comes in one piece.
    terminal.press("x/368\r");
    terminal.wait_for("'368'");
    terminal.press("\r");
    terminal.wait_for("'kmalloc-368'");
    // A smaller window, down to one line, and back.
    for (columns, lines) in [(60, 15), (30, 5), (200, 50)] {
        terminal.resize(columns, lines);
        terminal.wait_for("live");
    }
    terminal.press("q");
    let (status, behind) = terminal.end();
    assert_eq!(
        (status.code(), behind.contains("kmalloc")),
        (Some(0), false)
    );
}

#[test]
fn the_map_the_doctor_and_a_snapshot_come_by_a_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = leaking(&folder) else {
        return;
    };
    let pid = target.pid();
    let mut terminal = top(&pid, folder.path(), 100, 30);
    terminal.wait_for("kmalloc-368");
    terminal.press("/368\rm");
    terminal.wait_for_screen("live slots: 1 000,");
    // Two snapshots: neither replaces the other.
    for number in [1, 2] {
        let name = format!("uslub-{pid}-{number}.json");
        let file = folder.path().join(&name);
        terminal.press("w");
        let begin = std::time::Instant::now();
        while !file.exists() {
            terminal.read();
            assert!(begin.elapsed().as_secs() < 30, "{name} never came");
        }
        terminal.wait_for_screen(&format!("wrote {name}"));
        let text = std::fs::read_to_string(file).expect("a snapshot");
        let look: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(look["format"], 1);
        assert_eq!(look["pid"].to_string(), pid);
        let kept = inspected::cache(&look, "kmalloc-368");
        assert_eq!(inspected::number(&kept["live"]), 1000);
    }
    terminal.press("s");
    terminal.wait_for_screen("slab_debug_leaks=1");
    terminal.press("d");
    // The doctor looks for three seconds; the view goes on meanwhile.
    terminal.wait_for_screen("looking at the process for three seconds");
    terminal.wait_for_screen("Cache 'kmalloc-176' grew");
    terminal.press("q");
    let (status, _) = terminal.end();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_last_look_stays_when_the_process_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut target) = leaking(&folder) else {
        return;
    };
    let mut terminal = top(&target.pid(), folder.path(), 80, 24);
    terminal.wait_for("allocs/s");
    target.child.kill().expect("the end");
    // Its parent knows: then nobody can say how it ended.
    target.child.wait().expect("its status");
    let (status, behind) = terminal.end();
    assert_eq!(status.code(), Some(0));
    assert!(behind.contains("; this was the last look"), "{behind}");
    assert!(behind.contains("kmalloc-176"), "{behind}");
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_left_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(target) = leaking(&folder) else {
        return;
    };
    let mut terminal = top(&target.pid(), folder.path(), 80, 24);
    terminal.wait_for("allocs/s");
    let pid = Pid::from_raw(terminal.child.id() as i32);
    kill(pid, Signal::SIGTERM).expect("a signal");
    let (status, _) = terminal.end();
    assert_eq!(status.signal(), Some(libc::SIGTERM));
}
