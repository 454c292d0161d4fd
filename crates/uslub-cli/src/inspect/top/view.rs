//! Draws the view: three lines about the process, the table or one cache, and a line of keys.
//!
//! ```text
//!   title          name, pid, age, time between looks
//!   memory         resident and live bytes, with their trends
//!   calls          rates, or why there are no further looks
//!   heads          names of the columns; the sorted one has an arrow
//!   rows …         or the details of a cache, or the keys
//!   foot           the most important keys, or the filter
//! ```
//!
//! Below 40 columns or 8 lines there is one line only.

use super::super::glyphs::{Glyphs, right, width};
use super::app::{App, Line, Page};
use super::columns::{Column, fitting, rate};
use super::{details, pages};
use crate::units;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use std::time::Duration;

/// Smallest terminal with a table: columns and lines.
pub const SMALLEST: (u16, u16) = (40, 8);
/// Lines above the rows.
const HEAD: u16 = 4;
/// Points of a trend, on a wide terminal and on a narrow one.
const TREND: (usize, usize) = (20, 8);
/// Columns of a wide terminal.
const WIDE: usize = 100;

/// The last numbers as bars between the lowest and the highest of them.
pub fn trend(numbers: &[u64], columns: usize, glyphs: Glyphs) -> String {
    let points = if columns < WIDE { TREND.1 } else { TREND.0 };
    let numbers = &numbers[numbers.len().saturating_sub(points)..];
    let low = numbers.iter().min().copied().unwrap_or(0);
    let high = numbers.iter().max().copied().unwrap_or(0);
    glyphs.bars(numbers, low, high)
}

/// An age in its two largest units.
pub fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// As many of the parts as fit, from the first.
fn join(parts: &[String], columns: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let between = if text.is_empty() { "" } else { "  " };
        if width(&text) + between.len() + width(part) > columns {
            break;
        }
        text.push_str(between);
        text.push_str(part);
    }
    text
}

/// Draws the view.
pub fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    paint(frame.buffer_mut(), area, app);
}

/// Draws the view into a buffer.
pub fn paint(buffer: &mut Buffer, area: Rect, app: &App) {
    if area.is_empty() {
        return;
    }
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        put(buffer, area, 0, &one_line(app), Style::new());
        return;
    }
    let columns = usize::from(area.width);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    put(buffer, area, 0, &join(&title(app), columns), bold);
    put(
        buffer,
        area,
        1,
        &join(&memory(app, columns), columns),
        Style::new(),
    );
    let (text, style) = status(app, columns);
    put(buffer, area, 2, &text, style);
    match app.page {
        Page::Table | Page::Filter => table(buffer, area, app),
        Page::Details => {
            let room = usize::from(area.height - HEAD);
            lines(buffer, area, &details::text(app, columns, room));
        }
        Page::Map => lines(buffer, area, &pages::map(app, columns)),
        Page::Stacks => lines(buffer, area, &pages::stacks(app, columns)),
        Page::Doctor => {
            let room = usize::from(area.height - HEAD);
            lines(buffer, area, &pages::doctor(app, columns, room));
        }
        Page::Help => lines(buffer, area, &pages::help(app)),
    }
    let foot = foot(app, columns);
    let style = Style::new().add_modifier(Modifier::DIM);
    put(buffer, area, area.height - 1, &foot, style);
}

/// Puts a text into a line of the area.
fn put(buffer: &mut Buffer, area: Rect, line: u16, text: &str, style: Style) {
    let columns = usize::from(area.width);
    buffer.set_stringn(area.x, area.y + line, text, columns, style);
}

/// Puts texts into the lines for rows.
fn lines(buffer: &mut Buffer, area: Rect, texts: &[String]) {
    let room = usize::from(area.height.saturating_sub(HEAD));
    for (text, line) in texts.iter().take(room).zip(HEAD - 1..) {
        put(buffer, area, line, text, Style::new());
    }
}

fn title(app: &App) -> Vec<String> {
    let sample = &app.sample;
    if let Some(place) = app.position {
        let state = if app.is_paused { "" } else { "PLAYS  " };
        return vec![
            format!("uslub replay {}", sample.title),
            format!("{state}look {} of {}", place.look, place.looks),
            format!("at {}", age(sample.at)),
        ];
    }
    let mut parts = vec![
        format!("uslub top {}", app.sample.title),
        format!("up {}", age(sample.up)),
        format!("every {:.1} s", app.delay.as_secs_f64()),
        format!("look {:.1} ms", sample.took.as_secs_f64() * 1e3),
    ];
    if app.is_paused {
        parts.insert(1, "PAUSED".to_owned());
    }
    parts
}

fn memory(app: &App, columns: usize) -> Vec<String> {
    let sample = &app.sample;
    let (resident, live): (Vec<_>, Vec<_>) = app.totals.iter().copied().unzip();
    let with = |numbers: &[u64]| format!(" {}", trend(numbers, columns, app.glyphs));
    vec![
        format!(
            "resident {}{}",
            units::size(sample.resident),
            with(&resident)
        ),
        format!("live {}{}", units::size(sample.live), with(&live)),
        format!("cached {}", units::size(sample.cached)),
        format!("free slots {}", units::size(sample.free)),
        format!("kept {}", units::size(sample.kept)),
    ]
}

