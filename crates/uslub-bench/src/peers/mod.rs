//! Compares uslub with other allocators. `uslub bench peers` runs it.
//!
//! Each allocator is a [`Face`]: malloc and free behind pointers, so that all are called the same
//! way. Some allocators are linked into this program (feature `peers`). Others are loaded if they
//! are installed. For rows about memory, each allocator runs in its own child process.
//!
//! | file | concept |
//! |---|---|
//! | `face`, `linked` | an allocator behind pointers; the allocators linked into this program |
//! | `dpdk` | DPDK's mempool, which is not a malloc, against our bulk calls |
//! | `row`, `section` | uslub against the best peer; the result of a part |
//! | `child`, `cost` | work in a child process; the cost of a program |
//! | `pair`, `many`, `live`, `handover`, `churn`, `programs`, `sleepers`, `large` | P1 to P8 |
//! | `carried` | the floor of P4 by malloc |
//! | `kernel` | K: the cost of SLUB inside the kernel, compared with uslub |

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

mod carried;
pub mod child;
mod churn;
pub mod cost;
mod dpdk;
mod face;
mod handover;
mod kernel;
mod large;
#[cfg(feature = "peers")]
mod linked;
mod live;
mod many;
mod pair;
mod programs;
mod row;
mod section;
mod sleepers;

pub use face::{Face, installed};
pub use row::{Against, PeerRow};
pub use section::Section;

use crate::bench::Bench;
use crate::error::Failure;
use crate::floor;
use crate::output::{Competitors, Report};
use dpdk::{DPDK, Dpdk};
use face::OURS;
use row::Rounds;

/// A function that measures a part.
type Run = fn(&Bench, &Peers) -> Result<Section, Failure>;

/// All parts, by name.
const PARTS: [(&str, Run); 9] = [
    ("P1", pair::run),
    ("P2", many::run),
    ("P3", live::run),
    ("P4", handover::run),
    ("P5", churn::run),
    ("P6", programs::run),
    ("P7", sleepers::run),
    ("P8", large::run),
    ("K", kernel::run),
];

/// Names of the parts.
pub fn parts() -> [&'static str; PARTS.len()] {
    PARTS.map(|(name, _)| name)
}

