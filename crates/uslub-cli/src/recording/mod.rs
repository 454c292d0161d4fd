//! Recordings: looks at a process over time, in a file.
//!
//! ```text
//!   uslub record PID ──▶ take ──▶ file ──▶ series ──▶ replay   (text)
//!   uslub run --record ──┘                   └──────▶ page     (HTML)
//! ```
//!
//! | file | concept |
//! |---|---|
//! | `look` | what one look keeps |
//! | `file`, `reader` | the format of the file, its writer and its reader |
//! | `take` | `uslub record`: looks until the process ends |
//! | `series` | a recording in bounded memory |
//! | `growth` | which caches grew without pause |
//! | `time` | times as people write them |
//! | `replay` | `uslub replay`: tables and sparklines |
//! | `browse` | `uslub replay` in a terminal: the view of `uslub top`, through time |
//! | `page`, `chart` | `uslub report`: one HTML page |

mod browse;
mod chart;
mod file;
mod growth;
mod look;
mod page;
mod reader;
mod replay;
mod series;
mod take;
mod time;

pub use take::{Outcome, Output, Recorder};

use crate::cli::{Cli, Command, RunOptions};
use crate::ending::Ending;
use crate::failure::Failure;
use crate::inspect::target::Target;
use crate::inspect::top;
use crate::numbers::whole;
use crate::{destination, inspect, run, units};
use browse::Recorded;
use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use series::Series;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Largest file of `uslub run --record`, in MiB, and the default of `uslub record`.
pub const LIMIT_MIB: u64 = 64;

/// Options of `uslub run` that `uslub record` sets.
#[derive(Args, Clone, Copy, Debug)]
pub struct Plan {
    /// Time between two looks
    #[arg(long = "record-every", default_value = "1s", value_parser = time::parse_interval, hide = true)]
    every: Duration,

    /// End after this time
    #[arg(long = "record-for", value_parser = time::parse, hide = true)]
    length: Option<Duration>,

    /// Largest file, in MiB
    #[arg(long = "record-limit", default_value_t = LIMIT_MIB, hide = true)]
    limit: u64,
}

impl Plan {
    /// The file of a recording that follows this plan; it keeps what it holds until the first look.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn create(self, path: &Path) -> Result<Output, Failure> {
        Output::create(path, self.every, self.length, self.limit << 20)
    }
}

/// Options of `uslub record`.
#[derive(Args, Debug)]
#[command(
    override_usage = "uslub record [OPTIONS] -o FILE PID\n       \
                      uslub record [OPTIONS] -o FILE -- PROGRAM [ARGS]...",
    after_help = RECORD_HELP
)]
pub struct RecordOptions {
    /// The process, by its number
    #[arg(value_name = "PID", required_unless_present = "command")]
    pub target: Option<String>,

    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// Time between two looks, 10ms to 1h; it doubles after each 3,600 looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time::parse_interval)]
    pub every: Duration,

    /// End after this time; default: when the process ends
    #[arg(long = "for", value_name = "TIME", value_parser = time::parse)]
    pub length: Option<Duration>,

    /// Largest file
    #[arg(long, value_name = "MIB", default_value_t = LIMIT_MIB, value_parser = whole(1_u64, 1024))]
    pub limit: u64,

    /// The program to run on uslub and to record, and its arguments
    #[arg(last = true, value_names = ["PROGRAM", "ARGS"], conflicts_with = "target")]
    pub command: Vec<OsString>,
}

/// The part of the help after the options.
const RECORD_HELP: &str = "\
TIME: 250ms, 2s, 5m, 1h; a number alone is seconds. Ctrl-C ends the recording, not the process.
The process is not stopped, and runs no code for it.

Exit status: 0 done; 2 wrong usage, 125 it cannot be read, 126 it is not on uslub, 127 no such process.
With a program: as for 'uslub run'.";

/// Options of `uslub replay`.
#[derive(Args, Debug)]
#[command(after_help = format!("{REPLAY_HELP}\n\n{READ_HELP}"))]
pub struct ReplayOptions {
    /// The recording
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Show the look at this time of the recording, for example 90s
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    pub at: Option<Duration>,

    /// Show every cache
    #[arg(long)]
    pub all: bool,

    /// Print the tables, also to a terminal
    #[arg(long)]
    pub print: bool,
}

/// The part of the help of `uslub replay`.
const REPLAY_HELP: &str = "\
In a terminal it is the view of 'uslub top', the last look first. Left and right go one look back and forward in
time, [ and ] a tenth of the recording; space plays it; ? shows all keys, q quits.
With --at, --all or --print, and where the output is no terminal, it is text.";

