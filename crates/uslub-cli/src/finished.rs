//! A run that has ended.

use crate::ending::{Ending, Usage};
use std::ffi::OsString;
use std::time::Duration;

/// A run that has come to its end.
pub struct Finished {
    /// Program and arguments, as the user gave them.
    pub command: Vec<OsString>,
    /// How the program ended.
    pub ending: Ending,
    /// Time from its start to its end.
    pub wall: Duration,
    /// What it cost.
    pub usage: Usage,
}
