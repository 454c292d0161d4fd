//! Runs one program plainly or on uslub, and compares the outcomes. The tests in `tests/programs/`
//! use it.
//!
//! Output goes to files, not pipes, so a helper process that outlives the program cannot block the
//! test. Each program gets its own process group, so the test can kill a hanging program together
//! with all processes that it started.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::{TempDir, tempdir, tempfile};

use crate::command::uslub;

/// Variables that would change the allocator of both runs, or of the wrong run.
const ALLOCATOR_VARIABLES: [&str; 8] = [
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_PERTURB_",
    "USLUB_FOLLOW",
    "USLUB_HELPER",
    "USLUB_OPTIONS",
    "USLUB_REPORT",
];

/// The way of running a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// On the program's own allocator.
    Plain,
    /// Under `uslub run`.
    Uslub,
}

/// Both ways, the plain way first.
pub const WAYS: [Way; 2] = [Way::Plain, Way::Uslub];

/// The output and the exit status of a program.
#[derive(Debug)]
pub struct Outcome {
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The report of `uslub run`; null for a plain run.
    pub report: Value,
}

impl Outcome {
    /// The outcome itself, if the exit status is 0.
    ///
    /// # Panics
    ///
    /// If the exit status is not 0; the message has the output.
    pub fn succeeded(self) -> Self {
        assert!(
            self.status.success(),
            "{}; it said:\n{}\nand wrote {} bytes, the last of them:\n{}",
            self.status,
            String::from_utf8_lossy(&self.stderr),
            self.stdout.len(),
            String::from_utf8_lossy(&self.stdout[self.stdout.len().saturating_sub(1000)..])
        );
        self
    }

    /// Standard output as text, without trailing white space.
    ///
    /// # Panics
    ///
    /// If it is not UTF-8.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.stdout)
            .expect("output is text")
            .trim_end()
    }
}

/// Finds `name` on the search path.
///
/// # Panics
///
/// If it is missing and `USLUB_REQUIRE_PROGRAMS` is `1`. Otherwise prints to standard error that
/// the test skips it.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        let required = env::var_os("USLUB_REQUIRE_PROGRAMS").is_some_and(|value| value == "1");
        assert!(!required, "{name} is not installed");
        eprintln!("skipped: {name} is not installed");
    }
    found
}

/// Whether every program must run without glibc's rseq area.
fn rseq_off() -> bool {
    match env::var("USLUB_TEST_MODE").as_deref() {
        Ok("rseq-off") => true,
        Ok(other) if !other.is_empty() => panic!("USLUB_TEST_MODE is rseq-off or not set: {other}"),
        _ => false,
    }
}

/// A program with its arguments, folder, variables and input.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    args: Vec<OsString>,
    folder: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    input: Option<PathBuf>,
    limit: Duration,
    allocates: bool,
}

impl Program {
    /// The program `name` from the search path; `None` if it is missing, see [`find`].
    pub fn find(name: &str) -> Option<Self> {
        find(name).map(Self::at)
    }

    /// The program at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            args: Vec::new(),
            folder: None,
            variables: Vec::new(),
            input: None,
            limit: Duration::from_secs(300),
            allocates: true,
        }
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Self {
        let mut with = self.clone();
        with.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        with
    }

    /// Adds an argument.
    pub fn arg(&self, arg: impl AsRef<OsStr>) -> Self {
        self.args([arg])
    }

    /// Sets the working folder.
    pub fn folder(&self, folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: Some(folder.into()),
            ..self.clone()
        }
    }

    /// Sets an environment variable.
    pub fn variable(&self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        let mut with = self.clone();
        with.variables.push((name.into(), value.into()));
        with
    }

    /// Sets the file for standard input, which is empty by default.
    pub fn input(&self, file: impl Into<PathBuf>) -> Self {
        Self {
            input: Some(file.into()),
            ..self.clone()
        }
    }

    /// Sets the time limit; the default is 300 s.
    pub fn limit(&self, limit: Duration) -> Self {
        Self {
            limit,
            ..self.clone()
        }
    }

    /// Marks a program that allocates nothing, so its report need not count any object.
    pub fn without_objects(&self) -> Self {
        Self {
            allocates: false,
            ..self.clone()
        }
    }

    /// Runs the program both ways, the plain way first, and returns the outcome.
    ///
    /// # Panics
    ///
    /// If standard output or exit status differ, or in the cases of [`Program::run`].
    pub fn same_both_ways(&self) -> Outcome {
        let plain = self.run(Way::Plain);
        let on_uslub = self.run(Way::Uslub);
        assert_eq!(
            plain.status,
            on_uslub.status,
            "{self:?} ends otherwise on uslub; it said:\n{}",
            String::from_utf8_lossy(&on_uslub.stderr)
        );
        if let Some(place) = first_difference(&plain.stdout, &on_uslub.stdout) {
            panic!(
                "{self:?} writes otherwise on uslub, from byte {place} on\nplain ({} bytes): {}\nuslub ({} bytes): {}",
                plain.stdout.len(),
                excerpt(&plain.stdout, place),
                on_uslub.stdout.len(),
                excerpt(&on_uslub.stdout, place),
            );
        }
        on_uslub
    }

    /// Runs the program until its end.
    ///
    /// # Panics
    ///
    /// If the program cannot be started, exceeds its time limit, or did not run on uslub as
    /// requested.
    pub fn run(&self, way: Way) -> Outcome {
        self.start(way).wait()
    }

    /// Starts the program.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
    pub fn start(&self, way: Way) -> Running {
        let scratch = tempdir().expect("a folder for the report");
        let report = scratch.path().join("report.json");
        let mut command = match way {
            Way::Plain => Command::new(&self.path),
            Way::Uslub => {
                let mut command = Command::new(uslub());
                command
                    .args(["run", "--quiet", "--report"])
                    .arg(&report)
                    .arg("--")
                    .arg(&self.path);
                command
            }
        };
        for name in ALLOCATOR_VARIABLES {
            command.env_remove(name);
        }
        if rseq_off() {
            command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
        }
        command.args(&self.args).env("LC_ALL", "C").env("TZ", "UTC");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let input = match &self.input {
            Some(file) => File::open(file).expect("the input can be opened").into(),
            None => Stdio::null(),
        };
        let stdout = tempfile().expect("a file for standard output");
        let stderr = tempfile().expect("a file for standard error");
        let child = command
            .process_group(0)
            .stdin(input)
            .stdout(stdout.try_clone().expect("a second handle"))
            .stderr(stderr.try_clone().expect("a second handle"))
            .spawn()
            .unwrap_or_else(|error| panic!("{self:?} does not start: {error}"));
        Running {
            program: self.clone(),
            way,
            child,
            ended: None,
            deadline: Instant::now() + self.limit,
            stdout,
            stderr,
            scratch,
        }
    }
}

