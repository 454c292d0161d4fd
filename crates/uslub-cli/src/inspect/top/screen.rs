//! The terminal: raw mode and the alternate screen, and back in every case.
//!
//! | what happens | who restores the terminal |
//! |---|---|
//! | the view ends, or an error comes up | `Screen`, when it is dropped |
//! | a panic | the hook that `ratatui` sets; the message appears behind it |
//! | SIGTERM, SIGINT, SIGHUP | the loop sees the flag, ends, and dies of the same signal |

use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The terminal while the view has it.
pub struct Screen {
    /// Draws.
    pub terminal: DefaultTerminal,
    signal: Arc<AtomicUsize>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    ///
    /// If it is no terminal, or signals cannot be watched.
    pub fn take() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        let terminal = ratatui::try_init()?;
        Ok(Self { terminal, signal })
    }

    /// The signal that asked for the end, if one did.
    pub fn signal(&self) -> Option<i32> {
        // Relaxed: nothing but the number itself is handed over.
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;
    use nix::sys::termios::tcgetattr;
    use std::io::Read;
    use std::process::{Command, Stdio};

    /// Runs in a process of its own, with a terminal: see the test below.
    #[test]
    #[ignore = "it panics on purpose"]
    fn panics_with_the_terminal() {
        let mut screen = Screen::take().expect("a terminal");
        screen.terminal.draw(|_| {}).expect("a picture");
        panic!("on purpose");
    }

    #[test]
    fn a_panic_restores_the_terminal() {
        let pty = openpty(None, None).expect("a terminal");
        let before = tcgetattr(&pty.slave).expect("its settings");
        let side = || Stdio::from(pty.slave.try_clone().expect("a copy"));
        let myself = std::env::current_exe().expect("the test's file");
        let mut child = Command::new(myself)
            .args([
                "--exact",
                "inspect::top::screen::tests::panics_with_the_terminal",
            ])
            .args(["--ignored", "--nocapture"])
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("the test can be started");
        assert!(!child.wait().expect("its end").success());
        assert_eq!(tcgetattr(&pty.slave).expect("its settings"), before);
        // What it wrote is less than the terminal holds.
        let mut written = vec![0; 1 << 16];
        let length = std::fs::File::from(pty.master).read(&mut written);
        let text = String::from_utf8_lossy(&written[..length.expect("its output")]).into_owned();
        let enter = text.find("\u{1b}[?1049h").expect("the alternate screen");
        let leave = text.find("\u{1b}[?1049l").expect("the way back");
        let message = text.find("on purpose").expect("the message");
        assert!(enter < leave && leave < message, "{text:?}");
    }
}
