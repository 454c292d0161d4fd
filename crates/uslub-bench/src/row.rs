//! One line of the result.

use serde::Serialize;

use crate::error::Failure;
use crate::goal::{Goal, change};
use crate::measure::Sample;

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Number of the seed.
    pub seed: u8,
    /// What was measured.
    pub name: String,
    /// Unit of old and new.
    pub unit: &'static str,
    /// What the old way reached: the median of its rounds.
    pub old: Option<f64>,
    /// What the new way reached.
    pub new: Option<f64>,
    /// From old to new, in per cent.
    pub change: Option<f64>,
    /// The median of the rounds' own changes, in per cent, where that is what is judged.
    pub change_by_rounds: Option<f64>,
    /// What the seed reported, in words.
    pub reported: String,
    /// What must be shown, in words.
    pub goal: String,
    /// Whether it is; nothing where there is no goal or no figure.
    pub met: Option<bool>,
    /// The parts of the goal that are not met, in words.
    pub missed: String,
    /// Least and greatest of the old rounds.
    pub old_spread: Option<[f64; 2]>,
    /// Least and greatest of the new rounds.
    pub new_spread: Option<[f64; 2]>,
    /// What the kernel's own code, version 7.2.12, takes on such a machine.
    pub kernel: Option<f64>,
    /// What else is to be known.
    pub note: String,
}

impl Row {
    /// A measured line.
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

    /// A line that could not be measured, with the reason.
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

    /// With the ratios of the rounds, whose median is judged instead of the ratio of the medians.
    pub fn by_rounds(mut self, ratios: Sample) -> Self {
        self.change_by_rounds = change(1.0, ratios.median);
        self
    }

    /// With what the seed reported.
    pub fn reported(mut self, text: impl Into<String>) -> Self {
        self.reported = text.into();
        self
    }

    /// With what the kernel's own code takes.
    pub fn kernel(mut self, figure: Option<f64>) -> Self {
        self.kernel = figure;
        self
    }

    /// With a remark.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.note = text.into();
        self
    }
}
