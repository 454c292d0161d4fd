//! Takes looks at a process and writes them to a file, until the process ends.
//!
//! | looks so far | time between two looks |
//! |---|---|
//! | up to 3,600 | as asked, one second by default |
//! | up to 7,200 | twice that |
//! | … | twice the time before |
//!
//! So a week at one look a second has 26,000 looks. A look never takes more than a tenth of the
//! time: the next one waits.

use super::file::{Start, Writer};
use super::look::Look;
use crate::destination::Destination;
use crate::failure::Failure;
use crate::inspect::target::{Target, start_time};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Looks after which the time between looks doubles.
const LOOKS_OF_A_PACE: u64 = 3600;
/// Part of the time that looks may take.
const SHARE: u32 = 10;
/// Time between two tries while the program has not begun to allocate.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Looks in a row that may fail, for example while the program executes another one.
const MISSED_MAX: u32 = 10;

/// Where a recording goes, and how much of it.
#[derive(Debug)]
pub struct Output {
    file: Destination,
    every: Duration,
    length: Option<Duration>,
    limit: u64,
}

/// What came of a recording.
#[derive(Debug)]
pub struct Outcome {
    /// The file.
    pub path: PathBuf,
    /// Looks in it.
    pub looks: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Time from the first to the last look.
    pub length: Duration,
    /// Why it ended.
    pub why: String,
}

impl Output {
    /// Opens the file. This comes before the program runs, so a wrong name costs nothing. What is
    /// in it stays until the first look.
    pub fn create(
        path: &Path,
        every: Duration,
        length: Option<Duration>,
        limit: u64,
    ) -> Result<Self, Failure> {
        let file = Destination::lasting(path).map_err(|error| unwritable(path, &error))?;
        Ok(Output {
            file,
            every,
            length,
            limit,
        })
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::ours(
        format!("cannot write the recording {}: {error}", path.display()),
        "name a file that can be written, on a disk with room",
    )
}

/// Waits; says why the recording must end, if it must.
pub type Pause<'a> = &'a mut dyn FnMut(Duration) -> Option<&'static str>;

/// Records a process. A process that is not ready is waited for if `is_new`.
///
/// # Errors
///
/// If the process cannot be read, or the file not written.
pub fn take(pid: i32, output: Output, is_new: bool, pause: Pause<'_>) -> Result<Outcome, Failure> {
    let born = start_time(pid);
    let mut taker = Taker {
        pid,
        begin: Instant::now(),
        writer: None,
        looks: 0,
        missed: 0,
        last: 0,
        output: &output,
    };
    let why = loop {
        let has_ended = start_time(pid).is_none_or(|now| Some(now) != born);
        if has_ended && (is_new || taker.writer.is_some()) {
            break "the process ended".to_owned();
        }
        let begin = Instant::now();
        match taker.look() {
            Ok(()) => taker.missed = 0,
            Err(failure) if taker.writer.is_none() && !is_new => return Err(failure),
            Err(failure) => {
                taker.missed += 1;
                if taker.writer.is_some() && taker.missed > MISSED_MAX {
                    break failure.message;
                }
            }
        }
        if taker
            .writer
            .as_ref()
            .is_some_and(|w| w.bytes() >= output.limit)
        {
            break "the file reached its limit".to_owned();
        }
        let took = begin.elapsed();
        let mut rest = taker.interval().max(took * SHARE).saturating_sub(took);
        if let Some(length) = output.length {
            let left = length.saturating_sub(taker.begin.elapsed());
            if left.is_zero() {
                break "the time was over".to_owned();
            }
            rest = rest.min(left);
        }
        if let Some(why) = pause(rest) {
            break why.to_owned();
        }
    };
    taker.end(why)
}

struct Taker<'a> {
    pid: i32,
    begin: Instant,
    writer: Option<Writer<&'a File>>,
    looks: u64,
    missed: u32,
    /// Time of the last look, in milliseconds.
    last: u64,
    output: &'a Output,
}

impl<'a> Taker<'a> {
    /// Takes one look and writes it.
    fn look(&mut self) -> Result<(), Failure> {
        let target = Target::process(self.pid)?;
        let begin = Instant::now();
        let at = begin.duration_since(self.begin).as_millis() as u64;
        let at = if self.writer.is_none() { 0 } else { at };
        let (look, version) = Look::at(&target, at)?;
        if self.writer.is_none() {
            // Time counts from the first look.
            self.begin = begin;
            self.writer = Some(self.write(name_of(&target), version)?);
        }
        let written = self.writer.as_mut().map(|writer| writer.look(&look));
        written
            .transpose()
            .map_err(|error| self.unwritable(&error))?;
        (self.looks, self.last) = (self.looks + 1, at);
        Ok(())
    }

