//! `uslub leaks`: which caches' live objects grow, by looks at different times.
//!
//! The looks are those of `uslub info`; `growth` says what they mean together. The process is the
//! same one as long as its start time and its allocators' addresses stay.

use super::growth::{Growth, Point, Series, Verdict};
use super::target::{Target, start_time};
use super::{STATUS_HELP, period};
use crate::failure::{Failure, UNSUITABLE};
use crate::units;
use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use uslub_inspect::{Heap, Process, Snapshot, proc_text};

/// Options of `uslub leaks`.
#[derive(Args, Debug)]
#[command(after_help = format!("{FINDING_HELP}\n\n{STATUS_HELP}"))]
pub struct LeaksOptions {
    /// The process, by its number
    #[arg(value_name = "PID")]
    pub target: String,

    /// How long to watch: a number with ms, s, m or h; Ctrl-C ends it earlier
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = period::parse)]
    pub total: Duration,

    /// Time from one look to the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = period::parse)]
    pub every: Duration,

    /// Show every cache, also those that do not grow
    #[arg(long)]
    pub all: bool,

    /// Write JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// The part of the help that is this command's own.
const FINDING_HELP: &str = "\
A cache is suspect if its live objects rise in nearly every look, and by 1 MiB or more within an hour at this rate.
Exit status 1: a cache is suspect.";

/// Why a watch ends after an `exec`.
const ANOTHER: &str = "the process runs another program now";

/// Caches of a series: which allocator, which place, which name.
type Key = (String, usize, String);

/// Places of what is no cache, behind all caches.
const LARGE: usize = usize::MAX - 1;
const HUGE: usize = usize::MAX;

/// What was seen of a process.
struct Watched {
    title: String,
    pid: i32,
    series: BTreeMap<Key, Series>,
    looks: usize,
    took: Duration,
    /// Why the watch ended early.
    end: Option<String>,
}

/// The output, and whether a cache is suspect.
pub fn text(options: &LeaksOptions) -> Result<(String, bool), Failure> {
    if options.every > options.total {
        return Err(Failure::usage(
            "--every is longer than --for: that leaves one look, and growth needs two",
            "the defaults are --for 10s --every 1s",
        ));
    }
    let watched = watch(options)?;
    let mut rows: Vec<_> = (watched.series.iter())
        .filter_map(|(key, series)| Some((key, series.growth()?)))
        .collect();
    rows.sort_by(|a, b| b.1.byte_rate.total_cmp(&a.1.byte_rate));
    let is_found = rows.iter().any(|(_, g)| g.verdict == Verdict::Suspect);
    let text = match options.json {
        true => json(&watched, &rows)?,
        false => table(&watched, &rows, options.all),
    };
    Ok((text, is_found))
}

/// What tells one program from another with the same number: its start, its allocators.
type Identity = (Option<u64>, Vec<u64>);

fn identity(process: &Process, heaps: &[Heap<'_>]) -> Identity {
    let at = heaps.iter().map(|heap| heap.root().allocator).collect();
    (start_time(process.pid()), at)
}

/// Looks at the process until the time is over, the process ends, or a signal arrives.
fn watch(options: &LeaksOptions) -> Result<Watched, Failure> {
    let interrupt = Interrupt::new();
    let begin = Instant::now();
    let mut watched: Option<Watched> = None;
    let mut known = None;
    for look in 0_u32.. {
        let at = options.every.saturating_mul(look);
        if at > options.total {
            break;
        }
        let left = at.saturating_sub(begin.elapsed());
        if interrupt.wait(left) {
            if let Some(watched) = &mut watched {
                watched.end = Some("a signal ended the watch".to_owned());
            }
            break;
        }
        match look_once(&options.target, begin.elapsed(), &mut known, &mut watched) {
            Ok(()) => {}
            Err(failure) => match (&mut watched, why_ended(&options.target, &failure)) {
                (Some(watched), Some(why)) => watched.end = Some(why.to_owned()),
                _ => return Err(failure),
            },
        }
        if watched.as_ref().is_some_and(|w| w.end.is_some()) {
            break;
        }
    }
    let watched = watched.filter(|watched| watched.looks > 1);
    watched.ok_or_else(|| {
        Failure::ours(
            "there was one look only, and growth needs two",
            "watch the process for longer",
        )
    })
}

/// Why a process that was read before cannot be read now, if it is not the same any more.
fn why_ended(pid: &str, failure: &Failure) -> Option<&'static str> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    match proc_text::status(&status, "State") {
        None => Some("the process ended"),
        Some(state) if state.starts_with(['Z', 'X']) => Some("the process ended"),
        Some(_) if failure.code == UNSUITABLE => Some(ANOTHER),
        Some(_) => None,
    }
}

