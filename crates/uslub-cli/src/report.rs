//! Reads the reports that processes on uslub wrote: one file of JSON lines for each process.
//!
//! | file | meaning |
//! |---|---|
//! | `<pid>.jsonl` | a report, written when the process ended |
//! | `<pid>.map` | a mapped file: a report, then zeroes; written when the process ended |
//! | `<pid>.map`, first byte 0 | the process started on uslub and wrote no report |

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use thiserror::Error;
use uslub_report::VERSION;

use crate::wire::{CacheRow, Process};

/// Extensions of the file names. The process id precedes the extension.
const WRITTEN: &str = "jsonl";
const MAPPED: &str = "map";
/// Longest report that is read, in bytes: many times the size of a real report.
const LONGEST: u64 = 1 << 20;

/// Why a report cannot be used.
#[derive(Debug, Error)]
pub enum Unusable {
    /// No report exists.
    #[error("there is no report")]
    Missing,
    /// The process started on uslub, but wrote no report.
    #[error("the process did not come to write a report")]
    Unfinished,
    /// No folder for reports exists.
    #[error("there was no folder for a report")]
    NoFolder,
    /// The file cannot be read.
    #[error("the report cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file has no first line.
    #[error("the report is empty")]
    Empty,
    /// The library uses another version of the format.
    #[error("the library reports in format version {0}, not {VERSION}; rebuild both together")]
    Version(Value),
    /// A line has invalid content.
    #[error("line {line} of the report is malformed: {error}")]
    Malformed {
        /// Line number, counted from 1.
        line: usize,
        /// The parser's message.
        error: serde_json::Error,
    },
}

/// The lines of a report, parsed but not interpreted. [`Report`] borrows names from them.
#[derive(Debug)]
pub struct Lines {
    process: Value,
    caches: Vec<Value>,
}

/// A report.
#[derive(Debug, PartialEq)]
pub struct Report<'a> {
    /// The process as a whole.
    pub process: Process<'a>,
    /// Its caches, in the order of the file.
    pub caches: Vec<CacheRow<'a>>,
}

impl Lines {
    /// Reads the report of process `pid` in `folder`.
    ///
    /// # Errors
    ///
    /// If the report is missing, malformed or of another version.
    pub fn read(folder: &Path, pid: u32) -> Result<Self, Unusable> {
        Self::parse(&*text(folder, pid)?)
    }

    fn parse(text: impl Read) -> Result<Self, Unusable> {
        let mut process = None;
        let mut caches = Vec::new();
        for (i, line) in BufReader::new(text).split(b'\n').enumerate() {
            let line = line.map_err(Unusable::Unreadable)?;
            if line.is_empty() {
                continue;
            }
            let value = serde_json::from_slice(&line)
                .map_err(|error| Unusable::Malformed { line: i + 1, error })?;
            match process {
                None => process = Some(value),
                Some(_) => caches.push(value),
            }
        }
        let process = process.ok_or(Unusable::Empty)?;
        check_version(&process)?;
        Ok(Lines { process, caches })
    }

    /// Interprets the lines.
    ///
    /// # Errors
    ///
    /// If a line has invalid content.
    pub fn report(&self) -> Result<Report<'_>, Unusable> {
        let malformed = |line| move |error| Unusable::Malformed { line, error };
        let process = Process::deserialize(&self.process).map_err(malformed(1))?;
        let rows = self.caches.iter().enumerate();
        let caches = rows
            .map(|(i, row)| CacheRow::deserialize(row).map_err(malformed(i + 2)))
            .collect::<Result<_, _>>()?;
        Ok(Report { process, caches })
    }
}

/// The text of the report of process `pid` in `folder`.
fn text(folder: &Path, pid: u32) -> Result<Vec<u8>, Unusable> {
    let read = |ending| match read_file(&folder.join(format!("{pid}.{ending}"))) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Unusable::Unreadable(e)),
    };
    if let Some(text) = read(WRITTEN)? {
        return Ok(text);
    }
    let mut text = read(MAPPED)?.ok_or(Unusable::Missing)?;
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    text.truncate(end);
    if text.is_empty() {
        return Err(Unusable::Unfinished);
    }
    Ok(text)
}

/// Reads a file that a process of another user may have created. Accepts no link and no pipe, and
/// reads at most [`LONGEST`] bytes.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

fn check_version(process: &Value) -> Result<(), Unusable> {
    match &process["version"] {
        found if *found == VERSION => Ok(()),
        other => Err(Unusable::Version(other.clone())),
    }
}

/// The reports of the program's child processes.
#[derive(Debug, Default)]
pub struct Children {
    /// First line of each report.
    processes: Vec<Value>,
    /// Number of unusable reports.
    pub unusable: u64,
    /// Number of processes that started on uslub and wrote no report.
    pub unfinished: u64,
}

