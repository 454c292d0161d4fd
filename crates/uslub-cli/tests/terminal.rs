//! `uslub run` at a terminal and as a job of a shell.

mod support;

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::Sender;
use support::{uslub_command, watchdog};

/// Starts `uslub run sh -c script` as the leader of a session on a new
/// terminal; returns it and the terminal's other side.
fn at_terminal(options: &[&str], script: &str) -> (Child, BufReader<PtyMaster>, Sender<()>) {
    // Closed on exec: a copy in any child would keep the terminal from hanging up.
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let user_side = posix_openpt(flags).unwrap();
    grantpt(&user_side).unwrap();
    unlockpt(&user_side).unwrap();
    let name = ptsname_r(&user_side).unwrap();
    let mut open = File::options();
    open.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let program_side = open.open(name).unwrap();
    let mut command = uslub_command(&[&["run"], options, &["sh", "-c", script]].concat());
    command.stdin(program_side.try_clone().unwrap());
    command.stdout(program_side.try_clone().unwrap());
    command.stderr(program_side);
    // SAFETY: both calls are async-signal-safe, and stdin is the terminal by then.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let child = command.spawn().unwrap();
    let watchdog = watchdog(&child);
    (child, BufReader::new(user_side), watchdog)
}

/// Reads lines until one has `word` in it.
fn read_until(terminal: &mut impl BufRead, word: &str) -> String {
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert_ne!(
            terminal.read_line(&mut line).unwrap(),
            0,
            "'{word}' never came"
        );
    }
    line.trim_end().to_owned()
}

#[test]
fn an_interrupt_typed_reaches_the_program_once_and_uslub_survives_it() {
    let script =
        "n=0; trap 'n=$((n+1))' INT; echo ready; sleep 1; sleep 0.3; echo count $n; exit 3";
    let (mut child, mut terminal, _watchdog) = at_terminal(&["-q"], script);
    read_until(&mut terminal, "ready");
    terminal.get_mut().write_all(b"\x03").unwrap();
    assert!(read_until(&mut terminal, "count").ends_with("count 1"));
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn an_interrupt_that_kills_the_program_still_gives_a_summary() {
    let (mut child, mut terminal, _watchdog) = at_terminal(&[], "echo ready; exec sleep 100");
    read_until(&mut terminal, "ready");
    terminal.get_mut().write_all(b"\x03").unwrap();
    let line = read_until(&mut terminal, "uslub: sh was killed by SIGINT");
    assert!(
        line.contains("\u{1b}["),
        "the headline has a style at a terminal: {line}"
    );
    let mut rest = Vec::new();
    let _ = terminal.read_to_end(&mut rest);
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(2)
    );
}

#[test]
fn a_hangup_reaches_the_program() {
    let script = "trap 'echo hung up >&3; exit 5' HUP; echo ready; while :; do sleep 0.02; done";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out");
    let script = format!("exec 3>{}; {script}", file.display());
    let (mut child, mut terminal, _watchdog) = at_terminal(&["-q"], &script);
    read_until(&mut terminal, "ready");
    drop(terminal);
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(
        std::fs::read_to_string(file)
            .unwrap()
            .starts_with("hung up")
    );
}

#[test]
fn a_program_that_stops_stops_uslub_and_both_continue() {
    for signal in [Signal::SIGTSTP, Signal::SIGSTOP, Signal::SIGTTIN] {
        let script = format!("kill -{} $$; echo continued", signal as i32);
        let mut command = uslub_command(&["run", "-q", "sh", "-c", &script]);
        // A group of its own, as a shell makes for each job.
        let mut child = command
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _watchdog = watchdog(&child);
        let pid = Pid::from_raw(child.id() as i32);
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(status, WaitStatus::Stopped(pid, signal));
        killpg(pid, Signal::SIGCONT).unwrap();
        let mut output = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut output)
            .unwrap();
        assert_eq!(output, "continued\n");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_continue_sent_to_uslub_alone_continues_the_program() {
    let mut command = uslub_command(&["run", "-q", "sh", "-c", "kill -TSTP $$; echo continued"]);
    let mut child = command
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _watchdog = watchdog(&child);
    let pid = Pid::from_raw(child.id() as i32);
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    nix::sys::signal::kill(pid, Signal::SIGCONT).unwrap();
    let mut output = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .unwrap();
    assert_eq!(output, "continued\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_a_shell_that_looks_after_it_uslub_does_not_stop() {
    // The same group as ours: nobody here treats it as a job.
    let script = "(sleep 0.3; kill -CONT $$) & kill -STOP $$; echo continued";
    let mut child = uslub_command(&["run", "-q", "sh", "-c", script]);
    let output = child.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "continued\n");
    assert!(output.status.success());
}
