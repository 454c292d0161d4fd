//! A recording in the view: keys step through time.

use super::super::app::{Action, App, HISTORY};
use super::super::columns::Column;
use super::super::sample::Sample;
use super::super::tape::{self, Tape};
use super::{lines, press, sample};
use crate::failure::Failure;
use crate::inspect::glyphs::Glyphs;
use ratatui::crossterm::event::KeyCode;

/// A recording of looks a second apart, which counts how often it was read.
struct Looks {
    all: u64,
    next: u64,
    read: u64,
}

impl Tape for Looks {
    fn looks(&self) -> u64 {
        self.all
    }

    fn next(&mut self) -> Result<Option<Sample>, Failure> {
        let second = self.next;
        (self.next, self.read) = (second + 1, self.read + 1);
        Ok((second < self.all).then(|| sample(second)))
    }

    fn rewind(&mut self, first: u64) -> Result<(), Failure> {
        self.next = first;
        Ok(())
    }
}

#[test]
fn arrow_keys_step_through_a_recording() {
    let mut looks = Looks {
        all: 200,
        next: 0,
        read: 0,
    };
    let mut app = tape::begin(&mut looks, Glyphs::Unicode).expect("the last look");
    let live = |app: &App| app.lines[2].entry.live;
    let mut press_key = |app: &mut App, code| {
        let action = press(app, code);
        tape::act(app, &mut looks, action).expect("a look");
        let shown = lines(app, (120, 40));
        let place = app.position.expect("a place");
        assert!(shown[0].starts_with(&format!(
            "uslub replay server 4711  look {} of 200",
            place.look
        )));
        assert_eq!(live(app), 9_000 + 310 * (place.look - 1));
        // Growth is that of the looks before, whichever way they were reached.
        assert_eq!(app.lines[2].growth.is_some(), place.look > 1);
        assert!(app.totals.len() as u64 <= place.look.min(HISTORY as u64 + 1));
        place.look
    };
    assert_eq!(
        press_key(&mut app, KeyCode::Right),
        200,
        "there is no later one"
    );
    assert_eq!(press_key(&mut app, KeyCode::Left), 199);
    assert_eq!(press_key(&mut app, KeyCode::Left), 198);
    assert_eq!(press_key(&mut app, KeyCode::Right), 199);
    assert_eq!(press_key(&mut app, KeyCode::Char('[')), 179);
    assert_eq!(press_key(&mut app, KeyCode::Char(']')), 199);
    for _ in 0..12 {
        press_key(&mut app, KeyCode::Char('['));
    }
    assert_eq!(press_key(&mut app, KeyCode::Left), 1);
    assert_eq!(press_key(&mut app, KeyCode::Char('m')), 1);
    assert!(lines(&app, (120, 40))[2].starts_with("a recording has no map of slabs"));
    // Keys of the table work as for a process.
    press_key(&mut app, KeyCode::Char('>'));
    assert_eq!(app.sort, Column::Cached);
    press_key(&mut app, KeyCode::Enter);
    assert_eq!(press_key(&mut app, KeyCode::Right), 2);
    assert!(lines(&app, (80, 24)).contains(&"a recording has no sheaves and no slabs".to_owned()));
    assert!(looks.read < 20 * (HISTORY as u64 + 1), "{}", looks.read);
}

#[test]
fn a_recording_plays_to_its_end() {
    let mut looks = Looks {
        all: 5,
        next: 0,
        read: 0,
    };
    let mut app = tape::begin(&mut looks, Glyphs::Ascii).expect("the last look");
    assert!(app.is_paused);
    for _ in 0..9 {
        tape::act(&mut app, &mut looks, Action::Step(-1)).expect("a look");
    }
    let action = press(&mut app, KeyCode::Char(' '));
    tape::act(&mut app, &mut looks, action).expect("a look");
    assert!(!app.is_paused && lines(&app, (80, 24))[0].contains("PLAYS  look 2 of 5"));
    for _ in 0..9 {
        tape::act(&mut app, &mut looks, Action::Look).expect("a look");
    }
    assert_eq!(app.position.map(|place| place.look), Some(5));
    assert!(app.is_paused, "the end was reached");
}