fn look_once(
    pid: &str,
    now: Duration,
    known: &mut Option<Identity>,
    watched: &mut Option<Watched>,
) -> Result<(), Failure> {
    let target = Target::open(pid)?;
    let Target::Process(process) = &target else {
        return Err(Failure::usage(
            format!("'{pid}' is a core file: it does not change"),
            "name a running process; uslub info reads a core file",
        ));
    };
    let mut heaps = target.heaps()?;
    let identity = identity(process, &heaps);
    let watched = watched.get_or_insert_with(|| Watched {
        title: target.title(),
        pid: process.pid(),
        series: BTreeMap::new(),
        looks: 0,
        took: now,
        end: None,
    });
    if *known.get_or_insert_with(|| identity.clone()) != identity {
        watched.end = Some(ANOTHER.to_owned());
        return Ok(());
    }
    for heap in &mut heaps {
        let look = heap.look(uslub_inspect::Depth::Full);
        let look = look.map_err(|error| target.refuse(error))?;
        add(&mut watched.series, &heap.root().face, &look, now);
    }
    watched.looks += 1;
    watched.took = now;
    Ok(())
}

/// Adds a look at an allocator to the series.
fn add(series: &mut BTreeMap<Key, Series>, face: &str, look: &Snapshot, now: Duration) {
    let seconds = now.as_secs_f64();
    let mut add = |place: usize, name: &str, objects, bytes, unsure| {
        let key = (face.to_owned(), place, name.to_owned());
        let point = Point {
            seconds,
            objects,
            bytes,
            unsure,
        };
        series.entry(key).or_default().add(point);
    };
    for row in &look.rows {
        let (live, bytes) = (row.live().unwrap_or(0), row.live_bytes().unwrap_or(0));
        add(row.cache.index, &row.cache.name, live, bytes, row.uncertain);
    }
    let pages = &look.pages;
    add(LARGE, "large", pages.large_objects, pages.large * 4096, 0);
    if let Some((bytes, _)) = look.huge {
        add(HUGE, "huge", look.huge_objects, bytes, 0);
    }
}

/// What a verdict is called.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Suspect => "suspect: grows steadily",
        Verdict::Small => "grows steadily, but little",
        Verdict::Slows => "grows, but slows down",
        Verdict::Few => "more; too few looks to say steady",
        Verdict::Uneven => "more, but not steadily",
        Verdict::Still => "does not grow",
    }
}

fn per_cent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn signed(rate: f64) -> String {
    let sign = if rate < 0.0 { "-" } else { "+" };
    format!("{sign}{}", units::count(rate.abs().round() as u64))
}

fn table(watched: &Watched, rows: &[(&Key, Growth)], all: bool) -> String {
    let mut out = format!(
        "{}: {} looks in {}\n",
        watched.title,
        watched.looks,
        units::seconds(watched.took)
    );
    if let Some(end) = &watched.end {
        let _ = writeln!(out, "{end}: the figures are of the time before");
    }
    let (moved, still): (Vec<_>, Vec<_>) = (rows.iter())
        .filter(|(_, growth)| growth.last.objects > 0 || growth.first.objects > 0)
        .partition(|(_, growth)| all || growth.verdict != Verdict::Still);
    if !moved.is_empty() {
        push_rows(&mut out, &moved);
    }
    if !still.is_empty() {
        let n = still.len();
        let _ = writeln!(
            out,
            "{n} other {} not grow{}",
            units::plural(n as u64, "cache does", "caches do"),
            if all { "" } else { " (--all)" }
        );
    }
    push_limits(&mut out, watched, &moved);
    out
}