/// A started program. Dropping it kills the program and all processes that it started.
#[derive(Debug)]
pub struct Running {
    program: Program,
    way: Way,
    child: Child,
    ended: Option<ExitStatus>,
    deadline: Instant,
    stdout: File,
    stderr: File,
    scratch: TempDir,
}

impl Running {
    /// Whether the program is still running.
    ///
    /// # Panics
    ///
    /// If the system does not tell.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended.is_none()
    }

    /// Waits for the program's end.
    ///
    /// # Panics
    ///
    /// If the program exceeds its time limit, or did not run on uslub as requested.
    pub fn wait(mut self) -> Outcome {
        let mut pause = Duration::from_micros(500);
        while self.is_running() {
            if Instant::now() > self.deadline {
                self.end();
                panic!(
                    "{:?} {:?} did not end within {:?}; it said:\n{}",
                    self.way,
                    self.program,
                    self.program.limit,
                    String::from_utf8_lossy(&contents(&mut self.stderr))
                );
            }
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        let mut outcome = Outcome {
            status: self.ended.expect("it has ended"),
            stdout: contents(&mut self.stdout),
            stderr: contents(&mut self.stderr),
            report: Value::Null,
        };
        if self.way == Way::Uslub {
            outcome.report = self.checked_report(&outcome);
        }
        outcome
    }

    /// The report. uslub inside the program must have written its `process`, and it must count at
    /// least one object.
    fn checked_report(&self, outcome: &Outcome) -> Value {
        let file = self.scratch.path().join("report.json");
        let said = String::from_utf8_lossy(&outcome.stderr);
        let report = std::fs::read(&file).unwrap_or_else(|error| {
            panic!(
                "{:?} left no report: {error}; it said:\n{said}",
                self.program
            )
        });
        let report: Value = serde_json::from_slice(&report).expect("the report is JSON");
        let allocs = report["process"]["allocs"].as_u64();
        let fewest = u64::from(self.program.allocates);
        assert!(
            allocs.is_some_and(|allocs| allocs >= fewest),
            "{:?} did not run on uslub; its report is {report}; it said:\n{said}",
            self.program
        );
        report
    }

    /// Kills the process group of the program.
    fn end(&mut self) {
        let group = i32::try_from(self.child.id()).expect("a process id is positive");
        // SAFETY: kill takes two numbers and accesses no memory of ours. The process group is still
        // the child's, because no call has waited for its leader yet.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        self.ended = self.child.wait().ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            self.end();
        }
    }
}

fn contents(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().expect("a file can be rewound");
    file.read_to_end(&mut bytes).expect("a file can be read");
    bytes
}

fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    if left == right {
        return None;
    }
    let shorter = left.len().min(right.len());
    (0..shorter)
        .find(|&at| left[at] != right[at])
        .or(Some(shorter))
}

fn excerpt(bytes: &[u8], place: usize) -> String {
    let from = place.saturating_sub(40);
    let to = bytes.len().min(place + 80);
    format!("{:?}", String::from_utf8_lossy(&bytes[from..to]))
}

/// Whether two files have the same content.
///
/// # Panics
///
/// If a file cannot be read.
pub fn same_file(left: &Path, right: &Path) -> bool {
    let bytes = |path: &Path| {
        std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    bytes(left) == bytes(right)
}
