//! `uslub fail`: runs a program again and again; in run n its n-th allocation fails.
//!
//! | run | means |
//! |---|---|
//! | no allocation failed | the program asks for fewer than n: the end |
//! | the program ended by itself | it noticed the failure, or did without the memory |
//! | a signal ended it, or it hung | a crash: the stack of the failed allocation is printed |
//!
//! The program's standard input is empty or a file, and its output is dropped: each run begins
//! alike. Runs may overlap (`--jobs`). [`Runner`] makes one run, [`Runs`] hands out the numbers.

use crate::cli::{FailOptions, Follow};
use crate::destination;
use crate::ending::signal_name;
use crate::environment::{self, Environment};
use crate::failure::Failure;
use crate::names::Names;
use crate::{ending::Ending, library, run, sys, traces};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Start of the line by which the library says that an allocation fails on purpose.
const MARK: &str = "FAULT_INJECTION: ";
/// Exit status if a run crashed.
const CRASHED: i32 = 1;
/// Time between two looks at a running program.
const TICK: Duration = Duration::from_millis(2);
/// Crashes of one kind that are listed by number.
const LISTED: usize = 12;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Exited(i32),
    Killed(i32),
    Hung,
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => End::Killed(signal),
            None => End::Exited(status.code().unwrap_or(0)),
        }
    }

    fn is_crash(self) -> bool {
        !matches!(self, End::Exited(_))
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Exited(code) => write!(f, "exited with {code}"),
            End::Killed(signal) => write!(f, "killed by {}", signal_name(*signal)),
            End::Hung => f.write_str("hung"),
        }
    }
}

/// One run in which an allocation failed.
struct Run {
    end: End,
    /// The report about the failed allocation, with names; empty unless the run crashed.
    report: String,
}

/// Makes the runs.
struct Runner<'a> {
    options: &'a FailOptions,
    program: crate::program::Program,
    library: PathBuf,
    folder: PathBuf,
    settings: String,
    names: Mutex<Names>,
}

impl Runner<'_> {
    fn start(&self, n: u32, traces: &Path) -> Result<Child, Failure> {
        let options = self.options;
        let mut command = Command::new(&self.program.file);
        command
            .args(&self.program.leading)
            .args(&options.command[1..]);
        if self.program.leading.is_empty() {
            command.arg0(&options.command[0]);
        }
        let comma = if self.settings.is_empty() { "" } else { "," };
        let chosen = format!("failslab_trace=1,failslab_nth={n}{comma}{}", self.settings);
        let environment = Environment {
            library: &self.library,
            reports: None,
            traces: Some(traces),
            options: &chosen,
            follow: options.follow.unwrap_or(Follow::No),
        };
        environment.apply(&mut command);
        command.env_remove(uslub_report::REPORT_VARIABLE);
        let output = || match options.show_output {
            true => Stdio::inherit(),
            false => Stdio::null(),
        };
        command
            .stdin(input(options)?)
            .stdout(output())
            .stderr(output());
        sys::pass_on_file_limit(&mut command);
        command.spawn().map_err(|error| {
            Failure::ours(
                format!(
                    "{} did not start: {error}",
                    Path::new(&options.command[0]).display()
                ),
                run::start_hint(&error).1,
            )
        })
    }

    /// Lets allocation `n` fail, none for 0; `None` if the program made fewer.
    fn run(&self, n: u32) -> Result<(End, Option<Run>), Failure> {
        let traces = self.folder.join(n.to_string());
        fs::create_dir(&traces).map_err(|error| no_folder(&traces, &error))?;
        let mut child = self.start(n, &traces)?;
        let start = Instant::now();
        let limit = Duration::from_secs(self.options.timeout);
        let end = loop {
            match child.try_wait() {
                Ok(Some(status)) => break End::of(status),
                Ok(None) if start.elapsed() < limit => thread::sleep(TICK),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break End::Hung;
                }
            }
        };
        let has_failed = traces::contain(&traces, MARK);
        let mut report = String::new();
        if has_failed && end.is_crash() {
            let mut names = self.names.lock().unwrap_or_else(|bad| bad.into_inner());
            report = traces::read(&traces, &mut names);
        }
        let _ = fs::remove_dir_all(&traces);
        Ok((end, has_failed.then_some(Run { end, report })))
    }
}

fn input(options: &FailOptions) -> Result<Stdio, Failure> {
    let Some(path) = &options.input else {
        return Ok(Stdio::null());
    };
    destination::source(path).map(Stdio::from).map_err(|error| {
        Failure::usage(
            format!("cannot read {}: {error}", path.display()),
            "name a file that can be read behind --input",
        )
    })
}