fn push_rows(out: &mut String, rows: &[&(&Key, Growth)]) {
    let names = rows.iter().map(|((_, _, name), _)| name.chars().count());
    let width = names.max().unwrap_or(0).max(12);
    let _ = writeln!(
        out,
        "\n{:<width$} {:>11} {:>11} {:>11} {:>10} {:>11} {:>6} {:>6}  verdict",
        "cache", "at first", "at last", "a minute", "bytes", "in an hour", "rose", "fell"
    );
    for ((_, _, name), growth) in rows {
        let _ = writeln!(
            out,
            "{name:<width$} {:>11} {:>11} {:>11} {:>10} {:>11} {:>6} {:>6}  {}",
            units::count(growth.first.objects),
            units::count(growth.last.objects),
            signed(growth.rate * 60.0),
            units::size(growth.last.bytes),
            units::size(growth.in_an_hour()),
            per_cent(growth.part(growth.rose)),
            per_cent(growth.part(growth.fell)),
            word(growth.verdict)
        );
    }
    out.push('\n');
}

/// What the figures cannot say, and what to do next.
fn push_limits(out: &mut String, watched: &Watched, rows: &[&(&Key, Growth)]) {
    let suspect = (rows.iter())
        .find(|((_, place, _), growth)| growth.verdict == Verdict::Suspect && *place < LARGE);
    if let Some(((_, _, name), _)) = suspect {
        let pid = watched.pid;
        let _ = writeln!(
            out,
            "next: uslub list {pid} '{name}' --dump 64 shows the objects; uslub holders {pid} \
             ADDRESS says who points to one"
        );
    }
    let unsure = rows.iter().map(|(_, growth)| growth.last.unsure).max();
    if let Some(unsure) = unsure.filter(|&unsure| unsure > 0) {
        let _ = writeln!(
            out,
            "threads run: a look may be wrong by {} objects of a cache; a smaller rise does not \
             count",
            units::count(unsure)
        );
    }
    let _ = writeln!(
        out,
        "not known: whether the program still needs the objects (a start or a cache that fills \
         grows too: watch longer), and which code allocated them"
    );
}

#[derive(Serialize)]
struct Report<'a> {
    format: u32,
    pid: i32,
    looks: usize,
    seconds: f64,
    ended: Option<&'a str>,
    caches: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    face: &'a str,
    name: &'a str,
    first: u64,
    last: u64,
    bytes: u64,
    uncertain: u64,
    objects_per_second: f64,
    bytes_per_second: f64,
    bytes_in_an_hour: u64,
    rose: f64,
    fell: f64,
    verdict: &'static str,
}

fn json(watched: &Watched, rows: &[(&Key, Growth)]) -> Result<String, Failure> {
    fn row<'a>(((face, _, name), growth): &(&'a Key, Growth)) -> Row<'a> {
        Row {
            face,
            name,
            first: growth.first.objects,
            last: growth.last.objects,
            bytes: growth.last.bytes,
            uncertain: growth.last.unsure,
            objects_per_second: growth.rate,
            bytes_per_second: growth.byte_rate,
            bytes_in_an_hour: growth.in_an_hour(),
            rose: growth.part(growth.rose),
            fell: growth.part(growth.fell),
            verdict: match growth.verdict {
                Verdict::Suspect => "suspect",
                Verdict::Small => "small",
                Verdict::Slows => "slows",
                Verdict::Few => "few",
                Verdict::Uneven => "uneven",
                Verdict::Still => "still",
            },
        }
    }
    super::json_text(&Report {
        format: 1,
        pid: watched.pid,
        looks: watched.looks,
        seconds: watched.took.as_secs_f64(),
        ended: watched.end.as_deref(),
        caches: rows.iter().map(row).collect(),
    })
}

/// Signals that end the watch, read from a descriptor.
struct Interrupt(Option<SignalFd>);

impl Interrupt {
    /// Without a descriptor, the signals end the command, as ever.
    fn new() -> Self {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        let arrivals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).ok();
        Self(arrivals.filter(|_| signals.thread_block().is_ok()))
    }

    /// Waits; true if a signal arrived.
    fn wait(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(arrivals) = &self.0 else {
                std::thread::sleep(left);
                return false;
            };
            // Rounded up: a wait of 0 ms would not wait.
            let ms = left.as_micros().div_ceil(1000).min(1 << 30) as i32;
            let ms = PollTimeout::try_from(ms).unwrap_or(PollTimeout::ZERO);
            let mut set = [PollFd::new(arrivals.as_fd(), PollFlags::POLLIN)];
            match poll(&mut set, ms) {
                Ok(n) if n > 0 => return true,
                Err(Errno::EINTR) => {}
                _ if Instant::now() >= end => return false,
                _ => {}
            }
        }
    }
}
