//! `uslub record`, `replay` and `report` against real programs, and files that are damaged.

mod inspected;
mod screen;
mod support;

use inspected::{Paused, has_cc, library, said, uslub};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use screen::Terminal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::{compile, text};
use tempfile::TempDir;

/// Allocates 176 bytes at each step and keeps them, and 368 bytes that it frees again.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *kept[1000000];
int main(int argc, char **argv)
{
    int steps = atoi(argv[1]), n = 0;
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int step = 0; step < steps; step++) {
        if (step == 20)
            puts("ready");
        for (int i = 0; i < 200; i++) {
            kept[n++] = memset(malloc(176), 1, 176);
            free(malloc(368));
        }
        usleep(5000);
    }
    return argc > 2 ? atoi(argv[2]) : 0;
}
"#;

struct World {
    folder: TempDir,
    library: PathBuf,
}

impl World {
    /// `None` without a compiler.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("leaks");
        if !compile(PROGRAM, &["-O0", "-Wno-unused-result"], &program) {
            assert!(!has_cc(), "the program does not compile");
            return None;
        }
        let library = library("uslub-malloc", "libuslub_malloc.so");
        Some(World { folder, library })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self) -> PathBuf {
        self.path("leaks")
    }

    /// A program that leaks until it is killed.
    fn leaking(&self) -> Paused {
        let mut command = Command::new(self.program());
        Paused::start(command.arg("100000").env("LD_PRELOAD", &self.library))
    }

    fn uslub(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uslub"));
        command.args(arguments).env_remove("LD_PRELOAD");
        let output = command.env("USLUB_LIBRARY", &self.library).output();
        output.expect("the command can be started")
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_recording_names_the_cache_that_leaks() {
    let Some(world) = World::new() else { return };
    let leaking = world.leaking();
    let file = world.path("f");
    let file = text(&file);
    let pid = leaking.pid();
    let told = said(&["record", &pid, "-o", file, "--every", "20ms", "--for", "2s"]);
    assert!(told.contains("looks in"), "{told}");
    assert!(told.contains("the time was over"), "{told}");
    let grown = "grew without pause: kmalloc-176, +";
    assert!(told.contains(grown), "{told}");
    assert!(!told.contains("kmalloc-368"), "{told}");

    let refused = uslub(&["record", &pid, "-o", "/no/such/f"]);
    assert!(error(&refused).contains("/no/such/f"));
    let pipe = world.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let refused = uslub(&["record", &pid, "-o", text(&pipe)]);
    assert!(error(&refused).contains("a pipe cannot hold a recording"));

    let replayed = said(&["replay", file]);
    let title = format!("leaks {pid} on uslub 0.1.0 · ");
    assert!(replayed.starts_with(&title), "{replayed}");
    assert!(replayed.contains(grown), "{replayed}");
    let live = |at: &str| -> u64 {
        let look = said(&["replay", file, "--at", at]);
        let row = look.lines().find(|line| line.starts_with("kmalloc-176 "));
        let row = row.unwrap_or_else(|| panic!("{look}"));
        // The count has groups of three digits; the bytes follow after two blanks or more.
        let count = row["kmalloc-176".len()..].trim_start().split("  ").next();
        let digits: String = count.unwrap_or("").split(' ').collect();
        digits.parse().expect("a count")
    };
    assert!(live("0") >= 4000);
    assert!(live("1s") > live("0") && live("1h") > live("1s"));

    let page = world.path("page.html");
    said(&["report", file, "-o", text(&page)]);
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
    assert!(page.contains("<b>kmalloc-176</b>") && page.contains("<svg"));
    assert!(page.len() < 5_000_000);
}

#[test]
fn a_signal_or_the_end_of_the_process_ends_a_recording() {
    let Some(world) = World::new() else { return };
    for is_killed in [false, true] {
        let leaking = world.leaking();
        let file = world.path(&format!("killed-{is_killed}"));
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_uslub"));
        recorder.args([
            "record",
            &leaking.pid(),
            "--every",
            "10ms",
            "-o",
            text(&file),
        ]);
        let recorder = recorder
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        // The first look is in the file.
        while fs::metadata(&file).map_or(0, |meta| meta.len()) < 200 {
            std::thread::sleep(Duration::from_millis(5));
        }
        if is_killed {
            drop(leaking);
        } else {
            let pid = Pid::from_raw(recorder.id() as i32);
            kill(pid, Signal::SIGINT).expect("the signal is sent");
        }
        let output = recorder.wait_with_output().expect("the end");
        assert!(output.status.success());
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = match is_killed {
            true => "the process ended",
            false => "a signal ended the recording",
        };
        assert!(told.contains(why), "{told}");
        assert!(said(&["replay", text(&file)]).contains(&format!("ended: {why}")));
    }
}

#[test]
fn a_program_is_run_and_recorded_and_its_status_passed_on() {
    let Some(world) = World::new() else { return };
    let (file, program) = (world.path("f"), world.program());
    let (file, program) = (text(&file), text(&program));
    let words = [
        "record", "--every", "10ms", "-o", file, "--", program, "100", "7",
    ];
    let output = world.uslub(&words);
    let told = error(&output);
    assert_eq!(output.status.code(), Some(7), "{told}");
    assert!(
        told.contains("looks in") && told.contains("the process ended"),
        "{told}"
    );
    assert!(said(&["replay", file, "--all"]).contains("\nkmalloc-176 "));
    // The same as an option of `uslub run`, with its summary.
    let output = world.uslub(&["run", "--record", file, "--", program, "60"]);
    assert!(output.status.success(), "{}", error(&output));
    assert!(error(&output).contains("1 look in") || error(&output).contains(" looks in"));
    // A program that never allocates by uslub: the file says that it has no look.
    let output = world.uslub(&["record", "-o", file, "--", "true"]);
    assert!(output.status.success(), "{}", error(&output));
    let output = uslub(&["replay", file]);
    if output.status.code() != Some(0) {
        assert!(error(&output).contains("has no look: the process ended"));
    }
}

/// A small recording of more than three looks, and how many: on a busy machine that takes longer.
fn recorded(world: &World, file: &Path) -> u64 {
    let leaking = world.leaking();
    for span in ["300ms", "3s", "30s"] {
        let words = ["--every", "10ms", "--for", span];
        said(&[&["record", &leaking.pid(), "-o", text(file)], &words[..]].concat());
        let printed = said(&["replay", text(file)]);
        let looks = printed
            .split(" · ")
            .nth(1)
            .and_then(|text| text.split(' ').next());
        let looks = looks.expect("looks").parse().expect("a number");
        if looks > 3 {
            return looks;
        }
    }
    panic!("fewer than four looks in 30 s");
}

#[test]
fn damaged_files_are_named_and_shown_up_to_the_damage() {
    let Some(world) = World::new() else { return };
    let file = world.path("f");
    recorded(&world, &file);
    let bytes = fs::read(&file).expect("the file");
    let page = world.path("page");
    let read = |bytes: &[u8]| {
        fs::write(&file, bytes).expect("a file");
        let replay = uslub(&["replay", text(&file)]);
        let report = uslub(&["report", text(&file), "-o", text(&page)]);
        let looked = uslub(&["replay", text(&file), "--at", "100ms"]);
        assert_eq!(replay.status.code(), report.status.code());
        assert!(looked.status.code().is_some(), "no signal");
        (replay.status.code(), error(&replay))
    };
    assert_eq!(read(&bytes).0, Some(0));
    let (code, why) = read(&bytes[..bytes.len() - 30]);
    assert_eq!(code, Some(1), "{why}");
    assert!(
        why.contains("is not whole: it ends early, within the block"),
        "{why}"
    );
    assert!(
        fs::read_to_string(&page)
            .expect("the page")
            .contains("is not whole")
    );
    let mut damaged = bytes.clone();
    let middle = bytes.len() - 60;
    damaged[middle] ^= 0x40;
    let (code, why) = read(&damaged);
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains("is damaged: "), "{why}");
    // Nothing can be shown.
    for (bytes, word) in [
        (&b""[..], "it is no recording of uslub"),
        (
            b"\x7fELF\x02\x01\x01\0\0\0\0\0",
            "it is no recording of uslub",
        ),
        (
            b"uslubrec\x09\0\0\0",
            "version 9; this command reads version 1",
        ),
        (&bytes[..40], "it ends early"),
    ] {
        let (code, why) = read(bytes);
        assert_eq!(code, Some(125), "{why}");
        assert!(why.contains(word), "'{word}' is missing: {why}");
    }
}

