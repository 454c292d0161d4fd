//! `uslub run`: runs a program on uslub and prints its summary. `main` calls [`run`].

use crate::broker::Broker;
use crate::cli::RunOptions;
use crate::destination::Destination;
use crate::ending::Ending;
use crate::environment::{self, Environment};
use crate::failure::{Failure, NOT_FOUND, UNSUITABLE};
use crate::finished::Finished;
use crate::onlooker::Onlooker;
use crate::program::Program;
use crate::reaper::Reaper;
use crate::record::Record;
use crate::recording::{self, Recorder};
use crate::report::{Children, Document, Report, Unusable};
use crate::signals::Watch;
use crate::traces::Traces;
use crate::watcher::{Seen, Watcher};
use crate::{children, elf, guard, library, program, summary, width};
use nix::unistd::{Pid, geteuid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

/// Names of settings whose reports have stacks.
const REPORTING: [&str; 3] = ["slab_debug", "failslab", "guard"];

/// Runs the program on uslub and prints a summary of its memory.
///
/// # Errors
///
/// If the program did not run. After the program has run, only its own ending counts.
pub fn run(options: &RunOptions) -> Result<Ending, Failure> {
    let Some((name, arguments)) = options.command.split_first() else {
        return Err(Failure::usage(
            "no program is given",
            "see 'uslub run --help'",
        ));
    };
    let existing = std::env::var_os(uslub_report::OPTIONS_VARIABLE);
    let debug = options.debug.as_deref();
    let mut set = options.set.clone();
    if options.hardened {
        set.push("hardened=1".to_owned());
    }
    if let Some(text) = &options.guard {
        set.extend(guard::settings(text, options.hardened)?);
    }
    let settings = environment::options(existing.as_deref(), &set, debug)?;

    let executable = std::env::current_exe().unwrap_or_default();
    let variable = std::env::var_os(library::VARIABLE);
    let library = library::find(variable.as_deref(), &executable)?;
    let program = suitable(name, &library)?;

    let record = options.report.as_deref().map(open_record).transpose()?;
    let recording = options.record.as_deref();
    let recording = recording.map(|path| options.recording.create(path));
    let recording = recording.transpose()?;
    let wanted = !options.quiet || record.is_some();
    let temporary = if environment::is_split(&library) {
        Some(temporary_folder()?)
    } else if wanted || has_reports(&settings) {
        // Without the folder, for example on a read-only system, the program still runs.
        temporary_folder().inspect_err(Failure::print).ok()
    } else {
        None
    };
    let folder = temporary.as_ref().map(|folder| absolute(folder.path()));
    let folder = folder.transpose()?;
    let shared = folder.as_deref().map(report_folder);
    let reports = shared.as_deref().filter(|_| wanted);
    let traces = shared.as_deref().filter(|_| has_reports(&settings));
    // Without the thread the program prints its reports itself.
    let printing = traces.and_then(|folder| Traces::start(folder).ok());

    let mut command = Command::new(&program.file);
    command.args(&program.leading).args(arguments);
    if program.leading.is_empty() {
        command.arg0(name);
    }
    if reports.is_some() {
        Onlooker::prepare();
    }
    let environment = Environment {
        library: &environment::preloadable(&library, folder.as_deref())?,
        reports,
        traces: traces.filter(|_| printing.is_some()),
        options: &settings,
        follow: options.follow,
    };
    environment.apply(&mut command);

    let executed = execute(
        command,
        &options.command,
        folder.as_deref(),
        recording,
        wanted,
    );
    if let Some(printing) = printing {
        printing.finish();
    }
    let (pid, finished) = executed?;
    let every = options.all || record.is_some();
    let detailed = if every {
        children::DETAILED
    } else {
        children::LISTED
    };
    let (document, children) = match &reports {
        Some(folder) => (
            Document::read(folder, pid),
            Children::read(folder, pid, detailed),
        ),
        None => (Err(Unusable::NoFolder), Children::default()),
    };
    drop(temporary);

    let tell = |report| conclude(options, &finished, record, report, &children);
    match document.as_ref().map(Document::report) {
        Ok(Ok(report)) => tell(Ok(&report)),
        Ok(Err(why)) => tell(Err(&why)),
        Err(why) => tell(Err(why)),
    }
    Ok(finished.ending)
}

/// Whether settings make the program report on debugged caches.
fn has_reports(settings: &str) -> bool {
    REPORTING.iter().any(|name| settings.contains(name))
}

/// The program `name`, if the library can be preloaded into it; its absence is a failure.
pub fn suitable(name: &OsStr, library: &Path) -> Result<Program, Failure> {
    let target = File::open(library).map_err(|e| e.to_string());
    let target = target.and_then(|file| elf::target(&file).map_err(|why| why.to_string()));
    let target = target.map_err(|why| {
        Failure::ours(
            format!("the library {} cannot be used: {why}", library.display()),
            "build it again with 'cargo build --release'",
        )
    })?;
    let path = std::env::var_os("PATH");
    program::prepare(name, path.as_deref(), target).map_err(|why| why.failure(Path::new(name)))
}

/// Creates a folder for reports and for a link to the library.
///
/// Only this user can list it or write in it. If this user is root, other users may pass through
/// it, because the program may change its user.
pub fn temporary_folder() -> Result<TempDir, Failure> {
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    let mut builder = tempfile::Builder::new();
    builder
        .prefix("uslub-")
        .permissions(Permissions::from_mode(mode));
    builder.tempdir().map_err(|error| {
        Failure::ours(
            format!(
                "no folder for reports in {}: {error}",
                std::env::temp_dir().display()
            ),
            "make room there, or name another folder in TMPDIR",
        )
    })
}

/// The folder in which processes write their reports.
///
/// Normally it is `folder` itself. A program of root may change its user and execute another
/// program, which writes its own report. For root, a subfolder is writable by every user who knows
/// its name. The name is secret: only the program's environment has it.
fn report_folder(folder: &Path) -> PathBuf {
    let shared = geteuid().is_root().then(|| shared_folder(folder));
    shared.and_then(Result::ok).unwrap_or(folder.to_owned())
}

/// Creates a subfolder of `folder` with an unguessable name, in which every user may create files.
fn shared_folder(folder: &Path) -> io::Result<PathBuf> {
    let mut secret = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let shared = folder.join(format!("{:032x}", u128::from_ne_bytes(secret)));
    fs::create_dir(&shared)?;
    fs::set_permissions(&shared, Permissions::from_mode(0o733))?;
    Ok(shared)
}

/// Opens the file of a report before the program runs: a wrong path costs nothing.
fn open_record(path: &Path) -> Result<Destination, Failure> {
    Destination::open(path).map_err(|error| {
        Failure::ours(
            format!("cannot write the report {}: {error}", path.display()),
            "name a file that can be written behind --report",
        )
    })
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| {
        Failure::ours(
            format!("there is no current folder: {error}"),
            "change to one that exists",
        )
    })
}

