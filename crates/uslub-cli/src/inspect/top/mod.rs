//! `uslub top`: the caches of a running process, look after look.
//!
//! | file | concept |
//! |---|---|
//! | `sample` | one look at the process, as plain numbers |
//! | `app` | the looks so far, rates, and what the keys changed |
//! | `columns` | the columns of the table |
//! | `view`, `details`, `pages` | the picture |
//! | `tape` | the same view over the looks of a recording |
//! | `plain` | the same as lines, for a pipe |
//! | `screen` | the terminal, and its restoration |

mod app;
mod columns;
mod details;
mod pages;
mod plain;
pub mod sample;
mod screen;
pub mod tape;
#[cfg(test)]
mod tests;
mod view;

use super::doctor::Examination;
use super::glyphs::Glyphs;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::numbers::whole_from;
use app::{Action, App, Check, DELAYS};
use clap::Args;
use columns::Column;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event};
use ratatui::layout::Rect;
use sample::Sampler;
use screen::Screen;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Failed looks at a living process after which the view ends: a program that is being replaced
/// cannot be read for a moment.
const FAILURES_MAX: usize = 3;
/// Longest wait for a key, so that a signal is seen soon.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Seconds that the key `d` looks at the process.
const EXAMINE_SECONDS: u64 = 3;
/// Names of snapshots that are tried.
const SNAPSHOTS_MAX: u32 = 10_000;

/// Options of `uslub top`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct TopOptions {
    /// The process, by its number
    #[arg(value_name = "PID")]
    pub target: String,

    /// Seconds between two looks, 0.1 to 60
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub delay: Duration,

    /// Looks to take; default: one with rates in a pipe, no end in a terminal
    #[arg(short = 'n', long, value_name = "N", value_parser = whole_from(1_u64))]
    pub looks: Option<u64>,

    /// Column to sort by; below are their names
    #[arg(short, long, value_name = "COLUMN", default_value = "memory", value_parser = Column::parse)]
    pub sort: Column,

    /// Show only caches with this text in their names
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    pub filter: String,

    /// Use ASCII characters only
    #[arg(long)]
    pub ascii: bool,
}

/// The part of the help after the options.
const HELP: &str = "\
Columns: cache, live, bytes, use, alloc/s, free/s, growth/s, memory, cached, free, slabs, size.

Keys: q quit, ? all keys, / filter, < > sort, r reverse, space pause; enter details of a cache, m the map of its
slabs, s its stacks; d what is wrong (uslub doctor); w write the figures as JSON to the file uslub-PID-1.json.
If the output is no terminal, it is plain lines. When the process ends, the last look stays on the screen.
The process is not stopped, and runs no code for it.

Exit status: 0 done; 2 wrong usage, 125 it cannot be read, 126 it is not on uslub, 127 no such process.";

/// The time that a word stands for.
fn seconds(word: &str) -> Result<Duration, String> {
    let (least, most) = DELAYS;
    let number: Option<f64> = word.parse().ok();
    let time = number.and_then(|n| Duration::try_from_secs_f64(n).ok());
    time.filter(|time| (least..=most).contains(time))
        .ok_or_else(|| {
            let (least, most) = (least.as_secs_f64(), most.as_secs_f64());
            format!("it must be a number of seconds from {least} to {most}")
        })
}

/// `uslub top`.
pub fn run(options: &TopOptions) -> Result<Ending, Failure> {
    let sampler = Sampler::open(&options.target)?;
    let glyphs = Glyphs::choose(options.ascii);
    let mut app = App::new(options.delay, glyphs);
    app.sort = options.sort;
    app.filter = options.filter.clone();
    app.push(sampler.look(None)?);
    if has_screen() {
        on_screen(&sampler, &mut app, options.looks)
    } else {
        in_lines(&sampler, &mut app, options.looks.unwrap_or(1))
    }
}

