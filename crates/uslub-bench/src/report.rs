//! What comes out of a run.

use serde::Serialize;

use crate::chart::Chart;
use crate::machine::Machine;
use crate::row::Row;

/// What one seed gave.
#[derive(Debug)]
pub struct SeedReport {
    /// Its number.
    pub seed: u8,
    /// Its name.
    pub title: &'static str,
    /// The thread that it comes from.
    pub source: &'static str,
    /// What it is about, in plain words.
    pub about: &'static str,
    /// What was run here.
    pub workload: String,
    /// The thread's own table.
    pub own: Table,
    /// What was measured.
    pub rows: Vec<Row>,
    /// The same as pictures.
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

    /// One more line.
    pub fn push(&mut self, row: &[String]) {
        self.rows.push(row.to_vec());
    }
}

/// All of it.
#[derive(Debug)]
pub struct Report {
    /// Where and how it was measured.
    pub machine: Machine,
    /// `quick` or `full`.
    pub size: &'static str,
    /// Rounds that each median is of.
    pub rounds: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// By seed.
    pub seeds: Vec<SeedReport>,
}

impl Report {
    /// All lines of all seeds.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.seeds.iter().flat_map(|seed| &seed.rows)
    }

    /// The lines whose goal is missed.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows().filter(|row| row.met == Some(false))
    }

    /// The lines that could not be measured.
    pub fn absent(&self) -> impl Iterator<Item = &Row> {
        self.rows().filter(|row| row.new.is_none())
    }

    /// The report as JSON: the machine, and one list of rows.
    ///
    /// # Errors
    ///
    /// None that a report can cause.
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
