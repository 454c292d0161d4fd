//! A report as a table.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::run::Figures;
use crate::sweep::{Point, Report};

/// A number with three digits that count.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.001 => 3,
        _ => 5,
    };
    format!("{value:.digits$}")
}

/// Head and value of a column.
type Column = (&'static str, fn(&Figures) -> f64);

const COLUMNS: [Column; 12] = [
    ("M ops/s", |f| f.rate),
    ("ns/op", |f| f.ns),
    ("list wait %", |f| f.list_wait),
    ("barn wait %", |f| f.barn_wait),
    ("other wait %", |f| f.other_wait),
    ("list locks/op", |f| f.list_locks),
    ("lines/op", |f| f.lines),
    ("remote/op", |f| f.remote_lines),
    ("slow frees/op", |f| f.slow_frees),
    ("churn/M", |f| f.churn),
    ("cached KiB", |f| f.cached as f64 / 1024.0),
    ("slabs MiB", |f| f.slabs as f64 / 1_048_576.0),
];

/// The settings of a point, as a name.
pub fn name_of(point: &Point) -> String {
    match point.settings.as_slice() {
        [] => "as it is".to_owned(),
        settings => settings.join(" "),
    }
}

/// A report as text, one line for each experiment.
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let heads = COLUMNS.iter().map(|(head, _)| *head);
    table.set_header(["settings", "nodes", "CPUs"].into_iter().chain(heads));
    for point in &report.points {
        let mut row = vec![
            name_of(point),
            point.nodes.to_string(),
            point.cpus.to_string(),
        ];
        row.extend(
            COLUMNS
                .iter()
                .map(|(_, value)| short(value(&point.figures))),
        );
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let texts = [0.0, 0.0123, 1.2345, 12.345, 1234.5].map(short);
        assert_eq!(texts, ["0", "0.012", "1.23", "12.3", "1234"]);
    }
}
