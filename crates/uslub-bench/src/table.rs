//! A report as text for a terminal.

use std::fmt::Write;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use crate::goal::signed;
use crate::report::Report;
use crate::row::Row;

/// Narrowest table, in columns of text.
pub const NARROWEST: u16 = 80;

/// The whole report as text, at most `width` columns wide if possible. The missed goals come last.
pub fn text(report: &Report, width: u16) -> String {
    let mut text = head(report);
    for seed in &report.seeds {
        let _ = writeln!(text, "\nSeed {}: {}", seed.seed, seed.title);
        let _ = writeln!(text, "  {}", seed.source);
        let _ = writeln!(text, "{}", rows(&seed.rows, width));
    }
    text.push('\n');
    text.push_str(&verdict(report));
    text
}

/// The machine and the versions.
pub fn head(report: &Report) -> String {
    let machine = &report.machine;
    format!(
        "{}, {} CPUs; Linux {}; {}; uslub {}, {} build\n\
         {} run, {:.0} s; medians of {} rounds in turn (least … greatest); absolute times are for the reader\n\
         {}\n",
        machine.machine,
        machine.cpus,
        machine.kernel,
        machine.mode,
        machine.versions.uslub,
        machine.versions.build,
        report.size,
        report.seconds,
        report.rounds,
        machine.pace,
    )
}

/// The rows without measurement and the missed goals.
pub fn verdict(report: &Report) -> String {
    let mut text = String::new();
    for row in report.absent() {
        let _ = writeln!(
            text,
            "not measured: seed {}, {}: {}",
            row.seed, row.name, row.note
        );
    }
    let with_goal = report.rows().filter(|row| row.met.is_some()).count();
    let missed: Vec<_> = report.missed().collect();
    if missed.is_empty() {
        let _ = writeln!(text, "All of {with_goal} goals are met.");
        return text;
    }
    let _ = writeln!(text, "Not met, {} of {with_goal}:", missed.len());
    for row in missed {
        let _ = writeln!(
            text,
            "  seed {}, {}: {} → {} {}, {}; goal: {}{}",
            row.seed,
            row.name,
            optional(row.old),
            optional(row.new),
            row.unit,
            change(row),
            row.missed,
            match row.note.as_str() {
                "" => String::new(),
                note => format!(" ({note})"),
            }
        );
    }
    text
}

fn rows(rows: &[Row], width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width.max(NARROWEST))
        .set_header([
            "", "unit", "old", "new", "change", "reported", "goal", "met",
        ]);
    for row in rows {
        table.add_row([
            Cell::new(&row.name),
            Cell::new(row.unit),
            right(with_spread(row.old, row.old_spread)),
            right(with_spread(row.new, row.new_spread)),
            right(change(row)),
            Cell::new(&row.reported),
            Cell::new(&row.goal),
            Cell::new(met(row)),
        ]);
    }
    table
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Whether a row's goal is met, in one word.
pub fn met(row: &Row) -> &'static str {
    verdict_of(row.met)
}

/// Whether a goal is met, in one word; empty without a goal.
pub fn verdict_of(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    }
}

/// The change of a row in per cent: the change that the goal is about.
pub fn change(row: &Row) -> String {
    match row.change_by_rounds.or(row.change) {
        // A multiple is easier to read than a large percentage.
        Some(change) if change > 400.0 => format!("× {}", figure(change / 100.0 + 1.0)),
        Some(change) => format!("{} %", signed(change)),
        None => "–".to_owned(),
    }
}

/// A value, followed by minimum and maximum if they are known and differ.
pub fn with_spread(value: Option<f64>, spread: Option<[f64; 2]>) -> String {
    match (value, spread) {
        (Some(value), Some([least, greatest])) if least < greatest => {
            format!(
                "{} ({} … {})",
                figure(value),
                figure(least),
                figure(greatest)
            )
        }
        (value, _) => optional(value),
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), figure)
}

/// A number with an appropriate number of digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => grouped(value.round() as i64),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        v if v >= 0.005 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

fn grouped(number: i64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_they_deserve() {
        let figures = [0.0, 0.4567, 1.5, 12.34, 123.4, 1234.4, 1_234_567.0].map(figure);
        assert_eq!(
            figures,
            [
                "0",
                "0.46",
                "1.50",
                "12.3",
                "123",
                "1\u{202f}234",
                "1\u{202f}234\u{202f}567"
            ]
        );
    }

    #[test]
    fn a_spread_is_shown_where_there_is_one() {
        assert_eq!(
            with_spread(Some(1.0), Some([0.5, 2.0])),
            "1.00 (0.50 … 2.00)"
        );
        assert_eq!(with_spread(Some(1.0), Some([1.0, 1.0])), "1.00");
        assert_eq!(with_spread(None, None), "–");
    }
}