/// Whether standard output is a terminal that can be drawn on.
pub fn has_screen() -> bool {
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

/// The view without a terminal: each look has the rates since the look before.
fn in_lines(sampler: &Sampler, app: &mut App, looks: u64) -> Result<Ending, Failure> {
    for n in 0..looks {
        std::thread::sleep(app.delay);
        match sampler.look(None) {
            Ok(sample) => app.push(sample),
            Err(failure) => {
                let (why, _) = sampler.why(&failure);
                let last = if n == 0 {
                    plain::text(app)
                } else {
                    String::new()
                };
                let text = format!(
                    "{last}{}: {why}; this was the last look\n",
                    app.sample.title
                );
                return super::print(&text);
            }
        }
        let between = if n == 0 { "" } else { "\n" };
        super::print(&format!("{between}{}", plain::text(app)))?;
    }
    Ok(Ending::Exited(0))
}

/// An error of the terminal.
fn broken(error: io::Error) -> Failure {
    Failure::ours(
        format!("cannot use the terminal: {error}"),
        "uslub top PID | cat prints plain lines",
    )
}

/// The view in a terminal.
fn on_screen(sampler: &Sampler, app: &mut App, looks: Option<u64>) -> Result<Ending, Failure> {
    let mut screen = Screen::take().map_err(broken)?;
    let ending = show(&mut screen, sampler, app, looks);
    let size = screen.terminal.size().ok();
    drop(screen);
    let ending = ending.map_err(broken)?;
    if app.ended.is_some() {
        let (columns, lines) = size.map_or((80, 24), |size| (size.width, size.height));
        // The last line is for the prompt of the shell.
        super::print(&last_view(app, columns, lines.saturating_sub(1)))?;
    }
    Ok(ending)
}

/// Searches for what is wrong, in a thread of its own: it takes seconds.
fn examine(pid: i32) -> Receiver<Result<Box<Examination>, String>> {
    let (done, found) = mpsc::channel();
    thread::spawn(move || {
        let result = Examination::of(&pid.to_string(), EXAMINE_SECONDS);
        // The view may have ended.
        let _ = done.send(result.map(Box::new).map_err(|failure| failure.message));
    });
    found
}

/// Writes the figures of the process to a new file in the current folder; says what came of it.
fn write_snapshot(sampler: &Sampler) -> String {
    let text = match sampler.json() {
        Ok(text) => text,
        Err(failure) => return failure.message,
    };
    for number in 1..=SNAPSHOTS_MAX {
        let name = format!("uslub-{}-{number}.json", sampler.pid);
        let written = File::create_new(&name).and_then(|mut file| file.write_all(text.as_bytes()));
        return match written {
            Ok(()) => format!("wrote {name}"),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => format!("cannot write {name}: {error}"),
        };
    }
    "there are too many snapshots in this folder".to_owned()
}

/// Looks, draws and takes keys until the end.
fn show(
    screen: &mut Screen,
    sampler: &Sampler,
    app: &mut App,
    looks: Option<u64>,
) -> io::Result<Ending> {
    let (mut taken, mut failures) = (1, 0);
    let mut last = Instant::now();
    let mut examination = None;
    loop {
        screen.terminal.draw(|frame| view::draw(frame, app))?;
        let mut action = Action::Draw;
        loop {
            if let Some(signal) = screen.signal() {
                return Ok(Ending::Killed(signal));
            }
            let found = examination.as_ref();
            if let Some(found) = found.and_then(|found: &Receiver<_>| found.try_recv().ok()) {
                app.check = Check::Done(found);
                break;
            }
            let left = app.delay.saturating_sub(last.elapsed());
            let wait = if app.is_paused {
                WAIT_MAX
            } else {
                left.min(WAIT_MAX)
            };
            if event::poll(wait)? {
                match event::read()? {
                    Event::Key(key) => action = app.key(key),
                    Event::Resize(..) => {}
                    _ => continue,
                }
                break;
            }
            if !app.is_paused && last.elapsed() >= app.delay {
                action = Action::Look;
                break;
            }
        }
        match action {
            Action::Quit => return Ok(Ending::Exited(0)),
            Action::Draw | Action::Step(_) => continue,
            Action::Examine => {
                examination = Some(examine(sampler.pid));
                continue;
            }
            Action::Write => {
                app.note = Some(write_snapshot(sampler));
                continue;
            }
            Action::Look => {}
        }
        last = Instant::now();
        match sampler.look(app.detail()) {
            Ok(sample) => {
                (taken, failures) = (taken + 1, 0);
                app.push(sample);
                if looks.is_some_and(|looks| taken >= looks) {
                    screen.terminal.draw(|frame| view::draw(frame, app))?;
                    return Ok(Ending::Exited(0));
                }
            }
            Err(failure) => {
                failures += 1;
                let (why, has_ended) = sampler.why(&failure);
                if has_ended || failures == FAILURES_MAX {
                    app.ended = Some(why);
                    return Ok(Ending::Exited(0));
                }
            }
        }
    }
}

/// The view as it was at the last look, for the screen behind it.
fn last_view(app: &App, columns: u16, lines: u16) -> String {
    let area = Rect::new(0, 0, columns, lines);
    let mut buffer = Buffer::empty(area);
    view::paint(&mut buffer, area, app);
    view::text_of(&buffer).trim_end().to_owned() + "\n"
}