    fn write(&self, program: String, version: String) -> Result<Writer<&'a File>, Failure> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let start = Start {
            pid: self.pid,
            program,
            version,
            since: since.map_or(0, |since| since.as_secs()),
            every: self.output.every.as_millis() as u64,
        };
        let file = self.output.file.empty();
        let writer = file.and_then(|file| Writer::new(file, &start));
        writer.map_err(|error| self.unwritable(&error))
    }

    fn unwritable(&self, error: &std::io::Error) -> Failure {
        unwritable(self.output.file.path(), error)
    }

    /// Time from the start of a look to the next one.
    fn interval(&self) -> Duration {
        match self.writer {
            None => self.output.every.min(TRY_AGAIN),
            Some(_) => pace(self.output.every, self.looks),
        }
    }

    fn end(mut self, why: String) -> Result<Outcome, Failure> {
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.write("?".to_owned(), String::new())?,
        };
        writer.end(&why).map_err(|error| self.unwritable(&error))?;
        Ok(Outcome {
            path: self.output.file.path().to_owned(),
            looks: self.looks,
            bytes: writer.bytes(),
            length: Duration::from_millis(self.last),
            why,
        })
    }
}

/// The program's name.
fn name_of(target: &Target) -> String {
    match target {
        Target::Process(process) => process.name().to_owned(),
        Target::Core(..) => target.title(),
    }
}

/// Time between looks after a number of looks.
fn pace(every: Duration, looks: u64) -> Duration {
    let doublings = (looks / LOOKS_OF_A_PACE).min(16);
    every * (1 << doublings)
}

/// Records a child of this process in a thread of its own.
#[derive(Debug)]
pub struct Recorder {
    stop: Sender<()>,
    thread: JoinHandle<Result<Outcome, Failure>>,
}

impl Recorder {
    /// Begins to record a child that has just started.
    pub fn start(pid: u32, output: Output) -> Self {
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let mut pause = |time| match stopped.recv_timeout(time) {
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => None,
                _ => Some("the process ended"),
            };
            take(pid as i32, output, true, &mut pause)
        });
        Recorder { stop, thread }
    }

    /// Ends the recording after the end of the child.
    ///
    /// # Errors
    ///
    /// If it could not be written.
    pub fn finish(self) -> Result<Outcome, Failure> {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|_| {
            Err(Failure::ours(
                "the recording ended early",
                "report this as a bug of uslub",
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    /// Set in the process that only waits.
    const WAITS: &str = "USLUB_TEST_WAITS";

    /// Waits until its parent closes its input, in a process of its own; elsewhere nothing.
    #[test]
    fn another_process_waits() {
        if std::env::var_os(WAITS).is_some() {
            println!("{WAITS}");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
    }

    #[test]
    fn a_week_has_few_looks() {
        let second = Duration::from_secs(1);
        assert_eq!(pace(second, 3599), second);
        assert_eq!(pace(second, 3600), 2 * second);
        assert_eq!(pace(second, 7200), 4 * second);
        let (mut time, mut looks) = (Duration::ZERO, 0);
        while time < Duration::from_secs(7 * 86_400) {
            time += pace(second, looks);
            looks += 1;
        }
        assert!((20_000..30_000).contains(&looks), "{looks}");
        pace(Duration::from_secs(3600), u64::MAX);
    }

    #[test]
    fn a_process_that_is_not_ready_is_refused_unless_it_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let output = || Output::create(&path, Duration::from_secs(1), None, 1 << 20).unwrap();
        // The process contains uslub, and does not use it.
        let name = "recording::take::tests::another_process_waits";
        let mut waiting = Command::new(std::env::current_exe().unwrap())
            .env(WAITS, "1")
            .args(["--exact", name, "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = waiting.id() as i32;
        // Until it says so, it may be a copy of this process, or have no memory yet.
        let said = BufReader::new(waiting.stdout.take().unwrap());
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(WAITS)));
        let mut never = |_| -> Option<&'static str> { panic!("no pause") };
        let failure = take(pid, output(), false, &mut never).unwrap_err();
        assert!(
            failure.message.contains("has not allocated anything yet"),
            "{}",
            failure.message
        );
        let mut pauses = 0;
        let mut three = |time| {
            // Earlier than a second later. A look that takes long makes it a little longer.
            assert!(time < Duration::from_secs(1));
            pauses += 1;
            (pauses == 3).then_some("enough")
        };
        let outcome = take(pid, output(), true, &mut three).unwrap();
        assert_eq!((outcome.looks, &*outcome.why), (0, "enough"));
        assert_eq!(outcome.bytes, std::fs::metadata(&path).unwrap().len());
        assert!(Output::create(folder.path(), Duration::ZERO, None, 1).is_err());
        drop(waiting.stdin.take());
        assert!(waiting.wait().unwrap().success());
    }
}