/// The third line: the end, the rates, and a cache that grows.
fn status(app: &App, columns: usize) -> (String, Style) {
    if let Some(why) = &app.ended {
        let text = format!("{}: {why}; this was the last look", app.sample.title);
        let style = Style::new()
            .fg(Color::Red)
            .add_modifier(Modifier::BOLD | Modifier::REVERSED);
        return (app.glyphs.fit(&text, columns), style);
    }
    let mut parts: Vec<_> = app.note.iter().cloned().collect();
    match app.rates {
        Some((allocs, frees)) => {
            parts.push(format!("{} allocs/s", rate(allocs)));
            parts.push(format!("{} frees/s", rate(frees)));
        }
        None => parts.push("rates after the second look".to_owned()),
    }
    let shown = app.shown().len();
    let all = app.lines.len();
    parts.push(match app.filter.as_str() {
        "" => format!("{all} {}", units::plural(all as u64, "cache", "caches")),
        filter => format!("{shown} of {all} caches have '{filter}'"),
    });
    let mut growing: Vec<_> = app.lines.iter().filter(|line| line.rises).collect();
    growing.sort_by(|a, b| Column::Growth.compare(a, b));
    let mut style = Style::new();
    if let Some(first) = growing.first() {
        parts.push(format!(
            "{} grows: {}/s",
            first.entry.key.name,
            super::columns::change(first.growth.unwrap_or(0.0))
        ));
        if app.position.is_none() {
            parts.push("d: why".to_owned());
        }
        style = style.fg(Color::Yellow);
    }
    (join(&parts, columns), style)
}

/// The mark of the sorted column.
fn arrow(app: &App) -> &'static str {
    match (app.glyphs, app.is_reversed) {
        (Glyphs::Unicode, false) => "▾",
        (Glyphs::Unicode, true) => "▴",
        (Glyphs::Ascii, false) => "v",
        (Glyphs::Ascii, true) => "^",
    }
}

/// The heads of the columns.
pub fn heads(app: &App, columns: &[Column], name: usize) -> String {
    let mut text = String::new();
    for &column in columns {
        let mark = if column == app.sort { arrow(app) } else { "" };
        let head = format!("{}{mark}", column.name().to_uppercase());
        match column {
            Column::Cache => text.push_str(&app.glyphs.fit(&head, name)),
            _ => {
                text.push(' ');
                text.push_str(&right(&head, column.width()));
            }
        }
    }
    text
}

/// The text of a row.
pub fn row(app: &App, line: &Line, columns: &[Column], name: usize) -> String {
    let mut text = String::new();
    for &column in columns {
        let cell = column.text(line);
        match column {
            Column::Cache => text.push_str(&app.glyphs.fit(&cell, name)),
            _ => {
                text.push(' ');
                text.push_str(&right(&cell, column.width()));
            }
        }
    }
    text
}

/// The columns for a width, and the width of the names.
pub fn columns_of(app: &App, columns: usize) -> (Vec<Column>, usize) {
    let names = app.lines.iter().map(|line| width(&line.entry.key.name));
    fitting(columns, app.sort, names.max().unwrap_or(0))
}

fn table(buffer: &mut Buffer, area: Rect, app: &App) {
    let (columns, name) = columns_of(app, area.width.into());
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let whole = |text: &str| app.glyphs.fit(text, area.width.into());
    put(
        buffer,
        area,
        HEAD - 1,
        &whole(&heads(app, &columns, name)),
        reversed,
    );
    let shown = app.shown();
    let room = usize::from(area.height - HEAD - 1);
    let cursor = app.cursor(&shown);
    let first = cursor.map_or(0, |cursor| (cursor + 1).saturating_sub(room));
    let rows = shown.iter().enumerate().skip(first).take(room);
    for ((place, line), at) in rows.zip(HEAD..) {
        let mut style = Style::new();
        if line.rises {
            style = style.fg(Color::Yellow);
        }
        if cursor == Some(place) {
            style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
        }
        put(
            buffer,
            area,
            at,
            &whole(&row(app, line, &columns, name)),
            style,
        );
    }
    if shown.is_empty() && !app.lines.is_empty() {
        let text = format!("no cache has '{}' in its name", app.filter);
        put(buffer, area, HEAD, &text, Style::new());
    }
}

/// The last line.
fn foot(app: &App, columns: usize) -> String {
    if app.ended.is_some() {
        return String::new();
    }
    let keys: &[&str] = match app.page {
        Page::Filter => {
            let text = format!("filter: {}_  enter keeps it, esc drops it", app.filter);
            return app.glyphs.fit(&text, columns);
        }
        Page::Help => &["any key: back"],
        Page::Details | Page::Map | Page::Stacks => {
            &["esc back", "up/down other cache", "space pause", "q quit"]
        }
        Page::Doctor => &["esc back", "d again", "up/down scroll", "q quit"],
        Page::Table if app.position.is_some() => &[
            "q quit",
            "left/right step",
            "[ ] leap",
            "space play",
            "? keys",
            "< > sort",
            "/ filter",
            "enter details",
        ],
        Page::Table => &[
            "q quit",
            "? keys",
            "/ filter",
            "m map",
            "d doctor",
            "s stacks",
            "w write",
            "enter details",
            "< > sort",
            "r reverse",
            "space pause",
        ],
    };
    let keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
    join(&keys, columns)
}

/// The view in one line, for a terminal without room.
fn one_line(app: &App) -> String {
    if let Some(why) = &app.ended {
        return format!("{}: {why}", app.sample.title);
    }
    let rates = app.rates.map_or_else(String::new, |(allocs, _)| {
        format!(", {} allocs/s", rate(allocs))
    });
    format!(
        "{} live of {}{rates}",
        units::size(app.sample.live),
        units::size(app.sample.resident)
    )
}

/// The lines of a buffer as text, without blanks at their ends.
pub fn text_of(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let cells = (area.left()..area.right()).filter_map(|x| buffer.cell((x, y)));
        let line: String = cells.map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
