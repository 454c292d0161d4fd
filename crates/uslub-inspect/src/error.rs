//! Why a heap could not be read. Every message names the process, the file or the field.

use std::io;

/// Why a heap could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process has this number.
    #[error("no process {0}")]
    NoProcess(i32),
    /// The process ended while it was read.
    #[error("process {0} ended while it was read")]
    Ended(i32),
    /// The process has no memory: a kernel thread, or a process that has ended and waits for its
    /// parent.
    #[error("process {0} has no memory: it is {1}")]
    NoMemory(i32, &'static str),
    /// The system forbids reading the process.
    #[error("cannot read process {pid}: {source}")]
    Forbidden {
        /// The process.
        pid: i32,
        /// The system's answer.
        source: io::Error,
    },
    /// No note of uslub is in memory.
    #[error("not on uslub: no .note.uslub in its {files} mapped programs and libraries")]
    NotOnUslub {
        /// ELF files in memory that were searched.
        files: usize,
    },
    /// Another version of uslub made the heap.
    #[error("made by uslub {version}, format {format}; this command reads format {ours}")]
    Format {
        /// The version that made it.
        version: String,
        /// Its format.
        format: u32,
        /// The format that is understood here.
        ours: u32,
    },
    /// The layout table lacks a field, or the field has another width.
    #[error("uslub {version} does not describe the field {field} as this command reads it")]
    Field {
        /// The version that made the heap.
        version: String,
        /// The field.
        field: &'static str,
    },
    /// The program has not allocated anything yet.
    #[error("the allocator is not set up yet")]
    NotReady,
    /// Memory that is needed cannot be read.
    #[error("the memory at {at:#x} cannot be read ({bytes} bytes: {what})")]
    Fault {
        /// The address.
        at: u64,
        /// How many bytes.
        bytes: usize,
        /// What was expected there.
        what: &'static str,
    },
    /// A number in memory is impossible.
    #[error("the heap is damaged: {0}")]
    Damaged(&'static str),
    /// A file is no core file that can be read.
    #[error("'{file}' is no core file that can be read: {what}")]
    Core {
        /// The file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// No cache has this name.
    #[error("no cache is called '{0}'")]
    NoCache(String),
    /// An input or output error.
    #[error("{what}: {source}")]
    Io {
        /// What failed.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// The result of reading.
pub type Result<T> = std::result::Result<T, Error>;
