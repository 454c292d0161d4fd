//! One row of a report: old and new figure of a measurement, with its goal.

use serde::Serialize;

use crate::error::Failure;
use crate::goal::{Goal, change};
use crate::measure::Sample;

/// One row of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Number of the seed.
    pub seed: u8,
    /// The name of the measurement.
    pub name: String,
    /// Unit of the old and new figure.
    pub unit: &'static str,
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
    /// The goal, in words.
    pub goal: String,
    /// Whether the goal is met; `None` without a goal or a figure.
    pub met: Option<bool>,
    /// The missed conditions of the goal, in words.
    pub missed: String,
    /// Minimum and maximum of the old rounds.
    pub old_spread: Option<[f64; 2]>,
    /// Minimum and maximum of the new rounds.
    pub new_spread: Option<[f64; 2]>,
    /// The cost of the code of Linux 7.2.12 on the machine of the goals.
    pub kernel: Option<f64>,
    /// A remark for the reader.
    pub note: String,
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
        let spread = |s: Sample| [s.least, s.greatest];
        Self {
            seed,
            name: name.into(),
            unit,
            old: old.map(|s| s.median),
            new: Some(new.median),
            change: old.and_then(|old| change(old.median, new.median)),
            change_by_rounds: None,
            reported: String::new(),
            goal: goal.text(),
            met: goal.met(),
            missed: goal.missed(),
            old_spread: old.map(spread),
            new_spread: Some(spread(new)),
            kernel: None,
            note: String::new(),
        }
    }

    /// A row that could not be measured, with the reason.
    pub fn without(seed: u8, name: impl Into<String>, unit: &'static str, why: &Failure) -> Self {
        Self {
            seed,
            name: name.into(),
            unit,
            old: None,
            new: None,
            change: None,
            change_by_rounds: None,
            reported: String::new(),
            goal: String::new(),
            met: None,
            missed: String::new(),
            old_spread: None,
            new_spread: None,
            kernel: None,
            note: why.to_string(),
        }
    }

    /// Sets the ratios of the rounds. The goal is then about their median, not about the ratio of
    /// the medians.
    pub fn by_rounds(mut self, ratios: Sample) -> Self {
        self.change_by_rounds = change(1.0, ratios.median);
        self
    }

    /// Sets the figure that the thread reported.
    pub fn reported(mut self, text: impl Into<String>) -> Self {
        self.reported = text.into();
        self
    }

    /// Sets the figure of the kernel's own code.
    pub fn kernel(mut self, figure: Option<f64>) -> Self {
        self.kernel = figure;
        self
    }

    /// Sets a remark.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.note = text.into();
        self
    }
}
