//! The size of a benchmark run, its rounds, and its progress bar. All seeds and parts use it.

use indicatif::ProgressBar;

use crate::error::Failure;
use crate::measure::{self, Sample};

/// The amount of work of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Only a smoke test; the figures mean nothing.
    Tiny,
    /// All seeds in less than a minute.
    Quick,
    /// As long as exact figures need.
    Full,
}

impl Size {
    /// The argument for this size.
    pub fn pick<T>(self, tiny: T, quick: T, full: T) -> T {
        match self {
            Size::Tiny => tiny,
            Size::Quick => quick,
            Size::Full => full,
        }
    }

    /// The name of the size.
    pub fn name(self) -> &'static str {
        self.pick("tiny", "quick", "full")
    }
}

/// One run of the benchmarks.
pub struct Bench {
    /// The amount of work.
    pub size: Size,
    /// The progress bar; it is drawn between rounds only.
    pub progress: ProgressBar,
}

impl Bench {
    /// A run without a visible progress bar.
    pub fn quiet(size: Size) -> Self {
        Self {
            size,
            progress: ProgressBar::hidden(),
        }
    }

    /// Shows the name of the present measurement.
    pub fn says(&self, what: &str) {
        self.progress.set_message(what.to_owned());
        self.progress.tick();
    }

    /// Measured rounds; warm-up rounds do not count.
    pub fn rounds(&self) -> usize {
        self.size.pick(2, 7, 15)
    }

    /// Runs all competitors in turn, with warm-up rounds first. Returns the results of each
    /// competitor, in the order of the rounds.
    ///
    /// # Errors
    ///
    /// The first error of a competitor.
    pub fn rounds_of<T, const N: usize>(
        &self,
        warm_up: usize,
        competitors: [&mut dyn FnMut() -> Result<T, Failure>; N],
    ) -> Result<[Vec<T>; N], Failure> {
        self.so_many_rounds_of(self.rounds(), warm_up, competitors)
    }

    /// Like [`rounds_of`](Self::rounds_of), with a number of rounds from the caller. Competitors
    /// with nearly equal times need more and shorter rounds, because otherwise disturbances of the
    /// machine decide.
    ///
    /// # Errors
    ///
    /// The first error of a competitor.
    pub fn so_many_rounds_of<T, const N: usize>(
        &self,
        rounds: usize,
        warm_up: usize,
        competitors: [&mut dyn FnMut() -> Result<T, Failure>; N],
    ) -> Result<[Vec<T>; N], Failure> {
        measure::interleave(rounds, warm_up, competitors, || self.progress.tick())
    }

    /// Runs `n` competitors in turn, by number: first `warm_up` rounds, then `rounds` measured
    /// rounds. Returns the results of each competitor.
    ///
    /// # Errors
    ///
    /// The first error of a competitor.
    pub fn each_in_turn<T>(
        &self,
        (warm_up, rounds): (usize, usize),
        n: usize,
        mut run: impl FnMut(usize) -> Result<T, Failure>,
    ) -> Result<Vec<Vec<T>>, Failure> {
        let mut all: Vec<Vec<T>> = (0..n).map(|_| Vec::new()).collect();
        for round in 0..warm_up + rounds {
            for (number, results) in all.iter_mut().enumerate() {
                let result = run(number)?;
                if round >= warm_up {
                    results.push(result);
                }
                self.progress.tick();
            }
        }
        Ok(all)
    }

    /// Like [`rounds_of`](Self::rounds_of), for competitors that return one number.
    ///
    /// # Errors
    ///
    /// The first error of a competitor.
    pub fn samples_of<const N: usize>(
        &self,
        warm_up: usize,
        competitors: [&mut dyn FnMut() -> Result<f64, Failure>; N],
    ) -> Result<[Sample; N], Failure> {
        Ok(self.rounds_of(warm_up, competitors)?.map(Sample::of))
    }
}
