//! A report as one HTML page with curves over the number of CPUs.

use std::fmt::Write;

use plotters::prelude::*;

use crate::output::{name_of, short};
use crate::run::Figures;
use crate::sweep::{Point, Report};

/// Width and height of a chart.
const SIZE: (u32, u32) = (560, 320);
/// Colours of the series; further series begin again.
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 69, 65),
    RGBColor(44, 140, 60),
    RGBColor(148, 103, 189),
    RGBColor(200, 130, 0),
    RGBColor(0, 150, 160),
    RGBColor(120, 90, 70),
    RGBColor(110, 110, 110),
];
/// A chart: title, and the value.
type Chart = (&'static str, fn(&Figures) -> f64);

const CHARTS: [Chart; 6] = [
    ("Throughput, million operations a second", |f| f.rate),
    ("Cost of an operation, ns of CPU time", |f| f.ns),
    ("Waiting for list locks, % of CPU time", |f| f.list_wait),
    ("Lines moved between CPUs, an operation", |f| f.lines),
    ("Objects in sheaves, KiB", |f| f.cached as f64 / 1024.0),
    ("Slabs taken and returned, in a million operations", |f| {
        f.churn
    }),
];

/// Points of one curve.
struct Series {
    name: String,
    points: Vec<Point>,
}

fn series_of(report: &Report) -> Vec<Series> {
    let several_nodes = report
        .points
        .iter()
        .any(|p| p.nodes != report.points[0].nodes);
    let mut all: Vec<Series> = Vec::new();
    for point in &report.points {
        let mut name = name_of(point);
        if several_nodes {
            let _ = write!(name, ", {} nodes", point.nodes);
        }
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point.clone()),
            None => all.push(Series {
                name,
                points: vec![point.clone()],
            }),
        }
    }
    all
}

/// A chart as an `svg` element; empty if it cannot be drawn.
fn chart(series: &[Series], value: fn(&Figures) -> f64) -> String {
    let mut text = String::new();
    let drawn = draw(&mut text, series, value);
    drawn.map_or(String::new(), |()| text)
}

fn draw(text: &mut String, series: &[Series], value: fn(&Figures) -> f64) -> Option<()> {
    let points = || series.iter().flat_map(|s| &s.points);
    let most = points().map(|p| value(&p.figures)).fold(0.0, f64::max);
    let first = (points().map(|p| p.cpus).min()? as f64).log2();
    let last = (points().map(|p| p.cpus).max()? as f64).log2();
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    let across = first - 0.1..last.max(first + 1.0) + 0.1;
    let mut context = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(across, 0.0..(most * 1.08).max(1e-9))
        .ok()?;
    let number = |log: &f64| format!("{:.0}", log.exp2());
    let mut mesh = context.configure_mesh();
    mesh.x_desc("CPUs").x_labels(10).x_label_formatter(&number);
    mesh.y_label_formatter(&|v| short(*v))
        .light_line_style(TRANSPARENT);
    mesh.draw().ok()?;
    for (i, one) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let at = |p: &Point| ((p.cpus as f64).log2(), value(&p.figures));
        let line = LineSeries::new(one.points.iter().map(at), colour.stroke_width(2));
        context.draw_series(line).ok()?;
        let dots = one
            .points
            .iter()
            .map(|p| Circle::new(at(p), 3, colour.filled()));
        context.draw_series(dots).ok()?;
    }
    drop(context);
    area.present().ok()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The whole page.
pub fn html(report: &Report) -> String {
    let kind = format!("{:?}", report.workload).to_lowercase();
    let title = format!("uslub sim: {kind}");
    let mut body = format!(
        "<h1>{title}</h1><p>Virtual time, seed {}, {} ms. Costs in ns: ",
        report.seed,
        report.run_us as f64 / 1e3
    );
    for (name, value) in report.costs.values() {
        let _ = write!(body, "{name} {}; ", short(value));
    }
    body.push_str("</p><p>");
    let series = series_of(report);
    for (i, one) in series.iter().enumerate() {
        let RGBColor(r, g, b) = COLOURS[i % COLOURS.len()];
        let _ = write!(
            body,
            "<span style=\"color:rgb({r},{g},{b})\">&#9632;</span> {} ",
            escape(&one.name)
        );
    }
    body.push_str("</p><div>");
    for (title, value) in CHARTS {
        let svg = chart(&series, value);
        let _ = write!(
            body,
            "<figure><figcaption>{title}</figcaption>{svg}</figure>"
        );
    }
    let table = escape(&crate::output::table(report));
    let _ = write!(body, "</div><pre>{table}</pre>");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>\
         body{{font:15px sans-serif;margin:2em;max-width:1240px;background:#fff;color:#111}}\
         figure{{display:inline-block;margin:0 1em 1em 0}}figcaption{{font-weight:bold}}\
         pre{{font-size:12px;overflow-x:auto}}</style></head><body>{body}</body></html>\n"
    )
}
