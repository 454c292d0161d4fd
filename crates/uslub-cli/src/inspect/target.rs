//! What is looked at: a process or a core file.

use super::refusal;
use crate::broker::{self, Answer};
use crate::destination;
use crate::failure::{Failure, USAGE};
use std::path::Path;
use uslub_inspect::{CoreFile, Depth, Error, Heap, Memory, Process, Snapshot, root};

/// The fields of `/proc/PID/stat` behind the name: the state, then numbers; `None` if there is no
/// such process.
pub fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name, in parentheses, may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

/// When a process started, in ticks since the system started; `None` if it has ended.
pub fn start_time(pid: i32) -> Option<u64> {
    let fields = stat(pid)?;
    let has_ended = fields.first()?.starts_with(['Z', 'X']);
    let start = fields.get(19)?.parse().ok()?;
    (!has_ended).then_some(start)
}

/// What is looked at.
pub enum Target {
    /// A running process.
    Process(Process),
    /// A core file, and its name.
    Core(CoreFile, String),
}

impl Target {
    /// The process with a number, or the core file with a name.
    pub fn open(word: impl AsRef<Path>) -> Result<Self, Failure> {
        let path = word.as_ref();
        let word = path.to_string_lossy();
        if !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()) {
            let Ok(pid) = word.parse() else {
                let mut failure = refusal::of(Error::NoProcess(i32::MAX), None);
                failure.message = format!("no process {word}");
                return Err(failure);
            };
            return Self::process(pid);
        }
        if path.exists() {
            return Self::core(path);
        }
        Err(Failure {
            message: format!("'{word}' is neither the number of a process nor a file"),
            hint: "name a process by its number: pidof PROGRAM prints it".to_owned(),
            code: USAGE,
        })
    }

    /// The process with a number; through the watcher of `uslub run`, if this command may not read
    /// the process.
    pub fn process(pid: i32) -> Result<Self, Failure> {
        let error = match Process::open(pid) {
            Ok(process) => return Ok(Self::Process(process)),
            Err(error) => error,
        };
        let is_forbidden = matches!(error, Error::Forbidden { .. });
        let mut failure = refusal::of(error, Some(pid));
        if is_forbidden {
            match broker::ask(pid) {
                Answer::Opened(process) => return Ok(Self::Process(process)),
                Answer::NoWatcher => {}
                Answer::Refused(why) => {
                    failure.message = format!(
                        "{}, and the watcher of 'uslub run' does not open it: {why}",
                        failure.message
                    );
                }
            }
        }
        Err(failure)
    }

    /// The core file with a name.
    pub fn core(path: &Path) -> Result<Self, Failure> {
        if let Some(kind) = destination::kind(path) {
            let hint = "name a process by its number, or the file that the kernel wrote";
            let message = format!("'{}' is {kind}, not a core file", path.display());
            return Err(Failure::usage(message, hint));
        }
        let core = CoreFile::open(path).map_err(|error| refusal::of(error, None))?;
        Ok(Self::Core(core, path.display().to_string()))
    }

    /// Its memory.
    pub fn memory(&self) -> &dyn Memory {
        match self {
            Self::Process(process) => process,
            Self::Core(core, _) => core,
        }
    }

    /// The failure that an error stands for.
    pub fn refuse(&self, error: Error) -> Failure {
        match self {
            Self::Process(process) => refusal::of(error, Some(process.pid())),
            Self::Core(core, file) => {
                let is_cut = matches!(error, Error::NotOnUslub { .. } | Error::Fault { .. });
                let mut failure = refusal::of(error, None);
                if core.is_truncated() && is_cut {
                    failure = Failure::ours(
                        format!("the core file '{file}' ends early: what is needed is missing"),
                        "write it again after 'ulimit -c unlimited', on a disk with room",
                    );
                }
                failure
            }
        }
    }

    /// Name and number, for people.
    pub fn title(&self) -> String {
        match self {
            Self::Process(process) => format!("{} {}", process.name(), process.pid()),
            Self::Core(core, file) => match core.program() {
                Some((name, pid)) => format!("core of {name} {pid}"),
                None => format!("core file {file}"),
            },
        }
    }

    /// Number and name for JSON; of a core file, if it says so.
    pub fn identity(&self) -> (Option<i32>, String) {
        match self {
            Self::Process(process) => (Some(process.pid()), process.name().to_owned()),
            Self::Core(core, file) => match core.program() {
                Some((name, pid)) => (Some(pid), name.to_owned()),
                None => (None, file.clone()),
            },
        }
    }

    /// The word that names it on a command line.
    pub fn word(&self) -> String {
        match self {
            Self::Process(process) => process.pid().to_string(),
            Self::Core(_, file) => file.clone(),
        }
    }

    /// The allocators in it. One that is not set up yet is left out, unless it is the only one.
    pub fn heaps(&self) -> Result<Vec<Heap<'_>>, Failure> {
        let roots = root::find(self.memory()).map_err(|error| self.refuse(error))?;
        let (mut heaps, mut last) = (Vec::new(), None);
        for root in roots {
            match Heap::open(self.memory(), root) {
                Ok(heap) => heaps.push(heap),
                Err(error) => last = Some(error),
            }
        }
        match (heaps.is_empty(), last) {
            (true, Some(error)) => Err(self.refuse(error)),
            _ => Ok(heaps),
        }
    }

    /// The allocators in it, with a full look at each.
    pub fn looks(&self) -> Result<Vec<(Heap<'_>, Snapshot)>, Failure> {
        let heaps = self.heaps()?.into_iter();
        let looked = heaps.map(|mut heap| {
            let snapshot = heap.look(Depth::Full).map_err(|error| self.refuse(error))?;
            Ok((heap, snapshot))
        });
        looked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_has_a_start_until_it_ends() {
        let own = std::process::id() as i32;
        assert!(start_time(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(start_time(own), start_time(own));
        assert_eq!(start_time(1 << 23), None);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(start_time(pid) >= start_time(own));
        drop(child.stdin.take());
        // It has ended, and its status is not fetched.
        while stat(pid).is_some_and(|fields| fields[0] != "Z") {
            std::thread::yield_now();
        }
        assert_eq!(start_time(pid), None);
        assert!(child.wait().unwrap().success());
        assert_eq!(stat(pid), None);
    }
}
