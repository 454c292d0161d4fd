//! A comparison as one self-contained HTML page.

use std::fmt::Write;

use super::report::{PeerReport, Section};
use super::row::PeerRow;
use super::table::{best, floor};
use crate::floor::ABOUT;
use crate::page::{document, escape, push_chart, spread_cell};
use crate::table::{figure, verdict_of};

/// The whole page of a comparison.
pub fn html(report: &PeerReport) -> String {
    const TITLE: &str = "uslub beside other allocators";
    let machine = &report.machine;
    let mut body = String::new();
    let names: Vec<_> = report.allocators.iter().map(|(name, _)| *name).collect();
    let _ = write!(
        body,
        "<header><h1>{TITLE}</h1><p>{} · {} CPUs · Linux {} · per-CPU slots by {} · uslub {} ({} build)</p>\
         <p>A {} run of {:.0} seconds; allocators: {}. Each figure is a median of rounds in which all take turns; least \
         and greatest are beside it. A ratio is of two runs of one round, to the best of the others. {ABOUT}. Here {}.</p>",
        escape(&machine.machine),
        machine.cpus,
        escape(&machine.kernel),
        machine.mode,
        machine.versions.uslub,
        machine.versions.build,
        report.size,
        report.seconds,
        escape(&names.join(", ")),
        machine.pace,
    );
    for (name, why) in &report.absent {
        let _ = write!(body, "<p>Left out: {}: {}</p>", escape(name), escape(why));
    }
    body.push_str("<ul class=\"summary\">");
    for section in &report.sections {
        let goals = section.rows.iter().filter(|row| row.met.is_some()).count();
        let reached = section
            .rows
            .iter()
            .filter(|row| row.met == Some(true))
            .count();
        let class = verdict_of(Some(goals == reached));
        let _ = write!(
            body,
            "<li><a href=\"#{0}\"><b>{0}</b> {1}</a> <span class=\"{class}\">{reached} of {goals} goals met</span></li>",
            section.part,
            escape(section.title)
        );
    }
    body.push_str("</ul></header>");
    report
        .sections
        .iter()
        .for_each(|section| push_section(&mut body, section));
    document(TITLE, &body)
}

fn push_section(body: &mut String, section: &Section) {
    let _ = write!(
        body,
        "<section id=\"{0}\"><h2>{0}: {1}</h2><p>{2}</p><div class=\"charts\">",
        section.part,
        escape(section.title),
        escape(section.about)
    );
    section
        .charts
        .iter()
        .for_each(|chart| push_chart(body, chart));
    body.push_str("</div><table class=\"rows\"><thead><tr>");
    for name in [
        "",
        "uslub",
        "floor",
        "best peer",
        "ratio",
        "all",
        "goal",
        "met",
    ] {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead><tbody>");
    section.rows.iter().for_each(|row| push_row(body, row));
    body.push_str("</tbody></table></section>");
}

fn push_row(body: &mut String, row: &PeerRow) {
    let note = match row.note.as_str() {
        "" => String::new(),
        note => format!("<small>{}</small>", escape(note)),
    };
    let _ = write!(
        body,
        "<tr><th scope=\"row\">{} <small>{}</small>{note}</th>",
        escape(&row.name),
        escape(row.unit)
    );
    let all: Vec<_> = (row.peers.iter())
        .map(|(name, value)| format!("{name} {}", figure(*value)))
        .collect();
    let cells = [
        ("uslub", spread_cell(row.ours, row.ours_spread)),
        ("floor", escape(&floor(row))),
        ("best peer", escape(&best(row))),
        ("ratio", spread_cell(row.ratio, row.ratio_spread)),
        ("all", format!("<small>{}</small>", escape(&all.join(", ")))),
        ("goal", escape(&row.goal)),
        (
            "met",
            format!("<span class=\"{0}\">{0}</span>", verdict_of(row.met)),
        ),
    ];
    for (name, cell) in cells {
        let _ = write!(body, "<td data-name=\"{name}\">{cell}</td>");
    }
    body.push_str("</tr>");
}
