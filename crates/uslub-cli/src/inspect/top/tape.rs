//! The view over the looks of a recording: keys step through time.

use super::app::{Action, App, DELAYS, HISTORY, Position};
use super::sample::Sample;
use super::screen::Screen;
use super::{Ending, Glyphs, WAIT_MAX, broken, view};
use crate::failure::Failure;
use ratatui::crossterm::event::{self, Event};
use std::time::{Duration, Instant};

/// Time between two looks while the recording plays.
const PLAY: Duration = Duration::from_millis(200);

/// The looks of a recording.
pub trait Tape {
    /// Looks in it, one at least.
    fn looks(&self) -> u64;

    /// The look behind the last one that was read; `None` at the end.
    ///
    /// # Errors
    ///
    /// If the file can no longer be read.
    fn next(&mut self) -> Result<Option<Sample>, Failure>;

    /// Looks from number `first` on, from 0: [`next`](Self::next) reads this one.
    ///
    /// # Errors
    ///
    /// If the file can no longer be read.
    fn rewind(&mut self, first: u64) -> Result<(), Failure>;
}

/// Shows a recording in the terminal, the last look first.
///
/// # Errors
///
/// If the terminal or the file cannot be used.
pub fn browse(tape: &mut dyn Tape) -> Result<Ending, Failure> {
    let mut app = begin(tape, Glyphs::choose(false))?;
    let mut screen = Screen::take().map_err(broken)?;
    let mut last = Instant::now();
    loop {
        let drawn = screen.terminal.draw(|frame| view::draw(frame, &app));
        drawn.map_err(broken)?;
        let action = loop {
            if let Some(signal) = screen.signal() {
                return Ok(Ending::Killed(signal));
            }
            let plays = !app.is_paused;
            if plays && last.elapsed() >= app.delay {
                break Action::Look;
            }
            let left = app.delay.saturating_sub(last.elapsed());
            let wait = if plays { left.min(WAIT_MAX) } else { WAIT_MAX };
            if event::poll(wait).map_err(broken)? {
                match event::read().map_err(broken)? {
                    Event::Key(key) => break app.key(key),
                    Event::Resize(..) => break Action::Draw,
                    _ => {}
                }
            }
        };
        last = Instant::now();
        if action == Action::Quit {
            return Ok(Ending::Exited(0));
        }
        act(&mut app, tape, action)?;
    }
}

/// The view at the last look of a recording.
pub(super) fn begin(tape: &mut dyn Tape, glyphs: Glyphs) -> Result<App, Failure> {
    let mut app = App::new(PLAY.clamp(DELAYS.0, DELAYS.1), glyphs);
    app.is_paused = true;
    let last = tape.looks();
    go(&mut app, tape, last)?;
    Ok(app)
}

/// Does what a key asked for.
pub(super) fn act(app: &mut App, tape: &mut dyn Tape, action: Action) -> Result<(), Failure> {
    let here = app.position.map_or(0, |place| place.look);
    match action {
        Action::Step(by) => go(app, tape, here.saturating_add_signed(by)),
        Action::Look if !app.is_paused => {
            go(app, tape, here + 1)?;
            app.is_paused = here + 1 >= tape.looks();
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Goes to a look, from 1; to the first or the last one if there is no such look.
fn go(app: &mut App, tape: &mut dyn Tape, to: u64) -> Result<(), Failure> {
    let to = to.clamp(1, tape.looks());
    let here = app.position.map_or(0, |place| place.look);
    let mut missing = to.wrapping_sub(here);
    if to < here || missing > HISTORY as u64 {
        // Growth and trends need the looks before.
        let first = to.saturating_sub(HISTORY as u64);
        tape.rewind(first)?;
        app.forget();
        missing = to - first;
    }
    for _ in 0..missing {
        match tape.next()? {
            Some(sample) => app.push(sample),
            None => break,
        }
    }
    app.position = Some(Position {
        look: to,
        looks: tape.looks(),
    });
    Ok(())
}
