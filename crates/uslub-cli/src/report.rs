//! Reads the reports that processes on uslub wrote: one JSON object for each process.
//!
//! | file | meaning |
//! |---|---|
//! | `<pid>.json` | a report, written when the process ended |
//! | `<pid>.map` | a mapped file: a report, then zeroes; written when the process ended |
//! | `<pid>.map`, first byte 0 | the process started on uslub and wrote no report |

use serde::Deserialize;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use thiserror::Error;
use uslub_report::VERSION;

use crate::wire::{CacheRow, Process};

/// Extensions of the file names. The process id precedes the extension.
const WRITTEN: &str = "json";
const MAPPED: &str = "map";
/// Longest report that is read, in bytes: many times the size of a real report.
const LONGEST: u64 = 1 << 20;
/// Bytes of a mapped report, read at once.
const USUAL: usize = (64 << 10) + 1;
/// Reports of children that are kept whole while others are read: 25 MB of values.
const KEPT_AT_ONCE: usize = 256;

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
    /// The file has no text.
    #[error("the report is empty")]
    Empty,
    /// The library uses another version of the format.
    #[error("the library reports in format version {0}, not {VERSION}; rebuild both together")]
    Version(Value),
    /// The content is invalid.
    #[error("the report is malformed: {0}")]
    Malformed(serde_json::Error),
}

/// A report, parsed but not interpreted. [`Report`] borrows names from it.
#[derive(Debug)]
pub struct Document {
    process: Value,
    caches: Vec<Value>,
}

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report<'a> {
    /// The process as a whole.
    pub process: Process<'a>,
    /// Its caches, in the order of the file.
    pub caches: Vec<CacheRow<'a>>,
}

impl Document {
    /// Reads the report of process `pid` in `folder`.
    ///
    /// # Errors
    ///
    /// If the report is missing, malformed or of another version.
    pub fn read(folder: &Path, pid: u32) -> Result<Self, Unusable> {
        Self::parse(&text(folder, pid)?)
    }

    fn parse(text: &[u8]) -> Result<Self, Unusable> {
        if text.trim_ascii().is_empty() {
            return Err(Unusable::Empty);
        }
        let mut process: Value = serde_json::from_slice(text).map_err(Unusable::Malformed)?;
        check_version(&process)?;
        let caches = process.get_mut("caches").map(Value::take);
        let caches = Vec::deserialize(caches.unwrap_or(Value::Null));
        let caches = caches.map_err(Unusable::Malformed)?;
        Ok(Document { process, caches })
    }

    /// Interprets the report.
    ///
    /// # Errors
    ///
    /// If a record has invalid content.
    pub fn report(&self) -> Result<Report<'_>, Unusable> {
        let process = Process::deserialize(&self.process).map_err(Unusable::Malformed)?;
        let rows = self.caches.iter().map(CacheRow::deserialize);
        let caches = rows.collect::<Result<_, _>>();
        Ok(Report {
            process,
            caches: caches.map_err(Unusable::Malformed)?,
        })
    }

    /// Most resident bytes of the process.
    fn peak(&self) -> u64 {
        self.process["peak_rss_bytes"].as_u64().unwrap_or(0)
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
    let mut text = Vec::with_capacity(USUAL);
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
    /// The reports, the largest peak first.
    documents: Vec<Document>,
    /// Number of unusable reports.
    pub unusable: u64,
    /// Number of processes that started on uslub and wrote no report.
    pub unfinished: u64,
}

