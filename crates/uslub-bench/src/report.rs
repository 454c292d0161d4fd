//! The result of a run of seeds, and its JSON. `table` and `page` present it.

use serde::Serialize;

use crate::chart::Chart;
use crate::machine::Machine;
use crate::row::Row;

/// The result of one seed.
#[derive(Debug)]
pub struct SeedReport {
    /// The seed's number.
    pub seed: u8,
    /// The seed's name.
    pub title: &'static str,
    /// The mailing-list thread of the seed.
    pub source: &'static str,
    /// The seed's subject, in plain words.
    pub about: &'static str,
    /// The workload that ran here.
    pub workload: String,
    /// The table from the thread.
    pub own: Table,
    /// The measured rows.
    pub rows: Vec<Row>,
    /// Charts of the rows.
    pub charts: Vec<Chart>,
}

/// A table of words.
#[derive(Debug, Default)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// The lines.
    pub rows: Vec<Vec<String>>,
}

impl Table {
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

/// The result of all seeds.
#[derive(Debug)]
pub struct Report {
    /// The machine and the versions.
    pub machine: Machine,
    /// `quick` or `full`.
    pub size: &'static str,
    /// Rounds behind each median.
    pub rounds: usize,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// The result of each seed.
    pub seeds: Vec<SeedReport>,
}

impl Report {
    /// All rows of all seeds.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.seeds.iter().flat_map(|seed| &seed.rows)
    }

    /// The rows that miss their goal.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows().filter(|row| row.met == Some(false))
    }

    /// The rows that could not be measured.
    pub fn absent(&self) -> impl Iterator<Item = &Row> {
        self.rows().filter(|row| row.new.is_none())
    }

    /// The report as JSON: the machine, and one list of rows.
    ///
    /// # Errors
    ///
    /// No report causes an error.
    pub fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Flat<'a> {
            #[serde(flatten)]
            machine: &'a Machine,
            size: &'static str,
            rounds: usize,
            seconds: f64,
            rows: Vec<&'a Row>,
        }
        let flat = Flat {
            machine: &self.machine,
            size: self.size,
            rounds: self.rounds,
            seconds: self.seconds,
            rows: self.rows().collect(),
        };
        serde_json::to_string_pretty(&flat)
    }
}
