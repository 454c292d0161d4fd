//! A terminal for the commands that draw on one, and what they draw.

// Each test file uses its part of this module.
#![allow(dead_code)]

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The screen after all that was written to it: lines with single blanks between words. Only what
/// changes is written, so this follows the movements of the cursor.
fn drawn(written: &str) -> String {
    let mut cells: Vec<Vec<char>> = vec![vec![' '; 250]; 100];
    let (mut line, mut column) = (0, 0);
    let mut parts = written.split("\u{1b}[");
    parts.next();
    for part in parts {
        let end = part.find(|c: char| ('@'..='~').contains(&c));
        let Some(end) = end else { continue };
        let (numbers, rest) = part.split_at(end);
        match rest.as_bytes()[0] {
            b'H' => {
                let mut numbers = numbers.split(';').map(|n| n.parse().unwrap_or(1_usize));
                line = numbers.next().unwrap_or(1) - 1;
                column = numbers.next().unwrap_or(1) - 1;
            }
            b'J' => cells.iter_mut().for_each(|line| line.fill(' ')),
            _ => {}
        }
        for c in rest.chars().skip(1).filter(|c| !c.is_control()) {
            if let Some(cell) = cells.get_mut(line).and_then(|line| line.get_mut(column)) {
                *cell = c;
            }
            column += 1;
        }
    }
    let text = |line: Vec<char>| {
        let line: String = line.into_iter().collect();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<_> = cells.into_iter().map(text).collect();
    lines.join("\n")
}

/// The command in a terminal of its own.
pub struct Terminal {
    pty: OpenptyResult,
    before: Termios,
    pub child: Child,
    seen: String,
    /// All that was written.
    written: Vec<u8>,
}

impl Terminal {
    /// Starts the command in a folder, in a terminal of so many columns and lines.
    pub fn start(arguments: &[&str], folder: &Path, columns: u16, lines: u16) -> Self {
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).expect("a terminal");
        let before = tcgetattr(&pty.slave).expect("its settings");
        let side = || Stdio::from(pty.slave.try_clone().expect("a copy"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_uslub"));
        command
            .args(arguments)
            .current_dir(folder)
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8");
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn();
        Self {
            child: child.expect("the command"),
            pty,
            before,
            seen: String::new(),
            written: Vec::new(),
        }
    }

    /// Reads what is there within a moment.
    pub fn read(&mut self) {
        let mut ready = [PollFd::new(self.pty.master.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::from(50_u16);
        if poll(&mut ready, wait).is_ok_and(|n| n > 0) {
            let mut bytes = vec![0; 1 << 16];
            let mut master = File::from(self.pty.master.try_clone().expect("a copy"));
            let length = master.read(&mut bytes).unwrap_or(0);
            self.written.extend(&bytes[..length]);
            self.seen += &String::from_utf8_lossy(&bytes[..length]);
        }
    }

    /// Reads until a text comes up behind what was waited for before.
    pub fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            self.read();
        }
        let last: Vec<_> = self.seen.rsplit('\u{1b}').take(40).collect();
        panic!("'{text}' never came: {last:?}");
    }

    /// Reads until the screen shows a text in one of its lines.
    pub fn wait_for_screen(&mut self, text: &str) {
        let begin = Instant::now();
        while !drawn(&String::from_utf8_lossy(&self.written)).contains(text) {
            self.read();
            if begin.elapsed() > Duration::from_secs(30) {
                let screen = drawn(&String::from_utf8_lossy(&self.written));
                panic!("'{text}' never came: {}", screen.trim_end());
            }
        }
        self.seen.clear();
    }

    /// Changes the size, as a terminal does when its window is drawn larger or smaller.
    pub fn resize(&mut self, columns: u16, lines: u16) {
        let size = libc::winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let terminal = self.pty.master.as_raw_fd();
        // SAFETY: the request takes a pointer to a live `winsize`.
        let done = unsafe { libc::ioctl(terminal, libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0);
        self.seen.clear();
        // It is not the controlling terminal of the command, so the kernel sends no signal.
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGWINCH).expect("a signal");
    }

    /// Types keys.
    pub fn press(&mut self, keys: &str) {
        let mut master = File::from(self.pty.master.try_clone().expect("a copy"));
        master.write_all(keys.as_bytes()).expect("a key");
    }

    /// Waits for the end of the command; the terminal must be as it was.
    pub fn end(mut self) -> (ExitStatus, String) {
        let begin = Instant::now();
        let status = loop {
            self.read();
            if let Some(status) = self.child.try_wait().expect("a state") {
                break status;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "it goes on");
        };
        self.read();
        assert!(self.seen.contains("\u{1b}[?1049l"), "{:?}", self.seen);
        assert_eq!(tcgetattr(&self.pty.slave).expect("settings"), self.before);
        let behind = self.seen.split("\u{1b}[?1049l").last().unwrap_or("");
        (status, behind.to_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
