//! One part of the comparison: its rows, and a chart of their ratios.

use super::row::{Against, PeerRow};
use crate::output::{self, Chart};

/// The result of one part.
pub type Section = output::Section<Against>;

/// Largest ratio that a chart shows.
const MOST: f64 = 4.0;
/// Most bars whose names stay legible.
const WIDEST: usize = 8;

impl Section {
    /// A part, with a chart of its rows.
    pub fn new(
        name: &'static str,
        title: &'static str,
        about: &'static str,
        rows: Vec<PeerRow>,
    ) -> Self {
        let ratios = rows
            .iter()
            .filter_map(|row| Some((&row.name, row.figures.ratio?)));
        let (names, ratios): (Vec<_>, Vec<_>) = ratios
            .map(|(name, ratio)| (name.clone(), ratio.min(MOST)))
            .unzip();
        let mut charts = Vec::new();
        if ratios.len() <= WIDEST {
            let chart = Chart::bars("uslub to the best peer", "ratio", names);
            charts.push(chart.with("below 1 is better", ratios));
        }
        Self {
            name,
            title,
            source: None,
            about,
            workload: String::new(),
            own: None,
            rows,
            charts,
        }
    }
}
