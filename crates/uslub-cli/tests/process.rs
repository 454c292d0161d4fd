//! A program under `uslub run` behaves as without it: arguments, streams,
//! exit status, signals, what it inherits.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::Sender;
use support::{put, text, uslub, uslub_assert, uslub_command, watchdog};
use tempfile::tempdir;

#[test]
fn the_exit_status_is_the_programs() {
    for code in [0, 1, 7, 125, 255] {
        let script = format!("exit {code}");
        let expected = format!("uslub: sh exited with {code} in ");
        uslub_assert(&["run", "sh", "-c", &script])
            .assert()
            .code(code)
            .stderr(contains(expected));
    }
}

#[test]
fn arguments_belong_to_the_program_from_its_name_on() {
    uslub_assert(&[
        "run", "-q", "--", "printf", "%s,", "--quiet", "--", "-x", "",
    ])
    .assert()
    .success()
    .stdout("--quiet,--,-x,,")
    .stderr("");
    uslub_assert(&["run", "-q", "echo", "--report", "x"])
        .assert()
        .success()
        .stdout("--report x\n");
}

#[test]
fn the_program_sees_the_name_that_it_was_called_by() {
    uslub_assert(&[
        "run",
        "-q",
        "sh",
        "-c",
        "cat /proc/$$/cmdline | tr '\\0' ' '",
    ])
    .assert()
    .stdout(contains("sh -c "));
}

#[test]
fn the_streams_pass_through() {
    uslub_assert(&["run", "sort"])
        .write_stdin("b\na\n")
        .assert()
        .success()
        .stdout("a\nb\n")
        .stderr(contains("uslub: sort exited with 0"));
    uslub_assert(&["run", "-q", "sh", "-c", "echo out; echo err >&2"])
        .assert()
        .stdout("out\n")
        .stderr("err\n");
}

#[test]
fn a_stderr_that_is_closed_is_no_trouble() {
    let uslub = uslub();
    let script = format!("{} run -- sh -c 'exit 6' 2>&-", text(&uslub));
    let status = Command::new("sh").args(["-c", &script]).status().unwrap();
    assert_eq!(status.code(), Some(6));
}

/// Runs a line of the shell under a limit. `$0` is the command, `$1` a file that may be written.
fn under(limit: &str, line: &str, file: &Path) -> Output {
    let line = format!("ulimit {limit}; {line}");
    let mut command = Command::new("bash");
    command.args(["-c", &line]).arg(uslub()).arg(file);
    command.output().unwrap()
}

#[test]
fn a_limit_of_file_sizes_ends_neither_the_command_nor_the_program() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("file");
    for limit in ["-f 0", "-f 1", "-f 4", "-f 16"] {
        for options in ["", "-q", "--report $1", "--record $1", "--debug FZPU"] {
            let line = format!("exec $0 run {options} -- sh -c 'ls / > /dev/null; exit 6'");
            let output = under(limit, &line, &file);
            assert_eq!(
                output.status.code(),
                Some(6),
                "{limit} {options}: {output:?}"
            );
        }
    }
    let output = under("-f 0", "exec $0 run -q --report $1 -- true", &file);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot write the report"), "{stderr}");
}

#[test]
fn a_program_beyond_the_limit_of_file_sizes_is_killed_as_without_uslub() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("file");
    let line = "exec $0 run -q -- sh -c 'exec head -c 9000 /dev/zero > $0' $1";
    let output = under("-f 4", line, &file);
    assert_eq!(output.status.signal(), Some(Signal::SIGXFSZ as i32));
    assert_eq!(fs::metadata(&file).unwrap().len(), 4096);
}

#[test]
fn a_small_stack_is_enough_for_the_command() {
    for kib in [32, 64, 128] {
        for words in [
            "run -- true",
            "run --help",
            "gdb-script",
            "fail --times 1 -- true",
        ] {
            let line = format!("exec $0 {words}");
            let output = under(&format!("-s {kib}"), &line, Path::new("none"));
            assert!(output.status.success(), "{kib} KiB, {words}: {output:?}");
        }
    }
}

#[test]
fn a_limit_of_open_files_is_named() {
    let output = under("-n 5", "exec $0 run -q -- true", Path::new("none"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("(ulimit -n)"), "{stderr}");
}

#[test]
fn text_without_an_interpreter_is_run_by_the_shell() {
    let folder = tempdir().unwrap();
    let script = folder.path().join("script");
    put(&script, "echo \"$0 $1\"; exit 4\n", 0o755);
    uslub_assert(&["run", "-q", text(&script), "word"])
        .assert()
        .code(4)
        .stdout(format!("{} word\n", text(&script)));
}

#[test]
fn death_by_a_signal_is_passed_on() {
    for signal in [
        Signal::SIGKILL,
        Signal::SIGTERM,
        Signal::SIGSEGV,
        Signal::SIGINT,
    ] {
        let script = format!("kill -{} $$", signal as i32);
        let output = uslub_command(&["run", "sh", "-c", &script])
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(signal as i32));
        assert!(!output.status.core_dumped());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.contains(&format!("uslub: sh was killed by {signal} after")),
            "{stderr}"
        );
        assert!(stderr.contains("before it could report"), "{stderr}");
    }
}