/// The competitors.
#[derive(Debug)]
pub struct Peers {
    /// All allocators, ours first.
    pub faces: Vec<Face>,
    /// The allocators that can be preloaded.
    pub preloads: Vec<(&'static str, PathBuf)>,
    /// The allocators that are not available, with the reason.
    pub absent: Vec<(&'static str, String)>,
    /// The command that runs a child.
    pub command: PathBuf,
    /// Our library.
    pub library: PathBuf,
    /// The environment variable that names our library to a child.
    pub variable: String,
    /// DPDK; initialised at its first use.
    dpdk: OnceLock<Result<Dpdk, String>>,
}

/// A further competitor in a row: its name and its round.
type More<'a, T = f64> = (&'static str, Box<dyn FnMut() -> Result<T, Failure> + 'a>);
/// The results of the rounds, by competitor.
type Outcomes<T> = Vec<(&'static str, Vec<T>)>;

impl Peers {
    /// Finds the competitors: our library, the C library, the linked allocators, and the installed
    /// allocators.
    ///
    /// # Errors
    ///
    /// If our own library cannot be loaded.
    pub fn look(library: &Path, command: &Path, variable: &str) -> Result<Self, Failure> {
        let mut faces = vec![Face::load(OURS, library)?, Face::system()];
        #[cfg(feature = "peers")]
        faces.extend(linked::faces());
        let (mut preloads, mut absent) = (Vec::new(), Vec::new());
        for (name, path) in installed() {
            let Some(path) = path else {
                absent.push((name, "it is not installed".to_owned()));
                continue;
            };
            match Face::load(name, &path) {
                Ok(face) => faces.push(face),
                Err(error) => absent.push((name, error.to_string())),
            }
            preloads.push((name, path));
        }
        if cfg!(not(feature = "peers")) {
            let why = "not built in; with --features peers they are";
            absent.push((
                "mimalloc v3, snmalloc, rpmalloc, jemalloc 5.3",
                why.to_owned(),
            ));
        }
        Ok(Self {
            faces,
            preloads,
            absent,
            command: command.to_owned(),
            library: library.to_owned(),
            variable: variable.to_owned(),
            dpdk: OnceLock::new(),
        })
    }

    /// DPDK, if it is installed. The first call starts it.
    fn dpdk(&self) -> Option<&Dpdk> {
        self.dpdk.get_or_init(Dpdk::start).as_ref().ok()
    }

    /// Runs a round of each competitor in turn, after one warm-up round. An entry of `more`
    /// replaces the face of the same name, or is a further competitor.
    fn each_of<T>(
        &self,
        bench: &Bench,
        of: impl Fn(&Face) -> Result<T, Failure>,
        more: Vec<More<'_, T>>,
    ) -> Result<Outcomes<T>, Failure> {
        let is_there = |face: &&Face| more.iter().all(|(name, _)| *name != face.name);
        let faces: Vec<_> = self.faces.iter().filter(is_there).collect();
        let of = &of;
        let mut all: Vec<More<'_, T>> = more;
        for face in faces {
            all.push((face.name, Box::new(move || of(face))));
        }
        outcomes(bench, all)
    }

    /// Like [`each_of`](Self::each_of), for rounds that return one figure.
    fn each_and(
        &self,
        bench: &Bench,
        of: impl Fn(&Face) -> Result<f64, Failure>,
        more: Vec<More<'_>>,
    ) -> Result<Rounds, Failure> {
        self.each_of(bench, of, more).map(Rounds::of)
    }
}

/// Runs a round of each competitor in turn, after one warm-up round.
fn in_turn(bench: &Bench, all: Vec<More<'_>>) -> Result<Rounds, Failure> {
    outcomes(bench, all).map(Rounds::of)
}

fn outcomes<T>(bench: &Bench, mut all: Vec<More<'_, T>>) -> Result<Outcomes<T>, Failure> {
    let mut outcomes: Vec<_> = all.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for round in 0..=bench.rounds() {
        for ((_, run), (_, rounds)) in all.iter_mut().zip(&mut outcomes) {
            note(bench, round, rounds, run()?);
        }
    }
    Ok(outcomes)
}

/// Keeps the result of a round, unless it was the warm-up round.
fn note<T>(bench: &Bench, round: usize, rounds: &mut Vec<T>, outcome: T) {
    if round > 0 {
        rounds.push(outcome);
    }
    bench.progress.tick();
}

/// The allocator of this name. A child loads no other.
fn face_named(name: &str, library: &Path) -> Result<Face, Failure> {
    if name == OURS {
        return Face::load(OURS, library);
    }
    if name == face::SYSTEM {
        return Ok(Face::system());
    }
    #[cfg(feature = "peers")]
    if let Some(face) = linked::faces().into_iter().find(|face| face.name == name) {
        return Ok(face);
    }
    match installed().find(|(known, _)| *known == name) {
        Some((known, Some(path))) => Face::load(known, &path),
        _ => Err(Failure::Unavailable(name.to_owned())),
    }
}

/// Runs the parts of these names, in the order of [`parts`].
///
/// # Errors
///
/// If a measurement fails completely.
pub fn run(bench: &Bench, peers: &Peers, names: &[&str]) -> Result<Report<Against>, Failure> {
    let parts = PARTS.iter().filter(|(name, _)| names.contains(name));
    let parts = parts.map(|&(name, run)| (name.to_owned(), move || run(bench, peers)));
    let mut report = Report::measure(bench, "uslub beside other allocators", parts.collect())?;
    report.notes = vec![
        "a ratio is of two runs of one round, uslub to the best of the others".to_owned(),
        floor::ABOUT.to_owned(),
    ];
    let faces = peers.faces.iter();
    let mut competitors = Competitors {
        allocators: faces.map(|face| (face.name, face.from.clone())).collect(),
        absent: peers.absent.clone(),
    };
    match peers.dpdk.get() {
        Some(Ok(dpdk)) => {
            let version = format!("libdpdk {}", dpdk.version);
            competitors.allocators.push((DPDK, version));
        }
        Some(Err(why)) => competitors.absent.push((DPDK, why.clone())),
        None => {}
    }
    report.competitors = Some(competitors);
    Ok(report)
}
