//! The state of the view: the looks so far, and what the keys changed. It draws nothing and reads
//! nothing, so tests feed it looks and keys.

use super::super::glyphs::Glyphs;
use super::columns::{COLUMNS, Column};
use super::sample::{COUNTERS, Entry, Key, Sample};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Looks that are remembered for growth and trends.
const HISTORY: usize = 60;
/// Looks from which on a cache that never fell counts as growing.
const GROWS_FROM: usize = 6;
/// Rows that a page key moves.
const PAGE: isize = 10;
/// Shortest and longest time between two looks.
pub const DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Line {
    /// The cache.
    pub entry: Entry,
    /// Allocations a second; `None` before the second look.
    pub allocs: Option<f64>,
    /// Frees a second.
    pub frees: Option<f64>,
    /// Change of the live objects, a second.
    pub growth: Option<f64>,
    /// Whether the live objects rose and never fell in the looks so far.
    pub rises: bool,
}

/// What the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The table.
    Table,
    /// The table, while a filter is typed.
    Filter,
    /// One cache.
    Details,
    /// The keys.
    Help,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Only a new picture.
    Draw,
    /// A look at once.
    Look,
    /// The end.
    Quit,
}

/// The state of the view.
pub struct App {
    /// Time between two looks.
    pub delay: Duration,
    /// Characters to use.
    pub glyphs: Glyphs,
    /// The last look.
    pub sample: Sample,
    /// Its caches, with rates.
    pub lines: Vec<Line>,
    /// Allocations and frees of all caches, a second.
    pub rates: Option<(f64, f64)>,
    /// Slow-path counters of the cache in detail, a second.
    pub counter_rates: Option<[f64; COUNTERS.len()]>,
    /// Resident and live bytes of the looks so far.
    pub totals: VecDeque<(u64, u64)>,
    /// Column that sorts the table.
    pub sort: Column,
    /// Whether the order is the other way round.
    pub is_reversed: bool,
    /// Text that a cache's name must have.
    pub filter: String,
    /// What the screen shows.
    pub page: Page,
    /// The cache that the cursor is on.
    pub selected: Option<Key>,
    /// Whether looks are paused.
    pub is_paused: bool,
    /// Why there will be no further look.
    pub ended: Option<String>,
    history: HashMap<Key, VecDeque<(Duration, u64)>>,
}

/// A count a second; `None` if no time passed or the counter went back.
fn per_second(before: u64, after: u64, seconds: f64) -> Option<f64> {
    let more = after.checked_sub(before)?;
    (seconds > 0.0).then(|| more as f64 / seconds)
}

impl App {
    /// A view without a look.
    pub fn new(delay: Duration, glyphs: Glyphs) -> Self {
        Self {
            delay,
            glyphs,
            sample: Sample::default(),
            lines: Vec::new(),
            rates: None,
            counter_rates: None,
            totals: VecDeque::new(),
            sort: Column::Memory,
            is_reversed: false,
            filter: String::new(),
            page: Page::Table,
            selected: None,
            is_paused: false,
            ended: None,
            history: HashMap::new(),
        }
    }

    /// Takes a new look.
    pub fn push(&mut self, sample: Sample) {
        if sample.title != self.sample.title {
            // Another program has other caches: nothing of the old one counts.
            self.lines.clear();
            self.totals.clear();
            self.history.clear();
            self.sample.detail = None;
        }
        let seconds = sample.at.saturating_sub(self.sample.at).as_secs_f64();
        let known = std::mem::take(&mut self.lines);
        let before: HashMap<_, _> = (known.into_iter())
            .map(|line| (line.entry.key, line.entry.calls))
            .collect();
        self.history
            .retain(|key, _| sample.entries.iter().any(|entry| entry.key == *key));
        let mut sums = (0.0, 0.0);
        for entry in &sample.entries {
            let calls = before.get(&entry.key);
            let allocs = calls.and_then(|calls| per_second(calls.0, entry.calls.0, seconds));
            let frees = calls.and_then(|calls| per_second(calls.1, entry.calls.1, seconds));
            sums.0 += allocs.unwrap_or(0.0);
            sums.1 += frees.unwrap_or(0.0);
            let history = self.history.entry(entry.key.clone()).or_default();
            history.push_back((sample.at, entry.live));
            if history.len() > HISTORY {
                history.pop_front();
            }
            self.lines.push(Line {
                entry: entry.clone(),
                allocs,
                frees,
                growth: growth(history),
                rises: rises(history, entry.uncertain),
            });
        }
        self.rates = (!before.is_empty() && seconds > 0.0).then_some(sums);
        self.counter_rates = match (&self.sample.detail, &sample.detail) {
            (Some(old), Some(new)) if old.key == new.key && seconds > 0.0 => {
                let rate = |i: usize| per_second(old.counters[i], new.counters[i], seconds);
                Some(std::array::from_fn(|i| rate(i).unwrap_or(0.0)))
            }
            _ => None,
        };
        self.totals.push_back((sample.resident, sample.live));
        if self.totals.len() > HISTORY {
            self.totals.pop_front();
        }
        self.sample = sample;
    }

