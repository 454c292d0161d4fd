//! What comes out of a comparison.

use serde::Serialize;

use super::row::PeerRow;
use crate::chart::Chart;
use crate::error::Failure;
use crate::machine::Machine;

/// What one part gave.
#[derive(Debug)]
pub struct Section {
    /// Its name, such as `P1`.
    pub part: &'static str,
    /// What it is.
    pub title: &'static str,
    /// What was run.
    pub about: &'static str,
    /// What was measured.
    pub rows: Vec<PeerRow>,
    /// The same as pictures.
    pub charts: Vec<Chart>,
}

impl Section {
    /// A part, with a picture of its rows.
    pub fn new(
        part: &'static str,
        title: &'static str,
        about: &'static str,
        rows: Vec<PeerRow>,
    ) -> Self {
        let shown: Vec<_> = rows.iter().filter(|row| row.ratio.is_some()).collect();
        let names = shown.iter().map(|row| row.name.clone()).collect();
        let ratios = shown
            .iter()
            .map(|row| row.ratio.unwrap_or(f64::NAN).min(MOST));
        let chart = Chart::bars("uslub to the best peer", "ratio", names);
        let chart = chart.with("below 1 is better", ratios.collect::<Vec<_>>());
        let charts = if shown.len() > WIDEST {
            Vec::new()
        } else {
            vec![chart]
        };
        Self {
            part,
            title,
            about,
            charts,
            rows,
        }
    }
}

/// Highest bar that is drawn.
const MOST: f64 = 4.0;
/// Most bars that can be told apart by their names.
const WIDEST: usize = 8;

/// All of it.
#[derive(Debug)]
pub struct PeerReport {
    /// Where and how it was measured.
    pub machine: Machine,
    /// `quick` or `full`.
    pub size: &'static str,
    /// Rounds that most medians are of.
    pub rounds: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// Who took part, and where each comes from.
    pub allocators: Vec<(&'static str, String)>,
    /// Who did not, and why.
    pub absent: Vec<(&'static str, String)>,
    /// By part.
    pub sections: Vec<Section>,
}

impl PeerReport {
    /// All lines.
    pub fn rows(&self) -> impl Iterator<Item = &PeerRow> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    /// The lines whose goal is missed.
    pub fn missed(&self) -> impl Iterator<Item = &PeerRow> {
        self.rows().filter(|row| row.met == Some(false))
    }

    /// The report as JSON.
    ///
    /// # Errors
    ///
    /// None that a report can cause.
    pub fn json(&self) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Flat<'a> {
            #[serde(flatten)]
            machine: &'a Machine,
            size: &'static str,
            rounds: usize,
            seconds: f64,
            allocators: &'a [(&'static str, String)],
            absent: &'a [(&'static str, String)],
            rows: Vec<&'a PeerRow>,
        }
        let flat = Flat {
            machine: &self.machine,
            size: self.size,
            rounds: self.rounds,
            seconds: self.seconds,
            allocators: &self.allocators,
            absent: &self.absent,
            rows: self.rows().collect(),
        };
        serde_json::to_string_pretty(&flat).map_err(|error| Failure::Wrong(error.to_string()))
    }
}
