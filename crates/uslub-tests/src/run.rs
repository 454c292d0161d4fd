//! One run of a program: time limit, output, and failure message. The tests in `tests/c/` use it.
//!
//! Output goes to files, not pipes, so a child that outlives the program cannot block the test.
//! Each run gets its own process group, so the test can kill a hanging program together with all
//! processes that it started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::tempfile;

use crate::way::{Way, scrub};

/// The description of a run.
#[derive(Clone, Debug)]
pub struct Run {
    before: Vec<OsString>,
    program: OsString,
    args: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    limit: Duration,
}

impl Run {
    /// `program` without arguments.
    pub fn of(program: impl AsRef<OsStr>) -> Self {
        Self {
            before: Vec::new(),
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            variables: Vec::new(),
            limit: Duration::from_secs(120),
        }
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Starts the program through these words (a shell with a limit, an instrument). Their
    /// processes run on uslub too.
    pub fn behind<A: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = A>) -> Self {
        self.before
            .extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Starts the program through a shell that limits the address space to `kib` KiB.
    pub fn address_space(self, kib: u64) -> Self {
        let script = format!("ulimit -v {kib} && exec \"$@\"");
        self.behind(["/bin/sh", "-c", &script, "sh"])
    }

    /// Sets an environment variable.
    pub fn variable(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the time limit; the default is 120 s.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs the program in this way until its end.
    ///
    /// # Panics
    ///
    /// If the program cannot be started or exceeds its time limit.
    pub fn on(&self, way: Way) -> Outcome {
        let mut words = self.before.clone();
        words.extend(way.words(Path::new(&self.program)));
        words.extend(self.args.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        way.apply(&mut command);
        self.finish(command, format!("{way:?}"))
    }

    /// Runs the program on its own allocator.
    ///
    /// # Panics
    ///
    /// In the cases of [`Run::on`].
    pub fn plainly(&self) -> Outcome {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        scrub(&mut command);
        self.finish(command, "plainly".to_owned())
    }

    fn finish(&self, mut command: Command, way: String) -> Outcome {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let line = format!("{way}: {command:?}");
        let mut stdout = tempfile().expect("a file for standard output");
        let mut stderr = tempfile().expect("a file for standard error");
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().expect("a second handle"))
            .stderr(stderr.try_clone().expect("a second handle"))
            .spawn()
            .unwrap_or_else(|error| panic!("{line} does not start: {error}"));
        let deadline = Instant::now() + self.limit;
        let mut pause = Duration::from_micros(500);
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > deadline {
                let stacks = stacks(child.id());
                end(&mut child);
                panic!(
                    "{line}\ndid not end within {:?}; it said:\n{}{}\n{stacks}",
                    self.limit,
                    contents(&mut stdout),
                    contents(&mut stderr)
                );
            }
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        };
        Outcome {
            line,
            status,
            stdout: contents(&mut stdout),
            stderr: contents(&mut stderr),
        }
    }
}

/// The output and the exit status of a program.
#[derive(Debug)]
pub struct Outcome {
    /// The command line with its environment.
    pub line: String,
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// The outcome itself, if the exit status is 0. Prints the parts that the program skipped.
    ///
    /// # Panics
    ///
    /// If the exit status is not 0; the message has the output.
    pub fn succeeded(self) -> Self {
        assert!(self.status.success(), "{}", self.describe());
        for line in self.stderr.lines().filter(|line| line.contains("skipped:")) {
            crate::tools::say_skipped(&line.replacen("skipped: ", "", 1));
        }
        self
    }

    /// The outcome itself, if the program succeeded and wrote `text`.
    ///
    /// # Panics
    ///
    /// If the program did not write `text`, or failed.
    pub fn wrote(self, text: &str) -> Self {
        let outcome = self.succeeded();
        assert!(
            outcome.stdout.contains(text),
            "'{text}' is missing: {}",
            outcome.describe()
        );
        outcome
    }

    /// Whether this signal killed the program.
    pub fn ended_by(&self, signal: i32) -> bool {
        self.status.signal() == Some(signal)
    }

    /// A full description of the outcome.
    pub fn describe(&self) -> String {
        format!(
            "{}\n{}; it said:\n{}{}",
            self.line,
            self.status,
            tail(&self.stdout),
            tail(&self.stderr)
        )
    }
}

/// The end of a long text.
fn tail(text: &str) -> &str {
    let most = 4000;
    match text.char_indices().rev().nth(most) {
        Some((place, _)) => &text[place..],
        None => text,
    }
}

fn contents(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("a file can be rewound");
    file.read_to_end(&mut bytes).expect("a file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Kills the process group of `child`.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).expect("a process id is positive");
    // SAFETY: kill takes two numbers and accesses no memory of ours. The process group is still the
    // child's, because no call has waited for its leader yet.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    let _ = child.wait();
}

/// The stack traces of a process group's threads, if gdb is installed.
fn stacks(group: u32) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The fields after the name: state, parent, group, …
        let of = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(2));
        if of != Some(&group.to_string()) {
            continue;
        }
        let mut command = Command::new("gdb");
        scrub(&mut command);
        let output = command
            .args(["-nx", "-batch", "-ex", "thread apply all bt 16", "-p"])
            .arg(entry.file_name())
            .stdin(Stdio::null())
            .output();
        if let Ok(output) = output {
            text += &format!("process {:?}:\n", entry.file_name());
            text += &String::from_utf8_lossy(&output.stdout);
        }
    }
    text
}
