//! One row of a seed: the old figure and the new figure of a measurement.

use serde::Serialize;

use crate::error::Failure;
use crate::goal::{Goal, change, signed};
use crate::measure::Sample;
use crate::output::{self, Cell, Figures, figure};

use super::way::{Way, Witness};

/// One row of a seed.
pub type Row = output::Row<OldNew>;

/// The seed whose rows have a column of single calls.
const BULK_SEED: u8 = 2;

/// The figures of a row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OldNew {
    /// Number of the seed.
    pub seed: u8,
    /// The median of the old way's rounds.
    pub old: Option<f64>,
    /// The median of the new way's rounds.
    pub new: Option<f64>,
    /// The change from old to new, in per cent.
    pub change: Option<f64>,
    /// The median of the changes within each round, in per cent, if the goal is about this median.
    pub change_by_rounds: Option<f64>,
    /// The figure that the thread reported, in words.
    pub reported: String,
    /// Minimum and maximum of the old rounds.
    pub old_spread: Option<[f64; 2]>,
    /// Minimum and maximum of the new rounds.
    pub new_spread: Option<[f64; 2]>,
    /// What the old way runs.
    pub old_way: Option<Way>,
    /// What the new way runs.
    pub new_way: Option<Way>,
    /// A count that shows which code ran.
    pub witness: Option<Witness>,
    /// The figure of single calls, in the rows of bulk calls.
    pub single: Option<f64>,
    /// The cost of the code of Linux 7.2.12 on the machine of the goals, in nanoseconds.
    pub kernel: Option<f64>,
}

impl Figures for OldNew {
    fn cells(&self) -> Vec<(&'static str, Cell)> {
        // The change that the goal is about.
        let change = match self.change_by_rounds.or(self.change) {
            // A multiple is easier to read than a large percentage.
            Some(change) if change > 400.0 => format!("× {}", figure(change / 100.0 + 1.0)),
            Some(change) => format!("{} %", signed(change)),
            None => "–".to_owned(),
        };
        let kernel = self
            .kernel
            .map_or_else(String::new, |ns| format!("{ns} ns"));
        let ways = match (&self.old_way, &self.new_way) {
            (Some(old), Some(new)) => format!("{} → {}", old.name, new.name),
            _ => String::new(),
        };
        let mut cells = vec![
            ("old → new", Cell::Words(ways)),
            ("old", Cell::Figure(self.old, self.old_spread)),
            ("new", Cell::Figure(self.new, self.new_spread)),
        ];
        if self.seed == BULK_SEED {
            cells.push(("single calls", Cell::Figure(self.single, None)));
        }
        cells.extend([
            ("Linux 7.2.12", Cell::PageOnly(kernel)),
            ("change", Cell::Right(change)),
            ("reported", Cell::Words(self.reported.clone())),
        ]);
        cells
    }
}

impl Row {
    /// A measured row.
    pub fn new(
        seed: u8,
        name: impl Into<String>,
        unit: &'static str,
        old: Option<Sample>,
        new: Sample,
        goal: &Goal,
    ) -> Self {
        let figures = OldNew {
            seed,
            old: old.map(|s| s.median),
            new: Some(new.median),
            change: old.and_then(|old| change(old.median, new.median)),
            old_spread: old.map(Sample::spread),
            new_spread: Some(new.spread()),
            ..OldNew::default()
        };
        Self::of(name, unit, figures, goal)
    }

    /// A row that could not be measured, with the reason.
    pub fn without(seed: u8, name: impl Into<String>, unit: &'static str, why: &Failure) -> Self {
        let figures = OldNew {
            seed,
            ..OldNew::default()
        };
        Self::absent(name, unit, figures, why)
    }

    /// Sets the ratios of the rounds. The goal is then about their median, not about the ratio of
    /// the medians.
    pub fn by_rounds(mut self, ratios: Sample) -> Self {
        self.figures.change_by_rounds = change(1.0, ratios.median);
        self
    }

    /// Sets what the old way and the new way run.
    pub fn ways(mut self, old: &Way, new: &Way) -> Self {
        self.figures.old_way = Some(old.clone());
        self.figures.new_way = Some(new.clone());
        self
    }

    /// Sets a count that shows which code the ways ran.
    pub fn witness(mut self, counter: &'static str, old: f64, new: f64) -> Self {
        self.figures.witness = Some(Witness { counter, old, new });
        self
    }

    /// Sets the figure of single calls.
    pub fn single(mut self, single: Sample) -> Self {
        self.figures.single = Some(single.median);
        self
    }

    /// Sets the figure that the thread reported.
    pub fn reported(mut self, text: impl Into<String>) -> Self {
        self.figures.reported = text.into();
        self
    }

    /// Sets the figure of the kernel's own code.
    pub fn kernel(mut self, figure: Option<f64>) -> Self {
        self.figures.kernel = figure;
        self
    }
}