/// Starts `uslub run -q sh -c script`, in a group of its own, and waits until
/// the script says `ready`.
fn start(script: &str) -> (Child, BufReader<ChildStdout>, Sender<()>) {
    let mut command = uslub_command(&["run", "-q", "sh", "-c", script]);
    let mut child = command
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let watchdog = watchdog(&child);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut output), "ready");
    (child, output, watchdog)
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

#[test]
fn signals_sent_to_uslub_reach_the_program() {
    for name in [
        "HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "WINCH", "CONT", "PWR",
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.02; done"
        );
        let (mut child, mut output, _watchdog) = start(&script);
        kill(pid(&child), format!("SIG{name}").parse::<Signal>().unwrap()).unwrap();
        assert_eq!(line(&mut output), format!("got {name}"));
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn a_program_without_handlers_dies_of_what_is_sent_to_uslub() {
    let (mut child, _output, _watchdog) = start("echo ready; exec sleep 100");
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn a_signal_that_the_program_sends_to_its_group_comes_once() {
    let script = "n=0; trap 'n=$((n+1))' USR1; kill -USR1 0; sleep 0.2; echo $n";
    let mut command = uslub_command(&["run", "-q", "sh", "-c", script]);
    let output = command.process_group(0).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n");
}

/// The lines of `/proc/self/status` about signals, of a `grep` that a shell
/// starts behind `prefix` after `setup`.
fn inherited(setup: &str, prefix: &str) -> String {
    let script = format!("{setup} exec {prefix} grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_program_inherits_what_uslub_was_given() {
    let uslub = format!("{} run -q --", text(&uslub()));
    for setup in [
        "",
        "trap '' PIPE CHLD;",
        "trap '' HUP INT TERM USR1;",
        "trap '' PIPE QUIT TSTP;",
    ] {
        assert_eq!(inherited(setup, &uslub), inherited(setup, ""), "{setup}");
    }
}

#[test]
fn a_parent_that_ignores_its_children_does_not_lose_the_exit_status() {
    let script = format!(
        "trap '' CHLD; exec {} run -q -- sh -c 'exit 8'",
        text(&uslub())
    );
    let status = Command::new("sh").args(["-c", &script]).status().unwrap();
    assert_eq!(status.code(), Some(8));
}

#[test]
fn no_descriptor_leaks_into_the_program() {
    let folder = tempdir().unwrap();
    let report = folder.path().join("r.json");
    let listing = |prefix: &[&str]| {
        let words = [prefix, &["ls", "/proc/self/fd"]].concat();
        let mut command = uslub_command(&[]);
        let mut plain = Command::new(words[0]);
        let command = match prefix {
            [] => plain.args(&words[1..]),
            _ => command.args(&words),
        };
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(
        listing(&["run", "-q", "--report", text(&report)]),
        listing(&[])
    );
}

#[test]
fn the_environment_tells_the_library() {
    let environment = |options: &[&str]| {
        let words = [&["run"], options, &["env"]].concat();
        let mut command = uslub_assert(&words);
        command
            .env("USLUB_FOLLOW", "0")
            .env("USLUB_OPTIONS", "rseq=0");
        String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
    };
    let text = environment(&["--set", "decay_ms=5", "--set", "min_partial=3"]);
    let line = |start: &str, end: &str| {
        text.lines()
            .any(|l| l.starts_with(start) && l.ends_with(end))
    };
    assert!(line("LD_PRELOAD=/", "/libuslub_malloc.so"), "{text}");
    assert!(line("USLUB_REPORT=/", ""), "{text}");
    assert!(
        text.contains("USLUB_OPTIONS=rseq=0,decay_ms=5,min_partial=3\n"),
        "{text}"
    );
    // The path of the words by which the library asks the witness.
    assert!(line("USLUB_HELPER=/proc/", ""), "{text}");
    assert!(!text.contains("USLUB_FOLLOW"), "{text}");
    // Whoever does not follow may have taken the variables away already.
    assert!(!environment(&["--follow", "no"]).contains("USLUB_FOLLOW=1"));
}

#[test]
fn the_folder_for_reports_is_private_and_gone_afterwards() {
    // A program of root may change its user: then the name of a folder inside is the secret.
    let mut expected = predicates::str::is_match("^700 [^\n]*/uslub-[^/]*\n").unwrap();
    if nix::unistd::geteuid().is_root() {
        expected = predicates::str::is_match("^733 [^\n]*/[0-9a-f]{32}\n711 ").unwrap();
    }
    let script = "stat -c '%a %n' $USLUB_REPORT ${USLUB_REPORT%/*}";
    uslub_assert(&["run", "sh", "-c", script])
        .assert()
        .stdout(expected);
    let temporary = tempdir().unwrap();
    for script in ["exit 0", "kill -9 $$"] {
        let mut command = uslub_command(&["run", "sh", "-c", script]);
        command.env("TMPDIR", temporary.path()).output().unwrap();
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    }
}

#[test]
fn quiet_prints_nothing_of_ours() {
    uslub_assert(&["run", "--quiet", "true"])
        .assert()
        .success()
        .stdout("")
        .stderr("");
    uslub_assert(&["run", "--quiet", "false"])
        .assert()
        .code(1)
        .stdout("")
        .stderr("");
    uslub_assert(&["run", "--quiet", "no-such-program"])
        .assert()
        .code(127)
        .stderr(contains("not found").and(contains("hint")));
}