impl Children {
    /// Reads the first line of every report in `folder`, except the report of `program`. An
    /// unreadable folder counts as empty.
    pub fn read(folder: &Path, program: u32) -> Self {
        let mut children = Children::default();
        let mut found: Vec<(u32, Value)> = Vec::new();
        let mut pids = BTreeSet::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|e| e != WRITTEN && e != MAPPED) {
                continue;
            }
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            match stem.and_then(|stem| stem.parse().ok()) {
                Some(pid) => _ = pids.insert(pid),
                None => children.unusable += 1,
            }
        }
        for pid in pids.into_iter().filter(|&pid| pid != program) {
            match first_line(folder, pid) {
                Ok(process) => found.push((pid, process)),
                Err(Unusable::Unfinished) => children.unfinished += 1,
                Err(_) => children.unusable += 1,
            }
        }
        found.sort_by_key(|(pid, _)| *pid);
        children.processes = found.into_iter().map(|(_, process)| process).collect();
        children
    }

    /// The child processes, in the order of their process ids.
    pub fn processes(&self) -> impl Iterator<Item = Process<'_>> {
        self.processes
            .iter()
            .filter_map(|p| Process::deserialize(p).ok())
    }
}

fn first_line(folder: &Path, pid: u32) -> Result<Value, Unusable> {
    let text = text(folder, pid)?;
    let line = text.split_inclusive(|&b| b == b'\n').next();
    let lines = Lines::parse(line.unwrap_or_default())?;
    lines.report()?;
    Ok(lines.process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn process(pid: u32) -> Process<'static> {
        Process {
            version: VERSION,
            pid,
            mode: "rseq mm_cid",
            allocs: 7,
            ..Process::default()
        }
    }

    fn write(folder: &Path, name: &str, lines: &[Value]) {
        let text: Vec<_> = lines.iter().map(|l| format!("{l}\n")).collect();
        fs::write(folder.join(name), text.concat()).unwrap();
    }

    fn parse(text: &str) -> Result<Lines, Unusable> {
        Lines::parse(text.as_bytes())
    }

    #[test]
    fn a_report_reads_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheRow {
            name: "with \"quotes\" \u{e9}",
            num_objs: 3,
            ..CacheRow::default()
        };
        write(
            folder.path(),
            "42.jsonl",
            &[json!(process(42)), json!(cache)],
        );
        let lines = Lines::read(folder.path(), 42).unwrap();
        let report = lines.report().unwrap();
        assert_eq!(
            report,
            Report {
                process: process(42),
                caches: vec![cache]
            }
        );
        assert!(matches!(
            Lines::read(folder.path(), 43),
            Err(Unusable::Missing)
        ));
    }

    #[test]
    fn a_report_that_is_a_link_a_pipe_or_endless_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        write(at, "secret", &[json!(process(1))]);
        std::os::unix::fs::symlink(at.join("secret"), at.join("1.jsonl")).unwrap();
        nix::unistd::mkfifo(&at.join("2.jsonl"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let long = File::create(at.join("3.jsonl")).unwrap();
        long.set_len(1 << 40).unwrap();
        for pid in 1..=3 {
            assert!(Lines::read(at, pid).is_err(), "{pid}");
        }
        assert_eq!(Children::read(at, 9).unusable, 3);
    }

    #[test]
    fn malformed_reports_are_refused_with_the_line() {
        assert!(matches!(parse(""), Err(Unusable::Empty)));
        assert!(matches!(parse("\n\n"), Err(Unusable::Empty)));
        let good = json!(process(1)).to_string();
        let cut = &good[..good.len() - 1];
        assert!(matches!(
            parse(cut),
            Err(Unusable::Malformed { line: 1, .. })
        ));
        let text = format!("{good}\n{{\"name\":\n");
        assert!(matches!(
            parse(&text),
            Err(Unusable::Malformed { line: 2, .. })
        ));
        let error = parse("\u{fffd}\u{0}").unwrap_err().to_string();
        assert!(
            error.starts_with("line 1 of the report is malformed"),
            "{error}"
        );
    }

    #[test]
    fn a_line_that_lacks_a_field_is_refused() {
        let text = format!("{}\n{}\n", json!(process(1)), json!({"name": "kmalloc-8"}));
        let lines = parse(&text).unwrap();
        assert!(matches!(
            lines.report(),
            Err(Unusable::Malformed { line: 2, .. })
        ));
    }

    #[test]
    fn another_version_is_refused() {
        let newer = Process {
            version: VERSION + 1,
            ..process(1)
        };
        let error = parse(&json!(newer).to_string()).unwrap_err();
        assert!(matches!(error, Unusable::Version(_)), "{error}");
        assert!(matches!(parse("[]"), Err(Unusable::Version(Value::Null))));
    }

    #[test]
    fn children_are_all_other_reports() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        for pid in [9, 300, 7] {
            write(
                at,
                &format!("{pid}.jsonl"),
                &[json!(process(pid)), json!({})],
            );
        }
        write(at, "11.jsonl", &[]);
        write(at, "12.tmp", &[json!(process(12))]);
        write(at, "odd.jsonl", &[json!({"version": VERSION})]);
        let children = Children::read(at, 9);
        let pids: Vec<_> = children.processes().map(|p| p.pid).collect();
        assert_eq!(pids, [7, 300]);
        assert_eq!(children.unusable, 2);
        assert_eq!(
            Children::read(Path::new("/no/folder"), 1)
                .processes()
                .count(),
            0
        );
    }
}