#[test]
fn arrow_keys_step_through_a_recording_in_a_terminal() {
    let Some(world) = World::new() else { return };
    let file = world.path("f");
    let looks = recorded(&world, &file);
    let arguments = ["replay", text(&file)];
    let mut terminal = Terminal::start(&arguments, world.folder.path(), 100, 30);
    terminal.wait_for_screen(&format!("look {looks} of {looks} at"));
    for (keys, look) in [
        ("\u{1b}[D", looks - 1),
        ("\u{1b}[D", looks - 2),
        ("\u{1b}[C", looks - 1),
        ("[[[[[[[[[[", 1),
        ("]", 1 + looks.div_ceil(10)),
    ] {
        terminal.press(keys);
        terminal.wait_for_screen(&format!("look {look} of {looks} at"));
    }
    terminal.press("m");
    terminal.wait_for_screen("a recording has no map of slabs");
    terminal.press("q");
    let (status, _) = terminal.end();
    assert_eq!(status.code(), Some(0));
    // As text in a terminal too, if it is asked for.
    let arguments = ["replay", text(&file), "--print"];
    let mut terminal = Terminal::start(&arguments, world.folder.path(), 100, 30);
    terminal.wait_for("The most was resident at ");
    assert!(terminal.child.wait().expect("the end").success());
}

