//! The result of a comparison, and its JSON. `table` and `page` present it.

use serde::Serialize;

use super::row::PeerRow;
use crate::chart::Chart;
use crate::error::Failure;
use crate::machine::Machine;

/// The result of one part.
#[derive(Debug)]
pub struct Section {
    /// The part's name, such as `P1`.
    pub part: &'static str,
    /// The subject of the part.
    pub title: &'static str,
    /// The workload.
    pub about: &'static str,
    /// The measured rows.
    pub rows: Vec<PeerRow>,
    /// Charts of the rows.
    pub charts: Vec<Chart>,
}

impl Section {
    /// A part, with a chart of its rows.
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

/// Largest ratio that a chart shows.
const MOST: f64 = 4.0;
/// Most bars whose names stay legible.
const WIDEST: usize = 8;

/// The result of all parts.
#[derive(Debug)]
pub struct PeerReport {
    /// The machine and the versions.
    pub machine: Machine,
    /// `quick` or `full`.
    pub size: &'static str,
    /// Rounds behind most medians.
    pub rounds: usize,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// The competitors, each with its source.
    pub allocators: Vec<(&'static str, String)>,
    /// The absent allocators, each with the reason.
    pub absent: Vec<(&'static str, String)>,
    /// The result of each part.
    pub sections: Vec<Section>,
}

impl PeerReport {
    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &PeerRow> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    /// The rows that miss their goal.
    pub fn missed(&self) -> impl Iterator<Item = &PeerRow> {
        self.rows().filter(|row| row.met == Some(false))
    }

    /// The report as JSON.
    ///
    /// # Errors
    ///
    /// No report causes an error.
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