fn no_folder(path: &Path, error: &std::io::Error) -> Failure {
    Failure::ours(
        format!("no folder {}: {error}", path.display()),
        "make room there, or name another folder in TMPDIR",
    )
}

/// The runs so far, and which number comes next.
struct Runs {
    next: u64,
    last: u64,
    runs: BTreeMap<u64, Run>,
    /// The lowest number of which the program has no allocation.
    beyond: Option<u64>,
    failure: Option<Failure>,
}

impl Runs {
    fn new(options: &FailOptions) -> Self {
        let from = u64::from(options.from);
        let by_times = options.times.map(|times| from + u64::from(times) - 1);
        let to = options.to.map(u64::from);
        let last = by_times.into_iter().chain(to).min();
        Runs {
            next: from,
            last: last.unwrap_or(u64::from(u32::MAX >> 2)),
            runs: BTreeMap::new(),
            beyond: None,
            failure: None,
        }
    }

    fn take(&mut self) -> Option<u64> {
        if self.beyond.is_some() || self.failure.is_some() || self.next > self.last {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    fn end(&mut self, n: u64, run: Result<(End, Option<Run>), Failure>) {
        match run {
            Ok((_, Some(run))) => drop(self.runs.insert(n, run)),
            Ok((_, None)) => self.beyond = Some(self.beyond.map_or(n, |other| other.min(n))),
            Err(failure) => self.failure = Some(failure),
        }
    }
}

/// Runs the program until no allocation fails, and prints which failures it does not survive.
///
/// # Errors
///
/// If the program cannot be run.
pub fn run(options: &FailOptions) -> Result<Ending, Failure> {
    let Some(name) = options.command.first() else {
        return Err(Failure::usage(
            "no program is given",
            "see 'uslub fail --help'",
        ));
    };
    if options.to.is_some_and(|to| to < options.from) {
        return Err(Failure::usage(
            format!("--to is below --from ({})", options.from),
            "--from and --to name the first and the last allocation that fails",
        ));
    }
    let existing = std::env::var_os(uslub_report::OPTIONS_VARIABLE);
    let settings = environment::options(existing.as_deref(), &options.set, None)?;
    let executable = std::env::current_exe().unwrap_or_default();
    let library = library::find(std::env::var_os(library::VARIABLE).as_deref(), &executable)?;
    let program = run::suitable(name, &library)?;
    let temporary = run::temporary_folder()?;
    let runner = Runner {
        options,
        program,
        library: environment::preloadable(&library, Some(temporary.path()))?,
        folder: temporary.path().to_owned(),
        settings,
        names: Mutex::new(Names::new()),
    };
    let (usual, _) = runner.run(0)?;
    let runs = Mutex::new(Runs::new(options));
    let lock = || runs.lock().unwrap_or_else(|bad| bad.into_inner());
    let work = || {
        loop {
            // The lock is not held while the program runs.
            let Some(n) = lock().take() else {
                return;
            };
            let run = runner.run(n as u32);
            lock().end(n, run);
        }
    };
    thread::scope(|scope| {
        for _ in 1..options.jobs {
            scope.spawn(work);
        }
        work();
    });
    let mut runs = runs.into_inner().unwrap_or_else(|bad| bad.into_inner());
    if let Some(failure) = runs.failure.take() {
        return Err(failure);
    }
    if let Some(beyond) = runs.beyond {
        runs.runs.split_off(&beyond);
    }
    let text = summary(&options.command, usual, &runs);
    let _ = anstream::stdout().write_all(text.as_bytes());
    let crashed = runs.runs.values().any(|run| run.end.is_crash());
    Ok(Ending::Exited(if crashed { CRASHED } else { 0 }))
}

/// What the runs showed.
fn summary(command: &[OsString], usual: End, runs: &Runs) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut text = format!("uslub fail: {}\n", words.join(" "));
    let _ = writeln!(text, "  without a failure: {usual}");
    let (Some(first), Some(last)) = (runs.runs.keys().next(), runs.runs.keys().last()) else {
        text.push_str("  no allocation failed: the program makes none, or fewer\n");
        return text;
    };
    let end = match runs.beyond {
        Some(_) => "the program makes no more",
        None => "the last one asked for",
    };
    let _ = writeln!(
        text,
        "  allocations {first} to {last} failed in turn ({end}):"
    );
    let mut ends: BTreeMap<End, usize> = BTreeMap::new();
    for run in runs.runs.values() {
        *ends.entry(run.end).or_default() += 1;
    }
    for (end, count) in &ends {
        let runs = if *count == 1 { "run" } else { "runs" };
        let _ = writeln!(text, "  {count:7} {runs:4} {end}");
    }
    let mut crashes: Vec<_> = crashes(runs).into_iter().collect();
    crashes.sort_by_key(|(_, group)| group[0].0);
    for ((end, stack), group) in crashes {
        let shown = group.iter().take(LISTED).map(|(n, _)| n.to_string());
        let shown: Vec<_> = shown.collect();
        let more = match group.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (n, what) = (shown.join(", "), &group[0].1);
        let _ = write!(
            text,
            "\n{end} when allocation {n}{more} failed ({what}):\n{stack}"
        );
    }
    text
}

/// Crashes by their end and the stack of the failed allocation: numbers, and what was asked for.
fn crashes(runs: &Runs) -> BTreeMap<(End, String), Vec<(u64, String)>> {
    let mut groups: BTreeMap<(End, String), Vec<(u64, String)>> = BTreeMap::new();
    for (n, run) in runs.runs.iter().filter(|(_, run)| run.end.is_crash()) {
        let (what, stack) = parts(&run.report);
        let group = groups.entry((run.end, stack)).or_default();
        group.push((*n, what));
    }
    groups
}

/// What was asked for, and the stack, of a report about a failed allocation.
fn parts(report: &str) -> (String, String) {
    let mut lines = report.lines().skip_while(|line| !line.starts_with(MARK));
    let what = lines.next().and_then(|line| line.split_once(" fails: "));
    let what = what.map(|(_, what)| what.to_owned()).unwrap_or_default();
    let stack = lines.skip_while(|line| !line.starts_with("Call Trace:"));
    let stack = stack.skip(1).take_while(|line| line.starts_with(' '));
    let mut text = String::new();
    for line in stack {
        let _ = writeln!(text, "  {}", line.trim_start());
    }
    (what, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> FailOptions {
        FailOptions {
            from: 3,
            to: None,
            times: None,
            jobs: 1,
            timeout: 1,
            input: None,
            show_output: false,
            follow: None,
            set: Vec::new(),
            command: vec!["p".into()],
        }
    }

    #[test]
    fn numbers_end_where_the_first_bound_says() {
        let all = |options: &FailOptions| {
            let mut runs = Runs::new(options);
            std::iter::from_fn(|| runs.take())
                .take(5)
                .collect::<Vec<_>>()
        };
        assert_eq!(all(&options()), [3, 4, 5, 6, 7]);
        let to = FailOptions {
            to: Some(5),
            ..options()
        };
        assert_eq!(all(&to), [3, 4, 5]);
        let both = FailOptions {
            times: Some(2),
            ..to
        };
        assert_eq!(all(&both), [3, 4]);
        let mut runs = Runs::new(&options());
        runs.take();
        runs.end(3, Ok((End::Exited(0), None)));
        assert_eq!(runs.take(), None);
    }

    #[test]
    fn crashes_with_one_stack_are_one() {
        let report = "FAULT_INJECTION: allocation 3 fails: 40 bytes, kmalloc-48\n\
                      CPU: 0 PID: 7 Comm: p\nCall Trace:\n f at a.c:3 [p+0x10]\n main at a.c:9 [p+0x20]\n";
        assert_eq!(
            parts(report),
            (
                "40 bytes, kmalloc-48".to_owned(),
                "  f at a.c:3 [p+0x10]\n  main at a.c:9 [p+0x20]\n".to_owned()
            )
        );
        let mut runs = Runs::new(&options());
        for n in 3..6 {
            let end = if n == 4 {
                End::Exited(2)
            } else {
                End::Killed(11)
            };
            let report = report.to_owned();
            runs.end(n, Ok((end, Some(Run { end, report }))));
        }
        runs.end(6, Ok((End::Exited(0), None)));
        let text = summary(&options().command, End::Exited(0), &runs);
        assert_eq!(
            text,
            "uslub fail: p\n  without a failure: exited with 0\n\
             \x20 allocations 3 to 5 failed in turn (the program makes no more):\n\
             \x20       1 run  exited with 2\n\
             \x20       2 runs killed by SIGSEGV\n\n\
             killed by SIGSEGV when allocation 3, 5 failed (40 bytes, kmalloc-48):\n\
             \x20 f at a.c:3 [p+0x10]\n\
             \x20 main at a.c:9 [p+0x20]\n"
        );
    }
}
