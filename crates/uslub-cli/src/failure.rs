//! The error messages of the command: one line with the problem, one line with the remedy. All
//! modules return a [`Failure`].

use std::io::Write;

/// Exit status for a wrong command line.
pub const USAGE: i32 = 2;
/// Exit status for a failure of uslub itself.
pub const OURS: i32 = 125;
/// Exit status for a program that exists but cannot run on uslub.
pub const UNSUITABLE: i32 = 126;
/// Exit status for a program that does not exist.
pub const NOT_FOUND: i32 = 127;

/// Why uslub failed, and its exit status.
#[derive(Debug)]
pub struct Failure {
    /// The problem, in one line.
    pub message: String,
    /// The remedy, in one line.
    pub hint: String,
    /// Exit status of the command: [`USAGE`], [`OURS`], [`UNSUITABLE`] or [`NOT_FOUND`].
    pub code: i32,
}

impl Failure {
    /// A wrong command line.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            hint: hint.into(),
            code: USAGE,
        }
    }

    /// A resource that uslub needed is unavailable.
    pub fn ours(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            hint: hint.into(),
            code: OURS,
        }
    }

    /// Prints the failure to standard error. Ignores errors of standard error.
    pub fn print(&self) {
        let text = format!("uslub: {}\n  hint: {}\n", self.message, self.hint);
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
