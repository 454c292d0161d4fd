//! The view as plain lines, for a pipe or a file.

use super::super::glyphs;
use super::app::App;
use super::columns::{COLUMNS, rate};
use super::view;
use crate::units;
use std::fmt::Write;

/// One look as lines. Every column is there, whatever the width.
pub fn text(app: &App) -> String {
    let sample = &app.sample;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: up {}, resident {}, live {}, cached {}, free slots {}, kept {}",
        app.sample.title,
        view::age(sample.up),
        units::size(sample.resident),
        units::size(sample.live),
        units::size(sample.cached),
        units::size(sample.free),
        units::size(sample.kept),
    );
    if let Some((allocs, frees)) = app.rates {
        let _ = writeln!(out, "{} allocs/s, {} frees/s", rate(allocs), rate(frees));
    }
    let shown = app.shown();
    let names = shown.iter().map(|line| glyphs::width(&line.entry.key.name));
    let name = names.max().unwrap_or(0).max(12);
    let _ = writeln!(out, "{}", view::heads(app, &COLUMNS, name));
    for line in shown {
        let _ = writeln!(out, "{}", view::row(app, line, &COLUMNS, name));
    }
    out
}
