//! The full record of a run, as JSON, for `uslub run --report FILE`.

use crate::absence::absence;
use crate::destination::Destination;
use crate::ending::{Ending, signal_name};
use crate::finished::Finished;
use crate::onlooker::Allocator;
use crate::report::{Children, Report, Unusable};
use crate::wire::{CacheRow, Process};
use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// A report, as processes write it: the fields of the process, and its caches.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    process: Process<'a>,
    caches: Vec<CacheRow<'a>>,
}

/// What the last look at the running program saw.
#[derive(Serialize)]
struct LastLook {
    seconds_before_end: f64,
    resident_bytes: u64,
    file: Option<PathBuf>,
    /// Whether a filter of system calls was installed.
    filtered: bool,
}

impl LastLook {
    fn of(run: &Finished) -> Option<Self> {
        run.seen.last.as_ref().map(|look| LastLook {
            seconds_before_end: run.wall.saturating_sub(look.age).as_secs_f64(),
            resident_bytes: look.resident_bytes,
            file: look.file.clone(),
            filtered: look.filtered,
        })
    }
}

/// The JSON object. Sizes are in bytes, times in seconds. docs/report.md is the schema for users.
#[derive(Serialize)]
pub struct Record<'a> {
    /// Version of the format, the same as in each report.
    version: u32,
    command: Vec<String>,
    /// Absent when a signal ended the program.
    exit_status: Option<i32>,
    /// Absent when the program ended by itself.
    signal: Option<i32>,
    signal_name: Option<String>,
    wall_seconds: f64,
    user_seconds: f64,
    system_seconds: f64,
    /// Peak memory over the program and the processes that it waited for, in bytes.
    max_rss_bytes: u64,
    /// Absent when the program did not report; `no_report` says why.
    process: Option<Whole<'a>>,
    no_report: Option<String>,
    /// Absent when the program ended before the first look.
    last_look: Option<LastLook>,
    /// The allocators that the program has in it, and malloc if the program left no report, as
    /// they were seen from outside.
    allocators: Vec<&'a Allocator>,
    /// Age of the program at that look; absent if there was none.
    seen_seconds_before_end: Option<f64>,
    /// Processes that the kernel killed during the run because memory was short: in the control
    /// group of `uslub run`, and on the machine.
    oom_kills_in_group: u64,
    oom_kills_on_machine: u64,
    /// Reports of the children, the largest peak first.
    children: Vec<Whole<'a>>,
    /// Children that began on uslub and left no report.
    unfinished_children: u64,
    unusable_children: u64,
}

impl<'a> Record<'a> {
    /// The record of a run.
    pub fn new(
        run: &'a Finished,
        report: Result<&'a Report<'a>, &Unusable>,
        children: &'a Children,
    ) -> Self {
        let (exit_status, signal) = match run.ending {
            Ending::Exited(code) => (Some(code), None),
            Ending::Killed(signal) => (None, Some(signal)),
        };
        let whole = |report: Report<'a>| Whole {
            process: report.process,
            caches: report.caches,
        };
        let seen = &run.seen.caches;
        Record {
            version: uslub_report::VERSION,
            command: run
                .command
                .iter()
                .map(|w| w.to_string_lossy().into_owned())
                .collect(),
            exit_status,
            signal,
            signal_name: signal.map(signal_name),
            wall_seconds: run.wall.as_secs_f64(),
            user_seconds: run.usage.user.as_secs_f64(),
            system_seconds: run.usage.system.as_secs_f64(),
            max_rss_bytes: run.usage.max_rss_bytes,
            process: report.ok().cloned().map(whole),
            no_report: report.err().map(|why| absence(run, why)),
            last_look: LastLook::of(run),
            allocators: seen
                .iter()
                .flat_map(|sight| &sight.allocators)
                .filter(|allocator| allocator.is_own() || report.is_err())
                .collect(),
            seen_seconds_before_end: seen.as_ref().map(|sight| match sight.at_end {
                true => 0.0,
                false => run.wall.saturating_sub(sight.age).as_secs_f64(),
            }),
            oom_kills_in_group: run.seen.oom.in_group,
            oom_kills_on_machine: run.seen.oom.on_machine,
            children: children.reports().map(whole).collect(),
            unfinished_children: children.unfinished,
            unusable_children: children.unusable,
        }
    }

    /// Replaces the content of `file` by the record.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, file: &Destination) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        file.replace(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Usage;
    use crate::watcher::Seen;
    use serde_json::Value;
    use std::time::Duration;

    fn run(ending: Ending) -> Finished {
        Finished {
            command: vec!["sort".into(), "-u".into()],
            ending,
            wall: Duration::from_millis(1500),
            usage: Usage {
                max_rss_bytes: 4096,
                ..Usage::default()
            },
            has_allocator: false,
            seen: Seen::default(),
        }
    }

    #[test]
    fn a_record_holds_the_run_and_its_report() {
        let process = Process {
            pid: 3,
            mode: "try-lock",
            ..Process::default()
        };
        let caches = vec![CacheRow {
            name: "kmalloc-8",
            ..CacheRow::default()
        }];
        let report = Report { process, caches };
        let children = Children::default();
        let finished = run(Ending::Exited(1));
        let record = Record::new(&finished, Ok(&report), &children);
        let value = serde_json::to_value(record).unwrap();
        assert_eq!(value["command"], serde_json::json!(["sort", "-u"]));
        assert_eq!(value["exit_status"], 1);
        assert_eq!(value["signal"], Value::Null);
        assert_eq!(value["wall_seconds"], 1.5);
        assert_eq!(value["max_rss_bytes"], 4096);
        assert_eq!(value["process"]["mode"], "try-lock");
        assert_eq!(value["process"]["caches"][0]["name"], "kmalloc-8");
        assert_eq!(value["children"], serde_json::json!([]));
    }

    #[test]
    fn a_record_replaces_a_longer_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        let children = Children::default();
        let finished = run(Ending::Killed(9));
        let record = Record::new(&finished, Err(&Unusable::Missing), &children);
        record.write(&Destination::open(&path).unwrap()).unwrap();
        let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(value["signal_name"], "SIGKILL");
        assert_eq!(value["exit_status"], Value::Null);
        let why = value["no_report"].as_str().unwrap();
        assert!(why.contains("SIGKILL"), "{why}");
    }

    /// `docs/report.md` has a row for each field, in the section on the record.
    #[test]
    fn the_schema_for_users_is_true() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.md");
        let text = std::fs::read_to_string(file).unwrap();
        let mut finished = run(Ending::Exited(0));
        finished.seen.last = Some(crate::watcher::Look {
            age: Duration::from_secs(1),
            resident_bytes: 1,
            file: None,
            filtered: false,
        });
        let children = Children::default();
        let record = Record::new(&finished, Err(&Unusable::Missing), &children);
        let record = serde_json::to_value(record).unwrap();
        let allocator = &serde_json::to_value(Allocator::default()).unwrap();
        let look = &record["last_look"];
        for (heading, value) in [
            ("Run", &record),
            ("Allocator", allocator),
            ("Last look", look),
        ] {
            let (_, section) = text.split_once(&format!("\n### {heading}\n")).unwrap();
            let section = section.split("\n#").next().unwrap();
            let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
            let mut rows: Vec<_> = rows.map(|row| row.split('`').next().unwrap()).collect();
            rows.sort_unstable();
            let mut fields: Vec<_> = value.as_object().unwrap().keys().collect();
            fields.sort_unstable();
            assert_eq!(rows, fields, "docs/report.md, section {heading}");
        }
    }
}