/// Options of `uslub report`.
#[derive(Args, Debug)]
#[command(after_help = READ_HELP)]
pub struct ReportOptions {
    /// The recording
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The page to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// The part of the help after the options.
const READ_HELP: &str = "\
Exit status: 0 done; 1 the recording is damaged or ends early, and what stands before was shown;
2 wrong usage; 125 it cannot be read.";

/// The failure for a command of this module whose argument is missing.
pub fn usage(error: &clap::Error) -> Option<Failure> {
    inspect::missing(error, &["record", "replay", "report"])
}

/// `uslub record`.
pub fn record(options: &RecordOptions) -> Result<Ending, Failure> {
    let Some(target) = &options.target else {
        return run::run(&run_options(options)?);
    };
    let pid = target.parse().map_err(|_| {
        Failure::usage(
            format!("'{target}' is not the number of a process"),
            "pidof PROGRAM prints it; a program to start stands behind '--'",
        )
    })?;
    let plan = Plan {
        every: options.every,
        length: options.length,
        limit: options.limit,
    };
    // Only a process that can be recorded costs what the file holds.
    Target::process(pid)?.heaps()?;
    let output = plan.create(&options.output)?;
    let signals = signals().map_err(|error| {
        Failure::ours(
            format!("no descriptor for signals: {error}"),
            "raise the limit of open files (ulimit -n)",
        )
    })?;
    let mut pause = |time| wait(&signals, time);
    print(&told(&take::take(pid, output, false, &mut pause)?))?;
    Ok(Ending::Exited(0))
}

/// The options of `uslub run` for a program that is recorded.
fn run_options(options: &RecordOptions) -> Result<RunOptions, Failure> {
    let every = format!("{}ms", options.every.as_millis());
    let mut words: Vec<OsString> = ["uslub", "run", "--quiet", "--record-every", &every]
        .map(OsString::from)
        .to_vec();
    if let Some(length) = options.length {
        words.extend([
            "--record-for".into(),
            format!("{}ms", length.as_millis()).into(),
        ]);
    }
    words.extend(["--record-limit".into(), options.limit.to_string().into()]);
    words.extend([
        "--record".into(),
        options.output.clone().into(),
        "--".into(),
    ]);
    words.extend(options.command.iter().cloned());
    match Cli::read(words).map(|cli| cli.command) {
        Ok(Command::Run(options)) => Ok(options),
        _ => Err(Failure::usage(
            "no program is given",
            "see 'uslub record --help'",
        )),
    }
}

/// Blocks the signals that end a recording; returns the descriptor that they arrive at.
fn signals() -> nix::Result<SignalFd> {
    let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)
}

/// Waits for a time, or for a signal.
fn wait(signals: &SignalFd, time: Duration) -> Option<&'static str> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1));
        let mut arrivals = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut arrivals, timeout.unwrap_or(PollTimeout::MAX)) {
            Ok(0) | Err(Errno::EINTR) => {}
            _ => return Some("a signal ended the recording"),
        }
    }
}

/// What came of a recording, for people: its size, and the caches that grew.
pub fn told(outcome: &Outcome) -> String {
    let path = outcome.path.display();
    let mut text = format!(
        "{} {} in {}, {} in {path}; {}\n",
        units::count(outcome.looks),
        units::plural(outcome.looks, "look", "looks"),
        time::text(outcome.length.as_millis() as u64),
        units::size(outcome.bytes),
        outcome.why,
    );
    if let Ok(series) = Series::read(&outcome.path) {
        text += &replay::growth(&series);
    }
    text
}

/// `uslub replay`.
pub fn replay(options: &ReplayOptions) -> Result<Ending, Failure> {
    let read = |error| unreadable(&options.file, error);
    let series = Series::read(&options.file).map_err(read)?;
    has_looks(&series, &options.file)?;
    let is_text = options.print || options.all || options.at.is_some();
    if !is_text && top::has_screen() {
        let mut looks = Recorded::open(&options.file, series.looks).map_err(read)?;
        return match top::tape::browse(&mut looks)? {
            Ending::Exited(0) => Ok(ending(&series, &options.file)),
            other => Ok(other),
        };
    }
    let text = match options.at {
        None => replay::text(&series, options.all),
        Some(at) => {
            let at = at.as_millis() as u64;
            let at = at.min(series.duration());
            let moment = Series::moment_at(&options.file, at).map_err(read)?;
            let (moment, caches) = moment.unwrap_or((series.first.clone(), series.caches.clone()));
            replay::look(&series, &moment, &caches, options.all)
        }
    };
    print(&text)?;
    Ok(ending(&series, &options.file))
}

/// `uslub report`.
pub fn report(options: &ReportOptions) -> Result<Ending, Failure> {
    if destination::is_same(&options.file, &options.output) {
        return Err(Failure::usage(
            format!("{} is the recording itself", options.output.display()),
            "name another file for the page behind -o",
        ));
    }
    let series = Series::read(&options.file).map_err(|error| unreadable(&options.file, error))?;
    has_looks(&series, &options.file)?;
    let page = page::html(&series);
    destination::write(&options.output, page.as_bytes()).map_err(|error| {
        Failure::ours(
            format!(
                "cannot write the page {}: {error}",
                options.output.display()
            ),
            "name a file that can be written behind -o",
        )
    })?;
    Ok(ending(&series, &options.file))
}

fn unreadable(path: &Path, error: file::Error) -> Failure {
    Failure::ours(
        format!("cannot read the recording {}: {error}", path.display()),
        "'uslub record PID -o FILE' makes one",
    )
}

/// Refuses a recording without a look.
fn has_looks(series: &Series, path: &Path) -> Result<(), Failure> {
    if series.looks > 0 {
        return Ok(());
    }
    let why = series.damage.as_ref().or(series.end.as_ref());
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    Err(Failure::ours(
        format!("the recording {} has no look{why}", path.display()),
        "record for a longer time, or with a shorter --every",
    ))
}

/// The status of a command that read a recording; says what is missing.
fn ending(series: &Series, path: &Path) -> Ending {
    let Some(damage) = &series.damage else {
        return Ending::Exited(0);
    };
    let failure = Failure {
        message: format!("the recording {} is not whole: {damage}", path.display()),
        hint: format!(
            "the {} looks up to {} are shown",
            units::count(series.looks),
            time::text(series.duration())
        ),
        code: 1,
    };
    failure.print();
    Ending::Exited(failure.code)
}

/// Writes to standard output. A reader that has gone (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::ours(
            format!("cannot write to standard output: {error}"),
            "check where the output goes",
        )),
        _ => Ok(()),
    }
}
