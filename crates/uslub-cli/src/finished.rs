//! The data of an ended run, for `summary` and `record`.

use crate::ending::{Ending, Usage};
use crate::watcher::Seen;
use std::ffi::OsString;
use std::time::Duration;

/// An ended run.
pub struct Finished {
    /// Program and arguments, as the user gave them.
    pub command: Vec<OsString>,
    /// How the program ended.
    pub ending: Ending,
    /// Time from the program's start to its end.
    pub wall: Duration,
    /// The resource usage of the program.
    pub usage: Usage,
    /// The program has an allocator of uslub in it, of the Rust or C interface.
    pub has_allocator: bool,
    /// What was seen of the program from outside.
    pub seen: Seen,
}