#[test]
fn wrong_words_are_refused_with_what_helps() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("f");
    let file = text(&path);
    let refused = |words: &[&str], code: i32, expected: &str| {
        let output = uslub(words);
        let error = error(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {error}");
        assert!(error.contains(expected), "'{expected}' is missing: {error}");
    };
    refused(&["record", "1"], 2, "-o");
    refused(&["record", "-o", file], 2, "PID");
    refused(
        &["record", "redis", "-o", file],
        2,
        "'redis' is not the number",
    );
    refused(
        &["record", "1", "-o", file, "--every", "1ms"],
        2,
        "10ms to 1h",
    );
    refused(
        &["record", "1", "-o", file, "--for", "5 apples"],
        2,
        "apples",
    );
    refused(
        &["record", "8388608", "-o", file],
        127,
        "no process 8388608",
    );
    assert!(!path.exists(), "a recording without a look is removed");
    let own = std::process::id().to_string();
    refused(&["record", &own, "-o", file], 126, "not on uslub");
    refused(&["replay", "/no/such"], 125, "No such file");
    refused(&["replay"], 2, "FILE");
    refused(&["report", file], 2, "-o");
}

#[test]
fn a_recording_that_fails_costs_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("keep"), "precious").expect("a file");
    std::os::unix::fs::symlink("keep", at("link")).expect("a link");
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let own = std::process::id().to_string();
    for (pid, code) in [("8388608", 127), (&*own, 126)] {
        for name in ["keep", "link", "pipe", "new"] {
            let output = uslub(&["record", pid, "-o", text(&at(name))]);
            assert_eq!(output.status.code(), Some(code), "{}", error(&output));
        }
    }
    // The program that cannot run comes before the file, too.
    for option in ["--record", "--report"] {
        for name in ["keep", "link", "new"] {
            let file = at(name);
            let words = ["run", option, text(&file), "--", "/no/such/program"];
            assert!(!uslub(&words).status.success());
        }
    }
    // A page would replace what it is made of.
    let output = uslub(&["report", text(&at("keep")), "-o", text(&at("link"))]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("is the recording itself"));
    // What cannot be read makes no page.
    let output = uslub(&["report", text(&at("keep")), "-o", text(&at("new"))]);
    assert_eq!(output.status.code(), Some(125));
    let content = fs::read_to_string(at("keep")).expect("the file");
    assert_eq!(content, "precious");
    assert!(at("link").is_symlink() && at("pipe").exists() && !at("new").exists());
}
