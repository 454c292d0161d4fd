//! The result of a run, and its JSON. `table` and `page` present it.

use std::time::Instant;

use serde::{Serialize, Serializer};

use super::chart::Chart;
use super::row::Row;
use crate::bench::Bench;
use crate::error::Failure;
use crate::machine::Machine;

/// The result of one seed or part.
#[derive(Debug)]
pub struct Section<F> {
    /// The section's name, such as `Seed 0` or `P1`.
    pub name: &'static str,
    /// The subject in a few words.
    pub title: &'static str,
    /// The mailing-list thread, if the section has one.
    pub source: Option<&'static str>,
    /// The subject, in plain words.
    pub about: &'static str,
    /// The workload that ran here; empty if `about` describes it.
    pub workload: String,
    /// The table from the thread.
    pub own: Option<Words>,
    /// The measured rows.
    pub rows: Vec<Row<F>>,
    /// Charts of the rows.
    pub charts: Vec<Chart>,
}

/// A table of words.
#[derive(Debug)]
pub struct Words {
    /// Names of the columns.
    pub head: Vec<String>,
    /// The lines.
    pub rows: Vec<Vec<String>>,
}

impl Words {
    /// A table with these columns.
    pub fn new(head: &[&str]) -> Self {
        Self {
            head: head.iter().map(|&h| h.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a line.
    pub fn push(&mut self, row: &[String]) {
        self.rows.push(row.to_vec());
    }
}

/// The competitors of a comparison.
#[derive(Debug, Serialize)]
pub struct Competitors {
    /// The competitors, each with its source.
    pub allocators: Vec<(&'static str, String)>,
    /// The absent allocators, each with the reason.
    pub absent: Vec<(&'static str, String)>,
}

/// The result of a run.
#[derive(Debug, Serialize)]
#[serde(bound = "F: Serialize")]
pub struct Report<F> {
    /// The title of the page.
    #[serde(skip)]
    pub title: &'static str,
    /// The machine and the versions.
    #[serde(flatten)]
    pub machine: Machine,
    /// `quick` or `full`.
    pub size: &'static str,
    /// Rounds behind most medians.
    pub rounds: usize,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// The competitors, if the run compared allocators.
    #[serde(flatten)]
    pub competitors: Option<Competitors>,
    /// How to read the figures, in sentences without a full stop.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// The result of each seed or part. The JSON has one list of all rows.
    #[serde(rename = "rows", serialize_with = "rows_only")]
    pub sections: Vec<Section<F>>,
}

fn rows_only<F: Serialize, S: Serializer>(
    sections: &[Section<F>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(sections.iter().flat_map(|section| &section.rows))
}

impl<F> Report<F> {
    /// Measures all parts, each with its name, one after another.
    ///
    /// # Errors
    ///
    /// The first error of a part.
    pub fn measure(
        bench: &Bench,
        title: &'static str,
        parts: Vec<(String, impl FnOnce() -> Result<Section<F>, Failure>)>,
    ) -> Result<Self, Failure> {
        let start = Instant::now();
        // Before any pinning: a thread pinned to one CPU would see a machine of one CPU.
        let machine = Machine::look()?;
        let mut sections = Vec::new();
        bench.progress.set_length(parts.len() as u64);
        for (name, run) in parts {
            bench.progress.set_prefix(name);
            sections.push(run()?);
            bench.progress.inc(1);
        }
        bench.progress.finish_and_clear();
        Ok(Self {
            title,
            machine,
            size: bench.size.name(),
            rounds: bench.rounds(),
            seconds: start.elapsed().as_secs_f64(),
            competitors: None,
            notes: Vec::new(),
            sections,
        })
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &Row<F>> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    /// The rows that miss their goal.
    pub fn missed(&self) -> impl Iterator<Item = &Row<F>> {
        self.rows().filter(|row| row.met == Some(false))
    }

    /// The machine, the run and how to read its figures, in lines.
    pub fn head(&self) -> Vec<String> {
        let run = format!(
            "{} run, {:.0} s; medians, mostly of {} rounds in turn (least … greatest)",
            self.size, self.seconds, self.rounds
        );
        let mut head = vec![self.machine.to_string(), run, self.machine.pace.to_string()];
        head.extend_from_slice(&self.notes);
        if let Some(competitors) = &self.competitors {
            let names: Vec<_> = competitors
                .allocators
                .iter()
                .map(|(name, _)| *name)
                .collect();
            head.push(format!("allocators: {}", names.join(", ")));
            let absent = competitors.absent.iter();
            head.extend(absent.map(|(name, why)| format!("left out: {name}: {why}")));
        }
        head
    }
}

impl<F: Serialize> Report<F> {
    /// The report as JSON: the machine, and one list of rows.
    ///
    /// # Errors
    ///
    /// No report causes an error.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}
