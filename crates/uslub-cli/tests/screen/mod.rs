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

/// A text with a blank for each control sequence.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut words = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let end = part.find(|c: char| ('@'..='~').contains(&c));
        words.push(' ');
        words.push_str(end.map_or("", |end| &part[end + 1..]));
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The command in a terminal of its own.
pub struct Terminal {
    pty: OpenptyResult,
    before: Termios,
    pub child: Child,
    seen: String,
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
        }
    }

    /// Reads what is there within a moment.
    fn read(&mut self) {
        let mut ready = [PollFd::new(self.pty.master.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::from(50_u16);
        if poll(&mut ready, wait).is_ok_and(|n| n > 0) {
            let mut bytes = vec![0; 1 << 16];
            let mut master = File::from(self.pty.master.try_clone().expect("a copy"));
            let length = master.read(&mut bytes).unwrap_or(0);
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

    /// As [`wait_for`](Self::wait_for), for several words with a blank between two. What lies between
    /// words on the screen is not written, so the terminal gets movements of the cursor instead.
    pub fn wait_for_words(&mut self, words: &str) {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) {
            if plain(&self.seen).contains(words) {
                self.seen.clear();
                return;
            }
            self.read();
        }
        panic!("'{words}' never came: {}", plain(&self.seen));
    }

    /// As [`wait_for_words`](Self::wait_for_words), on the whole screen: only what changes is
    /// written, but a new size has everything written again.
    pub fn wait_for_screen(&mut self, words: &str) {
        let begin = Instant::now();
        for turn in (0..2).cycle() {
            self.resize(100 + turn, 30);
            for _ in 0..4 {
                self.read();
            }
            if plain(&self.seen).contains(words) {
                self.seen.clear();
                return;
            }
            let last = plain(&self.seen);
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "'{words}' never came: {last}"
            );
        }
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
