//! A comparison as text for a terminal.

use std::fmt::Write;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use super::report::PeerReport;
use super::row::PeerRow;
use crate::floor::ABOUT;
use crate::table::{NARROWEST, figure, with_spread};

/// The whole report as text, at most `width` columns wide if possible. The missed goals come last.
pub fn text(report: &PeerReport, width: u16) -> String {
    let mut text = head(report);
    for section in &report.sections {
        let _ = writeln!(text, "\n{}: {}", section.part, section.title);
        let _ = writeln!(text, "{}", rows(&section.rows, width));
    }
    text.push('\n');
    text.push_str(&verdict(report));
    text
}

fn head(report: &PeerReport) -> String {
    let machine = &report.machine;
    let names: Vec<_> = report.allocators.iter().map(|(name, _)| *name).collect();
    let mut text = format!(
        "{}, {} CPUs; Linux {}; {}; uslub {}, {} build\n{} run, {:.0} s; medians of rounds in turn (least … greatest); \
         ratios are of runs of one round\n{}\nallocators: {}\n{ABOUT}\n",
        machine.machine,
        machine.cpus,
        machine.kernel,
        machine.mode,
        machine.versions.uslub,
        machine.versions.build,
        report.size,
        report.seconds,
        machine.pace,
        names.join(", ")
    );
    for (name, why) in &report.absent {
        let _ = writeln!(text, "left out: {name}: {why}");
    }
    text
}

/// The rows without measurement and the missed goals.
pub fn verdict(report: &PeerReport) -> String {
    let mut text = String::new();
    for row in report.rows().filter(|row| row.ours.is_none()) {
        let _ = writeln!(
            text,
            "not measured: {}, {}: {}",
            row.part, row.name, row.note
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
            "  {}, {}: {} {}, {}{}; goal: {}",
            row.part,
            row.name,
            row.ours.map_or_else(String::new, figure),
            row.unit,
            best(row),
            row.floor
                .map_or_else(String::new, |floor| format!(", floor {}", figure(floor))),
            row.missed
        );
    }
    text
}

/// The best peer's figure, in words.
pub fn best(row: &PeerRow) -> String {
    match (row.best, row.best_name) {
        (Some(figure_of), Some(name)) => format!("{} {name}", figure(figure_of)),
        _ => "–".to_owned(),
    }
}

/// The floor's figure, in words.
pub fn floor(row: &PeerRow) -> String {
    row.floor.map_or_else(|| "–".to_owned(), figure)
}

fn rows(rows: &[PeerRow], width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width.max(NARROWEST))
        .set_header([
            "",
            "unit",
            "uslub",
            "floor",
            "best peer",
            "ratio",
            "goal",
            "met",
        ]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for row in rows {
        table.add_row([
            Cell::new(&row.name),
            Cell::new(row.unit),
            right(with_spread(row.ours, row.ours_spread)),
            right(floor(row)),
            right(best(row)),
            right(with_spread(row.ratio, row.ratio_spread)),
            Cell::new(&row.goal),
            Cell::new(crate::table::verdict_of(row.met)),
        ]);
    }
    table
}
