//! `uslub metrics`: OpenMetrics text, once or for each scrape of a collector.
//!
//! The series of the allocators are those of `uslub::metrics` inside a process; both come from
//! `uslub_report::openmetrics`. From outside comes where the resident memory is.

use super::target::{Target, start_time};
use super::{STATUS_HELP, http};
use crate::ending::Ending;
use crate::failure::{Failure, NOT_FOUND};
use clap::Args;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uslub_inspect::snapshot::Row;
use uslub_inspect::{Bridge, Heap, Snapshot};
use uslub_report::openmetrics::{CacheFigures, Family, Figures, Writer, merge};

/// Resident memory, as only the command knows it.
const RESIDENT: Family = Family {
    name: "uslub_resident_bytes",
    kind: "gauge",
    help: "Resident memory by what it holds.",
};

/// A process is looked at again after this time at the earliest; scrapes between get the last text.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Options of `uslub metrics`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct MetricsOptions {
    /// Processes, by their numbers; or core files
    #[arg(required = true, value_name = "PID|FILE")]
    pub targets: Vec<PathBuf>,

    /// Answer a collector's scrapes of http://ADDRESS/metrics, until the processes end; loopback
    /// addresses only, for example 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS", conflicts_with = "once")]
    pub listen: Option<String>,

    /// Print the text once; this is the default
    #[arg(long)]
    pub once: bool,
}

/// The figures of one target, with their texts.
struct Looked {
    pid: String,
    bridge: Option<Bridge>,
    allocators: Vec<Allocator>,
}

struct Allocator {
    face: String,
    version: String,
    look: Snapshot,
}

/// The output for targets.
pub fn text(targets: &[PathBuf]) -> Result<String, Failure> {
    let looked: Result<Vec<_>, _> = targets.iter().map(|word| look(word)).collect();
    write(&looked?)
}

fn look(word: &Path) -> Result<Looked, Failure> {
    let target = Target::open(word)?;
    let looks = target.looks()?;
    let (pid, bridge) = match &target {
        Target::Process(process) => {
            let bridge = Bridge::of(process, &looks).map_err(|error| target.refuse(error))?;
            (process.pid().to_string(), Some(bridge))
        }
        Target::Core(core, _) => {
            let pid = core.program().map_or(0, |(_, pid)| pid);
            (pid.to_string(), None)
        }
    };
    let allocator = |(heap, look): (Heap<'_>, Snapshot)| Allocator {
        face: heap.root().face.clone(),
        version: heap.root().version.clone(),
        look,
    };
    Ok(Looked {
        pid,
        bridge,
        allocators: looks.into_iter().map(allocator).collect(),
    })
}

fn figures(row: &Row) -> CacheFigures<'_> {
    CacheFigures {
        name: &row.cache.name,
        live: row.live().unwrap_or(0),
        cached: row.cached,
        free: row.free().unwrap_or(0),
        slab_bytes: row.slab_bytes(),
        allocs: row.calls.0,
        frees: row.calls.1,
    }
}

fn write(all: &[Looked]) -> Result<String, Failure> {
    let allocators = || {
        let each = |looked: &'_ Looked| looked.allocators.len();
        all.iter().flat_map(move |looked| {
            (0..each(looked)).map(move |i| (&looked.pid, &looked.allocators[i]))
        })
    };
    let rows = |allocator: &'_ Allocator| -> Vec<Row> {
        let rows = allocator.look.rows.iter().filter(|row| row.slots > 0);
        rows.cloned().collect()
    };
    let rows: Vec<_> = allocators().map(|(_, allocator)| rows(allocator)).collect();
    let mut caches: Vec<Vec<_>> = (rows.iter())
        .map(|rows| rows.iter().map(figures).collect())
        .collect();
    let figures = allocators().zip(&mut caches);
    let figures = figures.map(|((pid, allocator), caches)| Figures {
        pid,
        face: &allocator.face,
        version: &allocator.version,
        caches: merge(caches),
        large_bytes: allocator.look.pages.large * 4096,
        huge_bytes: allocator.look.huge.map(|(live, _)| live),
    });
    let figures: Vec<_> = figures.collect();
    let mut out = String::new();
    let written = resident(&mut out, all).and_then(|()| Writer::new(&mut out).all(&figures));
    written.map_err(|error| {
        Failure::ours(
            format!("cannot write the figures: {error}"),
            "report this as a bug of uslub",
        )
    })?;
    out.push_str("# EOF\n");
    Ok(out)
}

/// The family of resident memory; absent if all targets are core files.
fn resident(out: &mut String, all: &[Looked]) -> fmt::Result {
    let mut writer = Writer::new(out);
    if all.iter().any(|looked| looked.bridge.is_some()) {
        writer.begin(&RESIDENT)?;
    }
    for looked in all {
        for (part, bytes) in looked.bridge.iter().flat_map(Bridge::parts) {
            let labels = [("pid", &*looked.pid), ("state", &part.replace(' ', "_"))];
            writer.sample(&RESIDENT, &labels, bytes)?;
        }
    }
    Ok(())
}

/// Answers scrapes until the last process has ended.
pub fn listen(options: &MetricsOptions, address: &str) -> Result<Ending, Failure> {
    let address = http::address(address)?;
    // Refusals come before the first scrape.
    text(&options.targets)?;
    // A core file stays; a process is another one if it started at another time.
    let started = options.targets.iter().map(|word| {
        let pid = word.to_str().and_then(|word| word.parse().ok());
        (word.clone(), pid, pid.and_then(start_time))
    });
    let started: Vec<_> = started.collect();
    let still_there = || {
        let is_there = |(word, pid, start): &(PathBuf, Option<i32>, Option<u64>)| {
            let is_same = pid.is_none_or(|pid| start.is_some() && start_time(pid) == *start);
            is_same.then(|| word.clone())
        };
        started.iter().filter_map(is_there).collect::<Vec<_>>()
    };
    let mut last: Option<(Instant, String)> = None;
    let scrape = || {
        if let Some((at, text)) = &last
            && at.elapsed() < LOOK_EVERY
        {
            return Ok(text.clone());
        }
        let looked = still_there().into_iter().filter_map(|word| {
            // A process may end while it is read: it is left out then.
            match look(&word) {
                Err(failure) if failure.code == NOT_FOUND => None,
                other => Some(other),
            }
        });
        let looked: Result<Vec<_>, _> = looked.collect();
        let text = write(&looked?)?;
        last = Some((Instant::now(), text.clone()));
        Ok(text)
    };
    http::serve(address, scrape, || still_there().is_empty())?;
    Ok(Ending::Exited(0))
}
