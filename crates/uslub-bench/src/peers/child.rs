//! Measurements in a child process, for rows about memory. The command runs itself as the child.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use uslub_report::HELPER_VARIABLE;

use super::face::Face;
use super::row::Rounds;
use super::{Peers, churn, large, live, sleepers};
use crate::bench::Bench;
use crate::error::Failure;
use crate::floor::FLOOR;

/// The first words of a child's command line: `uslub bench peer-child FACE WORK NUMBER`.
pub const WORDS: [&str; 2] = ["bench", "peer-child"];

/// In the number of [`Work::Large`], what one KiB counts; more than there are live objects.
const LARGE_RADIX: usize = 1000;

/// The work of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Allocates this number of objects in fresh memory and writes over each.
    Cold(usize),
    /// Replaces this number of objects of mixed sizes on each thread.
    Churn(usize),
    /// Starts this number of threads, which allocate once and sleep.
    Sleep(usize),
    /// Allocates, touches and frees objects of `kib` KiB, with `live` of them live.
    Large {
        /// Bytes of an object, in KiB.
        kib: usize,
        /// Live objects.
        live: usize,
    },
}

impl Work {
    fn words(self) -> (&'static str, usize) {
        match self {
            Work::Cold(n) => ("cold", n),
            Work::Churn(n) => ("churn", n),
            Work::Sleep(n) => ("sleep", n),
            Work::Large { kib, live } => ("large", kib * LARGE_RADIX + live),
        }
    }

    /// Parses the words of a child's command line.
    pub fn from_words(name: &str, number: usize) -> Option<Self> {
        match name {
            "cold" => Some(Work::Cold(number)),
            "churn" => Some(Work::Churn(number)),
            "sleep" => Some(Work::Sleep(number)),
            "large" => Some(Work::Large {
                kib: number / LARGE_RADIX,
                live: number % LARGE_RADIX,
            }),
            _ => None,
        }
    }
}

/// The results of a child.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Time of the work.
    pub nanoseconds: f64,
    /// Resident bytes minus the bytes in use, during the work.
    pub over: f64,
    /// Resident bytes after all objects are freed and no thread has called for a while.
    pub idle: f64,
    /// Resident bytes per thread.
    pub per_thread: f64,
}

/// Runs in the child: does the work and returns the text that the parent parses.
///
/// # Errors
///
/// If the allocator is not available, or has no memory.
pub fn serve(face: &str, work: Work, library: &Path) -> Result<String, Failure> {
    let named = || super::face_named(face, library);
    let took = |nanoseconds| Report {
        nanoseconds,
        ..Report::default()
    };
    let report = match work {
        Work::Cold(count) if face == FLOOR => took(live::cold_floor(count)?),
        Work::Cold(count) => took(live::cold(&named()?, count)),
        Work::Churn(replacements) => churn::in_child(&named()?, replacements)?,
        Work::Sleep(threads) => sleepers::in_child(&named()?, threads)?,
        Work::Large { kib, live } => large::in_child(&named()?, kib, live)?,
    };
    serde_json::to_string(&report).map_err(|error| Failure::Wrong(error.to_string()))
}

/// A running child.
struct Child {
    name: &'static str,
    process: std::process::Child,
}

impl Child {
    fn start(peers: &Peers, face: &'static str, work: Work) -> Result<Self, Failure> {
        let (name, number) = work.words();
        let mut command = Command::new(&peers.command);
        command.args(WORDS).args([face, name, &number.to_string()]);
        command.env(&peers.variable, &peers.library);
        // The child gets a witness, as under `uslub run`. No other process reads it.
        if let Ok(witness) = uslub_witness::start() {
            command.env(HELPER_VARIABLE, witness);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let process = command.spawn().map_err(|error| {
            Failure::System(format!("{} cannot run: {error}", peers.command.display()))
        })?;
        Ok(Self {
            name: face,
            process,
        })
    }

    fn end(self) -> Result<Report, Failure> {
        let name = self.name;
        let output = (self.process.wait_with_output())
            .map_err(|error| Failure::System(format!("a child on {name} is lost: {error}")))?;
        if !output.status.success() {
            let what = format!("a child on {name} ended with {}", output.status);
            return Err(Failure::System(what));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure::Wrong(format!("a child on {name} said no report: {error}")))
    }
}

/// Runs a child on an allocator, or on the floor.
pub fn run(peers: &Peers, face: &'static str, work: Work) -> Result<Report, Failure> {
    Child::start(peers, face, work)?.end()
}

/// Runs a child for each allocator, all at the same time, in `rounds` rounds. Only for results that
/// do not depend on speed.
pub fn all_at_once(
    bench: &Bench,
    peers: &Peers,
    work: Work,
    rounds: usize,
) -> Result<Vec<(&'static str, Vec<Report>)>, Failure> {
    let mut all: Vec<(&'static str, Vec<Report>)> = peers
        .faces
        .iter()
        .map(|face| (face.name, Vec::new()))
        .collect();
    for _ in 0..rounds {
        let start = |face: &Face| Child::start(peers, face.name, work);
        let children: Result<Vec<_>, _> = peers.faces.iter().map(start).collect();
        for (child, (_, reports)) in children?.into_iter().zip(&mut all) {
            reports.push(child.end()?);
            bench.progress.tick();
        }
    }
    Ok(all)
}

/// One figure of each report.
pub fn part(all: &[(&'static str, Vec<Report>)], part: impl Fn(&Report) -> f64) -> Rounds {
    let each = all.iter();
    Rounds::of(
        each.map(|(name, reports)| (*name, reports.iter().map(&part).collect()))
            .collect(),
    )
}

/// Resident bytes of this process.
///
/// # Errors
///
/// If `/proc` is not available.
pub fn resident() -> Result<f64, Failure> {
    // The short form, `statm`, may lag behind by some pages for each CPU.
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")
        .map_err(|error| Failure::System(format!("/proc/self/smaps_rollup: {error}")))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kib = kib.and_then(|kib| kib.trim().parse::<f64>().ok());
    kib.map(|kib| kib * 1024.0)
        .ok_or_else(|| Failure::System("/proc/self/smaps_rollup has no Rss".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_is_to_be_done() {
        let large = Work::Large {
            kib: 1025,
            live: 32,
        };
        for work in [Work::Cold(3), Work::Churn(4), Work::Sleep(5), large] {
            let (name, number) = work.words();
            assert_eq!(Work::from_words(name, number), Some(work));
        }
        assert_eq!(Work::from_words("rest", 1), None);
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident().unwrap() > 65536.0);
    }
}