    /// The live objects of a cache in the looks so far.
    pub fn trend(&self, key: &Key) -> Vec<u64> {
        let history = self.history.get(key);
        history.map_or_else(Vec::new, |all| all.iter().map(|&(_, live)| live).collect())
    }

    /// The rows that pass the filter, in order.
    pub fn shown(&self) -> Vec<&Line> {
        let wanted = self.filter.to_lowercase();
        let passes = |line: &&Line| line.entry.key.name.to_lowercase().contains(&wanted);
        let mut lines: Vec<_> = self.lines.iter().filter(passes).collect();
        lines.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            if self.is_reversed {
                order.reverse()
            } else {
                order
            }
        });
        lines
    }

    /// Place of the cursor in the rows that are shown.
    pub fn cursor(&self, shown: &[&Line]) -> Option<usize> {
        let key = self.selected.as_ref()?;
        shown.iter().position(|line| line.entry.key == *key)
    }

    /// The cache whose details are shown.
    pub fn detail(&self) -> Option<&Key> {
        match self.page {
            Page::Details => self.selected.as_ref(),
            _ => None,
        }
    }

    fn step(&mut self, by: isize) {
        let shown = self.shown();
        let last = shown.len().saturating_sub(1);
        let place = match self.cursor(&shown) {
            Some(place) => place.saturating_add_signed(by).min(last),
            None if by == isize::MAX => last,
            None => 0,
        };
        self.selected = shown.get(place).map(|line| line.entry.key.clone());
    }

    fn sort_by_next(&mut self, by: isize) {
        let place = COLUMNS.iter().position(|&column| column == self.sort);
        let count = COLUMNS.len() as isize;
        let next = (place.unwrap_or(0) as isize + by).rem_euclid(count);
        self.sort = COLUMNS[next as usize];
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        match self.page {
            Page::Filter => self.key_of_filter(key.code),
            Page::Help => {
                self.page = Page::Table;
                Action::Draw
            }
            Page::Details => match key.code {
                KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => {
                    self.page = Page::Table;
                    Action::Draw
                }
                _ => self.key_of_table(key.code),
            },
            Page::Table => self.key_of_table(key.code),
        }
    }

    fn key_of_filter(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Enter => self.page = Page::Table,
            KeyCode::Esc => {
                self.page = Page::Table;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        Action::Draw
    }

    fn key_of_table(&mut self, code: KeyCode) -> Action {
        let in_details = self.page == Page::Details;
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(PAGE),
            KeyCode::PageUp => self.step(-PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            KeyCode::Char('<') | KeyCode::Left => self.sort_by_next(-1),
            KeyCode::Char('>') | KeyCode::Right => self.sort_by_next(1),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => self.page = Page::Filter,
            KeyCode::Char('?') | KeyCode::Char('h') => self.page = Page::Help,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('+') => self.delay = (self.delay * 2).min(DELAYS.1),
            KeyCode::Char('-') => self.delay = (self.delay / 2).max(DELAYS.0),
            KeyCode::Char(' ') => {
                self.is_paused = !self.is_paused;
                return if self.is_paused {
                    Action::Draw
                } else {
                    Action::Look
                };
            }
            KeyCode::Enter => {
                if self.cursor(&self.shown()).is_none() {
                    self.step(0);
                }
                if self.selected.is_some() {
                    self.page = Page::Details;
                    return Action::Look;
                }
            }
            _ => {}
        }
        // The details of another cache need a look.
        if in_details && self.page == Page::Details {
            return Action::Look;
        }
        Action::Draw
    }
}

/// Change of the live objects a second, over the looks so far.
fn growth(history: &VecDeque<(Duration, u64)>) -> Option<f64> {
    let (first, last) = (history.front()?, history.back()?);
    let seconds = last.0.saturating_sub(first.0).as_secs_f64();
    (seconds > 0.0).then(|| (last.1 as f64 - first.1 as f64) / seconds)
}

/// Whether the live objects rose by more than the looks may be wrong, and never fell.
fn rises(history: &VecDeque<(Duration, u64)>, uncertain: u64) -> bool {
    let (Some(first), Some(last)) = (history.front(), history.back()) else {
        return false;
    };
    let pairs = history.iter().zip(history.iter().skip(1));
    history.len() >= GROWS_FROM
        && last.1 > first.1.saturating_add(uncertain)
        && pairs.into_iter().all(|(a, b)| a.1 <= b.1)
}