/// Starts `command`, passes signals on to it and waits for its end. If this process is killed, the
/// reaper removes `folder`. A recording goes to `recording`, and what came of it to standard error.
/// `looks` says whether anybody wants to know what the onlooker sees.
pub fn execute(
    mut command: Command,
    words: &[OsString],
    folder: Option<&Path>,
    recording: Option<recording::Output>,
    looks: bool,
) -> Result<(u32, Finished), Failure> {
    let lost = |error: io::Error| {
        Failure::ours(
            format!("lost sight of the program: {error}"),
            "run it again",
        )
    };
    let watch = Watch::start().map_err(lost)?;
    watch.prepare(&mut command);
    let file = PathBuf::from(command.get_program());
    let mut broker = Broker::start();
    let expected = looks.then(Onlooker::expect);
    let start = Instant::now();
    let child = command
        .spawn()
        .map_err(|error| not_started(&words[0], &error))?;
    let pid = child.id();
    let _reaper = Reaper::start(pid, folder);
    // After the reaper: that is a copy of this process, and a copy has no other threads.
    let recorder = recording.map(|output| Recorder::start(pid, output));
    let onlooker = expected.map(|program| program.start(Pid::from_raw(pid as i32)));
    let mut watcher = Watcher::start(Pid::from_raw(pid as i32), &file);
    let (ending, usage) = watch
        .until_end(Pid::from_raw(pid as i32), &mut watcher, &mut broker)
        .map_err(lost)?;
    drop(broker);
    match recorder.map(Recorder::finish) {
        None => {}
        Some(Ok(outcome)) => {
            let _ = io::stderr().write_all(recording::told(&outcome).as_bytes());
        }
        Some(Err(failure)) => failure.print(),
    }
    let caches = onlooker.and_then(Onlooker::finish);
    let finished = Finished {
        command: words.to_vec(),
        ending,
        wall: start.elapsed(),
        usage,
        has_allocator: elf::has_allocator(&file),
        seen: Seen {
            caches,
            ..watcher.end()
        },
    };
    Ok((pid, finished))
}

/// The failure if the system refuses to start a program that passed the checks.
fn not_started(name: &OsStr, error: &io::Error) -> Failure {
    let (code, hint) = start_hint(error);
    let message = format!("{} did not start: {error}", Path::new(name).display());
    Failure {
        message,
        hint: hint.to_owned(),
        code,
    }
}

/// The exit status and the remedy if the system refuses to start a program.
pub fn start_hint(error: &io::Error) -> (i32, &'static str) {
    match error.raw_os_error() {
        Some(libc::ENOENT) => (NOT_FOUND, "it or its interpreter has just gone; try again"),
        Some(libc::E2BIG) => (UNSUITABLE, "give it fewer or shorter arguments"),
        Some(libc::EAGAIN | libc::ENOMEM) => (
            UNSUITABLE,
            "end other processes or raise the limits (ulimit -a)",
        ),
        Some(libc::EMFILE) => (UNSUITABLE, "raise the limit of open files (ulimit -n)"),
        _ => (UNSUITABLE, "see whether it runs without uslub"),
    }
}

/// Reports the run to the user. A failure here is printed, but does not change the program's exit
/// status.
fn conclude(
    options: &RunOptions,
    finished: &Finished,
    record: Option<Destination>,
    report: Result<&Report, &Unusable>,
    children: &Children,
) {
    if !options.quiet {
        let form = summary::Form {
            all: options.all,
            slabinfo: options.slabinfo,
            width: width::of_stderr(),
        };
        let text = summary::summary(finished, report, children, form);
        let _ = anstream::stderr().write_all(text.as_bytes());
    }
    let written = record.map(|file| Record::new(finished, report, children).write(&file));
    if let Some(Err(error)) = written {
        let path = options.report.as_deref().unwrap_or(Path::new("")).display();
        let message = format!("cannot write the report {path}: {error}");
        Failure::ours(message, "make room for it, or name another file").print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_the_system_refuses_is_told_with_what_to_do() {
        let refused =
            |number| not_started(OsStr::new("tool"), &io::Error::from_raw_os_error(number));
        let failure = refused(libc::E2BIG);
        assert!(
            failure.message.starts_with("tool did not start: "),
            "{}",
            failure.message
        );
        assert_eq!(failure.hint, "give it fewer or shorter arguments");
        assert_eq!(refused(libc::ENOENT).code, NOT_FOUND);
        assert_eq!(refused(libc::EAGAIN).code, UNSUITABLE);
    }
}
