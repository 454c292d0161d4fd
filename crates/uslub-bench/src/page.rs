//! A report as one self-contained HTML page.

use std::fmt::Write;

use crate::chart::Chart;
use crate::report::{Report, SeedReport, Table};
use crate::row::Row;
use crate::table::{change, met, with_spread};

/// The whole page of a report.
pub fn html(report: &Report) -> String {
    let mut body = String::new();
    let machine = &report.machine;
    let _ = write!(
        body,
        "<header><h1>uslub: five threads, old against new</h1>\
         <p>{} · {} CPUs · Linux {} · per-CPU slots by {} · uslub {} ({} build)</p>\
         <p>A {} run of {:.0} seconds. Each figure is the median of {} rounds in which all competitors take turns; least and \
         greatest are beside it. Absolute times are for the reader; what is judged are ratios inside one run, \
         and what is stated in nanoseconds: here {}.</p>{}</header>",
        escape(&machine.machine),
        machine.cpus,
        escape(&machine.kernel),
        machine.mode,
        machine.versions.uslub,
        machine.versions.build,
        report.size,
        report.seconds,
        report.rounds,
        machine.pace,
        summary(report)
    );
    for seed in &report.seeds {
        push_seed(&mut body, seed);
    }
    document("uslub: five threads, old against new", &body)
}

/// An HTML document with this title and body.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title>\
         <style>{}</style></head><body>{body}</body></html>\n",
        include_str!("page/style.css")
    )
}

/// A line for each seed: the number of met goals.
fn summary(report: &Report) -> String {
    let mut list = String::from("<ul class=\"summary\">");
    for seed in &report.seeds {
        let goals = seed.rows.iter().filter(|row| row.met.is_some()).count();
        let reached = seed.rows.iter().filter(|row| row.met == Some(true)).count();
        let class = if goals == reached { "yes" } else { "no" };
        let _ = write!(
            list,
            "<li><a href=\"#seed{0}\"><b>Seed {0}</b> {1}</a> <span class=\"{class}\">{reached} of {goals} goals met</span></li>",
            seed.seed,
            escape(seed.title)
        );
    }
    list.push_str("</ul>");
    list
}

fn push_seed(body: &mut String, seed: &SeedReport) {
    let _ = write!(
        body,
        "<section id=\"seed{0}\"><h2>Seed {0}: {1}</h2><p class=\"source\">{2}</p><p>{3}</p><p>{4}</p>",
        seed.seed,
        escape(seed.title),
        escape(seed.source),
        escape(seed.about),
        escape(&seed.workload)
    );
    body.push_str("<div class=\"charts\">");
    seed.charts.iter().for_each(|chart| push_chart(body, chart));
    body.push_str("</div>");
    push_rows(body, &seed.rows);
    push_own(body, &seed.own);
    body.push_str("</section>");
}

/// Appends a chart with its title and legend.
pub fn push_chart(body: &mut String, chart: &Chart) {
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

fn push_rows(body: &mut String, rows: &[Row]) {
    let with_kernel = rows.iter().any(|row| row.kernel.is_some());
    let mut head = vec!["", "old", "new", "change", "reported", "goal", "met"];
    if with_kernel {
        head.insert(4, "Linux 7.2.12");
    }
    body.push_str("<table class=\"rows\"><thead><tr>");
    head.iter().for_each(|name| {
        let _ = write!(body, "<th>{name}</th>");
    });
    body.push_str("</tr></thead><tbody>");
    for row in rows {
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
        let mut cells = vec![
            ("old", spread_cell(row.old, row.old_spread)),
            ("new", spread_cell(row.new, row.new_spread)),
            ("change", change(row)),
            ("reported", escape(&row.reported)),
            ("goal", escape(&row.goal)),
            ("met", format!("<span class=\"{0}\">{0}</span>", met(row))),
        ];
        if with_kernel {
            let kernel = row.kernel.map_or_else(String::new, |ns| format!("{ns} ns"));
            cells.insert(3, ("kernel", kernel));
        }
        for (name, cell) in cells {
            let _ = write!(body, "<td data-name=\"{name}\">{cell}</td>");
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table>");
}

/// A table cell with a value and its spread in smaller type.
pub fn spread_cell(value: Option<f64>, spread: Option<[f64; 2]>) -> String {
    let text = with_spread(value, spread);
    match text.split_once(" (") {
        Some((value, spread)) => {
            let spread = spread.trim_end_matches(')');
            format!("{value} <small>{spread}</small>")
        }
        None => text,
    }
}

fn push_own(body: &mut String, table: &Table) {
    body.push_str("<details><summary>What the thread itself reported</summary><table><thead><tr>");
    for name in &table.head {
        let _ = write!(body, "<th>{}</th>", escape(name));
    }
    body.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        body.push_str("<tr>");
        for cell in row {
            let _ = write!(body, "<td>{}</td>", escape(cell));
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table></details>");
}

/// Text with HTML's special characters escaped.
pub fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