impl Children {
    /// Reads every report in `folder`, except the report of `program`. The caches of only the
    /// `detailed` children with the largest peaks are kept. An unreadable folder counts as empty.
    pub fn read(folder: &Path, program: u32, detailed: usize) -> Self {
        let mut children = Children::default();
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
            match Document::read(folder, pid) {
                Ok(document) if document.report().is_ok() => children.documents.push(document),
                Err(Unusable::Unfinished) => children.unfinished += 1,
                _ => children.unusable += 1,
            }
            if children.documents.len().is_multiple_of(KEPT_AT_ONCE) {
                children.forget_details(detailed);
            }
        }
        children.forget_details(detailed);
        children
    }

    /// Sorts the reports, and forgets the caches of all but the first.
    fn forget_details(&mut self, detailed: usize) {
        self.documents.sort_by_key(|one| Reverse(one.peak()));
        for small in self.documents.iter_mut().skip(detailed) {
            small.caches = Vec::new();
        }
    }

    /// The reports, the largest peak first; equal peaks in the order of process ids.
    pub fn reports(&self) -> impl Iterator<Item = Report<'_>> {
        self.documents.iter().filter_map(|one| one.report().ok())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;
    use tempfile::{TempDir, tempdir};

    /// A report without caches.
    pub fn report(process: Process) -> Report {
        let caches = Vec::new();
        Report { process, caches }
    }

    /// Children with these reports, in their folder.
    pub fn children(reports: &[(Process, Vec<CacheRow>)]) -> (TempDir, Children) {
        let folder = tempdir().unwrap();
        for (process, caches) in reports {
            let name = format!("{}.json", process.pid);
            write(folder.path(), &name, &document(process, caches));
        }
        let children = Children::read(folder.path(), 0, usize::MAX);
        (folder, children)
    }

    fn process(pid: u32) -> Process<'static> {
        Process {
            version: VERSION,
            pid,
            mode: "rseq mm_cid",
            allocs: 7,
            ..Process::default()
        }
    }

    fn document(process: &Process, caches: &[CacheRow]) -> Value {
        let mut document = json!(process);
        document["caches"] = json!(caches);
        document
    }

    fn write(folder: &Path, name: &str, value: &Value) {
        fs::write(folder.join(name), format!("{value}\n")).unwrap();
    }

    fn parse(text: &str) -> Result<Document, Unusable> {
        Document::parse(text.as_bytes())
    }

    #[test]
    fn a_report_reads_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheRow {
            name: "with \"quotes\" \u{e9}",
            num_objs: 3,
            ..CacheRow::default()
        };
        let written = document(&process(42), std::slice::from_ref(&cache));
        write(folder.path(), "42.json", &written);
        let mapped = format!("{written}\n\0\0\0\0");
        fs::write(folder.path().join("44.map"), mapped).unwrap();
        for pid in [42, 44] {
            let document = Document::read(folder.path(), pid).unwrap();
            let report = document.report().unwrap();
            let (process, caches) = (process(42), vec![cache.clone()]);
            assert_eq!(report, Report { process, caches });
        }
        let missing = Document::read(folder.path(), 43);
        assert!(matches!(missing, Err(Unusable::Missing)));
    }

    #[test]
    fn a_report_that_is_a_link_a_pipe_or_endless_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        write(at, "secret", &document(&process(1), &[]));
        std::os::unix::fs::symlink(at.join("secret"), at.join("1.json")).unwrap();
        nix::unistd::mkfifo(&at.join("2.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let long = File::create(at.join("3.json")).unwrap();
        long.set_len(1 << 40).unwrap();
        for pid in 1..=3 {
            assert!(Document::read(at, pid).is_err(), "{pid}");
        }
        assert_eq!(Children::read(at, 9, 9).unusable, 3);
    }

    #[test]
    fn malformed_reports_are_refused_with_the_reason() {
        assert!(matches!(parse(""), Err(Unusable::Empty)));
        assert!(matches!(parse("\n\n"), Err(Unusable::Empty)));
        let good = document(&process(1), &[]).to_string();
        let cut = &good[..good.len() - 1];
        assert!(matches!(parse(cut), Err(Unusable::Malformed(_))));
        let without = json!(process(1)).to_string();
        assert!(matches!(parse(&without), Err(Unusable::Malformed(_))));
        let error = parse("\u{fffd}\u{0}").unwrap_err().to_string();
        assert!(error.starts_with("the report is malformed"), "{error}");
    }

    #[test]
    fn a_record_that_lacks_a_field_is_refused() {
        let mut document = json!(process(1));
        document["caches"] = json!([{"name": "kmalloc-8"}]);
        let document = parse(&document.to_string()).unwrap();
        let error = document.report().unwrap_err().to_string();
        assert!(error.contains("missing field"), "{error}");
    }

    #[test]
    fn another_version_is_refused() {
        let newer = Process {
            version: VERSION + 1,
            ..process(1)
        };
        let error = parse(&document(&newer, &[]).to_string()).unwrap_err();
        assert!(matches!(error, Unusable::Version(_)), "{error}");
        assert!(matches!(parse("[]"), Err(Unusable::Version(Value::Null))));
    }

    #[test]
    fn children_are_all_other_reports_and_the_largest_keep_their_caches() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        for (pid, peak) in [(9, 1), (300, 20), (7, 10), (8, 10)] {
            let process = Process {
                peak_rss_bytes: peak,
                ..process(pid)
            };
            let document = document(&process, &[CacheRow::default()]);
            write(at, &format!("{pid}.json"), &document);
        }
        fs::write(at.join("11.json"), "").unwrap();
        fs::write(at.join("13.map"), [0; 64]).unwrap();
        write(at, "12.tmp", &document(&process(12), &[]));
        write(at, "odd.json", &json!({"version": VERSION}));
        let children = Children::read(at, 9, 2);
        let seen = children.reports().map(|r| (r.process.pid, r.caches.len()));
        assert_eq!(seen.collect::<Vec<_>>(), [(300, 1), (7, 1), (8, 0)]);
        assert_eq!((children.unusable, children.unfinished), (2, 1));
        let none = Children::read(Path::new("/no/folder"), 1, 1);
        assert_eq!(none.reports().count(), 0);
    }
}
