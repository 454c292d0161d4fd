//! A report as text for a terminal.

use std::fmt::Write;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use super::figure::with_spread;
use super::report::Report;
use super::row::{Cell, Figures, Row};

/// Narrowest table, in columns of text.
const NARROWEST: u16 = 80;

/// The whole report as text, at most `width` columns wide if possible. The missed goals come last.
pub fn text<F: Figures>(report: &Report<F>, width: u16) -> String {
    let mut text = report.head().join("\n") + "\n";
    for section in &report.sections {
        let _ = writeln!(text, "\n{}: {}", section.name, section.title);
        if let Some(source) = section.source {
            let _ = writeln!(text, "  {source}");
        }
        let _ = writeln!(text, "{}", rows(&section.rows, width));
    }
    text + "\n" + &verdict(report)
}

/// The rows without measurement and the missed goals.
pub fn verdict<F: Figures>(report: &Report<F>) -> String {
    let (mut absent, mut missed) = (String::new(), String::new());
    for section in &report.sections {
        for row in &section.rows {
            let (part, name, note) = (section.name, &row.name, &row.note);
            if !row.is_measured() {
                let _ = writeln!(absent, "not measured: {part}, {name}: {note}");
            }
            if row.met == Some(false) {
                let (unit, line, goal) = (row.unit, row.line(), &row.missed);
                let _ = write!(missed, "  {part}, {name}, {unit}: {line}; goal: {goal}");
                let _ = match note.as_str() {
                    "" => writeln!(missed),
                    note => writeln!(missed, " ({note})"),
                };
            }
        }
    }
    let goals = report.rows().filter(|row| row.met.is_some()).count();
    match report.missed().count() {
        0 => format!("{absent}All of {goals} goals are met.\n"),
        count => format!("{absent}Not met, {count} of {goals}:\n{missed}"),
    }
}

fn rows<F: Figures>(rows: &[Row<F>], width: u16) -> Table {
    let cells = |row: &Row<F>| {
        let cells = row.figures.cells().into_iter();
        cells.filter(|(_, cell)| !matches!(cell, Cell::PageOnly(_)))
    };
    let columns = rows
        .iter()
        .take(1)
        .flat_map(cells)
        .map(|(column, _)| column);
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width.max(NARROWEST))
        .set_header(
            ["", "unit"]
                .into_iter()
                .chain(columns)
                .chain(["goal", "met"]),
        );
    for row in rows {
        let name = [&row.name, row.unit].map(comfy_table::Cell::new);
        let figures = cells(row).map(|(_, cell)| shown(cell));
        let judged = [&row.goal, row.verdict()].map(comfy_table::Cell::new);
        table.add_row(name.into_iter().chain(figures).chain(judged));
    }
    table
}

fn shown(cell: Cell) -> comfy_table::Cell {
    let (text, alignment) = match cell {
        Cell::Figure(value, spread) => (with_spread(value, spread), CellAlignment::Right),
        Cell::Right(text) => (text, CellAlignment::Right),
        Cell::Words(text) | Cell::PageOnly(text) => (text, CellAlignment::Left),
    };
    comfy_table::Cell::new(text).set_alignment(alignment)
}
