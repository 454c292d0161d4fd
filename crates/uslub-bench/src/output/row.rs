//! One row of a report: the figures of a measurement, with their goal.

use serde::Serialize;

use super::figure::optional;
use crate::error::Failure;
use crate::goal::Goal;

/// The figures of a row, which differ between seeds and peers.
pub trait Figures: Serialize {
    /// The columns' names and cells. All rows of a section have the same columns.
    fn cells(&self) -> Vec<(&'static str, Cell)>;
}

/// A cell of a row.
pub enum Cell {
    /// A median, with minimum and maximum.
    Figure(Option<f64>, Option<[f64; 2]>),
    /// A figure in words.
    Right(String),
    /// Words about the figures.
    Words(String),
    /// Words for the page only. The page omits a column without any.
    PageOnly(String),
}

/// One row of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Row<F> {
    /// The name of the measurement.
    pub name: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// The figures.
    #[serde(flatten)]
    pub figures: F,
    /// The goal, in words.
    pub goal: String,
    /// Whether the goal is met; `None` without a goal or a figure.
    pub met: Option<bool>,
    /// The missed conditions of the goal, in words.
    pub missed: String,
    /// A remark for the reader.
    pub note: String,
}

impl<F> Row<F> {
    /// A measured row.
    pub fn of(name: impl Into<String>, unit: &'static str, figures: F, goal: &Goal) -> Self {
        Self {
            name: name.into(),
            unit,
            figures,
            goal: goal.text(),
            met: goal.met(),
            missed: goal.missed(),
            note: String::new(),
        }
    }

    /// A row that could not be measured, with the reason. `figures` are empty.
    pub fn absent(name: impl Into<String>, unit: &'static str, figures: F, why: &Failure) -> Self {
        Self::of(name, unit, figures, &Goal::none()).note(why.to_string())
    }

    /// Sets a remark.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.note = text.into();
        self
    }

    /// Whether the goal is met, in one word; empty without a goal.
    pub fn verdict(&self) -> &'static str {
        self.met.map_or("", |met| if met { "yes" } else { "no" })
    }
}

impl<F: Figures> Row<F> {
    /// Whether the row has a figure.
    pub fn is_measured(&self) -> bool {
        let mut cells = self.figures.cells().into_iter();
        cells.any(|(_, cell)| matches!(cell, Cell::Figure(Some(_), _)))
    }

    /// The figures in one line, without minimum and maximum.
    pub fn line(&self) -> String {
        let figure = |(column, cell)| match cell {
            Cell::Figure(value, _) => Some(format!("{column} {}", optional(value))),
            Cell::Right(text) => Some(format!("{column} {text}")),
            Cell::Words(_) | Cell::PageOnly(_) => None,
        };
        let figures: Vec<_> = self
            .figures
            .cells()
            .into_iter()
            .filter_map(figure)
            .collect();
        figures.join(", ")
    }
}
