//! A report as one self-contained HTML page.

use std::fmt::Write;

use super::chart::Chart;
use super::figure::{optional, spread_of};
use super::report::{Report, Section, Words};
use super::row::{Cell, Figures, Row};

/// The whole page of a report.
pub fn html<F: Figures>(report: &Report<F>) -> String {
    let title = report.title;
    let mut body = format!("<header><h1>{title}</h1>");
    for line in report.head() {
        let _ = write!(body, "<p>{}</p>", escape(&line));
    }
    body.push_str("<ul class=\"summary\">");
    for section in &report.sections {
        push_summary(&mut body, section);
    }
    body.push_str("</ul></header>");
    for section in &report.sections {
        push_section(&mut body, section);
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title>\
         <style>{}</style></head><body>{body}</body></html>\n",
        include_str!("style.css")
    )
}

/// Appends a section's line in the summary: the number of met goals.
fn push_summary<F>(body: &mut String, section: &Section<F>) {
    let met = section.rows.iter().filter_map(|row| row.met);
    let (goals, reached) = (met.clone().count(), met.filter(|met| *met).count());
    let class = if goals == reached { "yes" } else { "no" };
    let _ = write!(
        body,
        "<li><a href=\"#{}\"><b>{}</b> {}</a> <span class=\"{class}\">{reached} of {goals} goals met</span></li>",
        id(section),
        section.name,
        escape(section.title)
    );
}

fn id<F>(section: &Section<F>) -> String {
    section.name.replace(' ', "")
}

fn push_section<F: Figures>(body: &mut String, section: &Section<F>) {
    let (id, name, title) = (id(section), section.name, escape(section.title));
    let _ = write!(body, "<section id=\"{id}\"><h2>{name}: {title}</h2>");
    if let Some(source) = section.source {
        let _ = write!(body, "<p class=\"source\">{}</p>", escape(source));
    }
    let about = [section.about, &section.workload];
    for paragraph in about.iter().filter(|about| !about.is_empty()) {
        let _ = write!(body, "<p>{}</p>", escape(paragraph));
    }
    body.push_str("<div class=\"charts\">");
    for chart in &section.charts {
        push_chart(body, chart);
    }
    body.push_str("</div>");
    push_rows(body, &section.rows);
    if let Some(own) = &section.own {
        push_own(body, own);
    }
    body.push_str("</section>");
}

/// Appends a chart with its title and legend.
fn push_chart(body: &mut String, chart: &Chart) {
    let _ = write!(
        body,
        "<figure><figcaption>{}</figcaption><p class=\"legend\">",
        escape(&chart.title)
    );
    for (i, name) in chart.legend().enumerate() {
        let _ = write!(body, "<span><i class=\"s{i}\"></i>{}</span>", escape(name));
    }
    let _ = write!(body, "</p>{}</figure>", chart.svg());
}

fn push_rows<F: Figures>(body: &mut String, rows: &[Row<F>]) {
    let lines: Vec<_> = rows.iter().map(|row| row.figures.cells()).collect();
    let is_used = |column: &&str| {
        let mut cells = lines.iter().flatten();
        cells.any(|(name, cell)| name == column && !html_of(cell).is_empty())
    };
    let columns = lines.iter().take(1).flatten().map(|(column, _)| *column);
    let columns: Vec<_> = columns.filter(is_used).collect();
    body.push_str("<table class=\"rows\">");
    push_head(body, [""].iter().chain(&columns).chain(&["goal", "met"]));
    for (row, cells) in rows.iter().zip(&lines) {
        let (name, unit) = (escape(&row.name), escape(row.unit));
        let note = match row.note.as_str() {
            "" => String::new(),
            note => format!("<small>{}</small>", escape(note)),
        };
        let _ = write!(
            body,
            "<tr><th scope=\"row\">{name} <small>{unit}</small>{note}</th>"
        );
        for (column, cell) in cells.iter().filter(|(column, _)| columns.contains(column)) {
            let _ = write!(body, "<td data-name=\"{column}\">{}</td>", html_of(cell));
        }
        let _ = write!(
            body,
            "<td data-name=\"goal\">{}</td><td data-name=\"met\"><span class=\"{1}\">{1}</span></td></tr>",
            escape(&row.goal),
            row.verdict()
        );
    }
    body.push_str("</tbody></table>");
}

/// A cell; minimum and maximum are in smaller type.
fn html_of(cell: &Cell) -> String {
    match cell {
        Cell::Figure(value, spread) => match spread_of(*value, *spread) {
            Some(spread) => format!("{} <small>{spread}</small>", optional(*value)),
            None => optional(*value),
        },
        Cell::Right(text) | Cell::Words(text) | Cell::PageOnly(text) => escape(text),
    }
}

fn push_own(body: &mut String, own: &Words) {
    body.push_str("<details><summary>What the thread itself reported</summary><table>");
    push_head(body, &own.head);
    for row in &own.rows {
        body.push_str("<tr>");
        for cell in row {
            let _ = write!(body, "<td>{}</td>", escape(cell));
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table></details>");
}

/// Appends the head of a table, up to its first line.
fn push_head(body: &mut String, names: impl IntoIterator<Item = impl AsRef<str>>) {
    body.push_str("<thead><tr>");
    for name in names {
        let _ = write!(body, "<th>{}</th>", escape(name.as_ref()));
    }
    body.push_str("</tr></thead><tbody>");
}

/// Text with HTML's special characters escaped.
fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
