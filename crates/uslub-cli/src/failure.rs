//! What a user reads when uslub cannot do what was asked: one line that says
//! what is wrong, one that says what to do.

use std::io::Write;

/// Exit status when the command line is wrong.
pub const USAGE: i32 = 2;
/// Exit status when uslub itself could not do its work.
pub const OURS: i32 = 125;
/// Exit status when the program was found but cannot run on uslub.
pub const UNSUITABLE: i32 = 126;
/// Exit status when there is no such program.
pub const NOT_FOUND: i32 = 127;

/// Why uslub gave up, and with which exit status.
#[derive(Debug)]
pub struct Failure {
    /// What is wrong, in one line.
    pub message: String,
    /// What the user can do about it, in one line.
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

    /// Something that uslub itself needed and did not get.
    pub fn ours(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            hint: hint.into(),
            code: OURS,
        }
    }

    /// Prints it to stderr. A stderr that takes nothing is no second failure.
    pub fn print(&self) {
        let text = format!("uslub: {}\n  hint: {}\n", self.message, self.hint);
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
