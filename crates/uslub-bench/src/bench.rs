//! How much is measured, and who watches.

use indicatif::ProgressBar;

use crate::error::Failure;
use crate::measure::{self, Sample};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Enough to see that it works; figures mean nothing.
    Tiny,
    /// All seeds in under a minute.
    Quick,
    /// As much as it takes.
    Full,
}

impl Size {
    /// One of three numbers.
    pub fn pick<T>(self, tiny: T, quick: T, full: T) -> T {
        match self {
            Size::Tiny => tiny,
            Size::Quick => quick,
            Size::Full => full,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.pick("tiny", "quick", "full")
    }
}

/// A run of the bench.
pub struct Bench {
    /// How much is measured.
    pub size: Size,
    /// Shows how far it has come; drawn between rounds only.
    pub progress: ProgressBar,
}

impl Bench {
    /// A run that nobody watches.
    pub fn quiet(size: Size) -> Self {
        Self {
            size,
            progress: ProgressBar::hidden(),
        }
    }

    /// Says what is measured now.
    pub fn says(&self, what: &str) {
        self.progress.set_message(what.to_owned());
        self.progress.tick();
    }

    /// Rounds that count.
    pub fn rounds(&self) -> usize {
        self.size.pick(2, 7, 15)
    }

    /// Rounds of all competitors in turn, after some to warm up; what each of them said, in order.
    ///
    /// # Errors
    ///
    /// The first of a competitor.
    pub fn rounds_of<T, const N: usize>(
        &self,
        warm_up: usize,
        competitors: [&mut dyn FnMut() -> Result<T, Failure>; N],
    ) -> Result<[Vec<T>; N], Failure> {
        self.so_many_rounds_of(self.rounds(), warm_up, competitors)
    }

    /// As [`rounds_of`](Self::rounds_of), with a number of rounds of the caller's own: more and
    /// shorter ones for competitors so close to each other that what the machine does meanwhile
    /// would decide.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn so_many_rounds_of<T, const N: usize>(
        &self,
        rounds: usize,
        warm_up: usize,
        competitors: [&mut dyn FnMut() -> Result<T, Failure>; N],
    ) -> Result<[Vec<T>; N], Failure> {
        measure::interleave(rounds, warm_up, competitors, || self.progress.tick())
    }

    /// As [`rounds_of`](Self::rounds_of) for competitors that say one number.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn samples_of<const N: usize>(
        &self,
        warm_up: usize,
        competitors: [&mut dyn FnMut() -> Result<f64, Failure>; N],
    ) -> Result<[Sample; N], Failure> {
        Ok(self.rounds_of(warm_up, competitors)?.map(Sample::of))
    }
}
