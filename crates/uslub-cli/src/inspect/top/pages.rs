//! The pages besides the table: the slabs of a cache, its stacks, what is wrong, the keys.

use super::super::glyphs::Glyphs;
use super::super::map::one;
use super::app::{App, Check};
use crate::width::wrap;

/// A text in lines of at most `columns`.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let words: Vec<_> = text.split(' ').collect();
    let text = wrap(&words, " ", 0, columns);
    text.lines().map(str::to_owned).collect()
}

/// The slabs of a cache by live slots, as `uslub map` shows them.
pub fn map(app: &App, columns: usize) -> Vec<String> {
    let Some(key) = app.detail() else {
        return Vec::new();
    };
    let detail = app.sample.detail.as_ref();
    let Some(detail) = detail.filter(|detail| detail.key == *key) else {
        let text = match key.index {
            0 => "large objects are runs of pages: they have no slabs".to_owned(),
            _ => format!("cache '{}' has no slab any more", key.name),
        };
        return wrapped(&text, columns);
    };
    let text = one(&detail.fullness, columns, app.glyphs);
    text.lines().map(str::to_owned).collect()
}

/// How the stacks that allocated the objects of a cache are found. A process that was not started
/// for that has none.
pub fn stacks(app: &App, columns: usize) -> Vec<String> {
    let Some(key) = app.detail() else {
        return Vec::new();
    };
    let name = &key.name;
    let mut lines = vec![format!("cache '{name}'")];
    lines.extend(wrapped(
        "No stacks: nothing records them while a program runs normally.",
        columns,
    ));
    lines.push(String::new());
    lines.extend(wrapped("Who holds the objects can be seen now:", columns));
    let pid = app.sample.pid;
    lines.push(format!("  uslub list {pid} '{name}'"));
    lines.push(format!("  uslub holders {pid} ADDRESS"));
    if key.index != 0 {
        lines.extend(wrapped(
            "At the end of its next run, who allocated the live ones:",
            columns,
        ));
        lines.extend(wrapped(
            &format!("uslub run --debug U,{name} --set slab_debug_leaks=1 -- PROGRAM"),
            columns,
        ));
    }
    lines
}

/// What is wrong, as `uslub doctor` says it; at most `room` lines.
pub fn doctor(app: &App, columns: usize, room: usize) -> Vec<String> {
    let text = match &app.check {
        Check::NotYet => String::new(),
        Check::Runs => "looking at the process for three seconds".to_owned(),
        Check::Done(Ok(found)) => found.text(columns),
        Check::Done(Err(why)) => return wrapped(why, columns),
    };
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    // The last line stays on the screen.
    let above = app.scroll.min(lines.len().saturating_sub(room));
    lines[above..].to_vec()
}

/// The keys.
pub fn help(app: &App) -> Vec<String> {
    let mut keys = vec![
        ("q, Ctrl-C", "quit"),
        (
            "up down, j k",
            "choose a cache; also page up, page down, home, end",
        ),
    ];
    match app.position {
        Some(_) => keys.extend([
            ("left right", "one look back or forward in time"),
            ("[ ]", "a tenth of the recording back or forward"),
            ("space", "play the recording, and stop"),
            ("+ -", "slower and faster"),
            ("enter", "details of the cache; esc goes back"),
            ("< >", "sort by the column before or behind"),
        ]),
        None => keys.extend([
            (
                "enter, m, s",
                "its details, map of slabs, stacks; esc: back",
            ),
            ("d", "what is wrong, in sentences (uslub doctor)"),
            ("w", "write the figures of now to a file, as JSON"),
            ("< >, left right", "sort by the column before or behind"),
            ("space", "pause, and go on"),
            ("+ -", "longer and shorter time between looks"),
        ]),
    }
    keys.extend([
        ("r", "reverse the order"),
        (
            "/",
            "show only caches with a text in their names; esc drops it",
        ),
    ]);
    let keys = keys.iter().map(|(key, what)| format!("{key:<16}  {what}"));
    let mut texts: Vec<_> = keys.collect();
    let mark = match app.glyphs {
        Glyphs::Unicode => "Yellow rows",
        Glyphs::Ascii => "yellow rows",
    };
    texts.push(format!("{mark}: live objects rose, and fell in no look"));
    texts
}
