//! The state of the view: the looks so far, and what the keys changed. It draws nothing and reads
//! nothing, so tests feed it looks and keys.

use super::super::doctor::Examination;
use super::super::glyphs::Glyphs;
use super::columns::{COLUMNS, Column};
use super::sample::{COUNTERS, Entry, Key, Sample};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Looks that are remembered for growth and trends.
pub const HISTORY: usize = 60;
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
    /// The slabs of one cache by live slots.
    Map,
    /// How the stacks of one cache's objects are found.
    Stacks,
    /// What is wrong, in sentences.
    Doctor,
    /// The keys.
    Help,
}

/// The search for what is wrong, which takes some seconds.
#[derive(Debug, Default)]
pub enum Check {
    /// Nobody asked.
    #[default]
    NotYet,
    /// It goes on in a thread of its own.
    Runs,
    /// What was found, or why nothing could be.
    Done(Result<Box<Examination>, String>),
}

/// Where in a recording the view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The look that is shown, from 1.
    pub look: u64,
    /// All looks.
    pub looks: u64,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Only a new picture.
    Draw,
    /// A look at once.
    Look,
    /// So many looks of a recording forward, or back.
    Step(i64),
    /// A search for what is wrong.
    Examine,
    /// The last look in a file.
    Write,
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
    /// The search for what is wrong.
    pub check: Check,
    /// Lines of the findings that are above the screen.
    pub scroll: usize,
    /// What the last key did, until the next key.
    pub note: Option<String>,
    /// Where in a recording the view is; `None` for a process.
    pub position: Option<Position>,
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
            check: Check::NotYet,
            scroll: 0,
            note: None,
            position: None,
            history: HashMap::new(),
        }
    }

    /// Drops all looks. What the keys chose stays.
    pub fn forget(&mut self) {
        self.lines.clear();
        self.totals.clear();
        self.history.clear();
        self.sample = Sample::default();
    }

    /// Takes a new look.
    pub fn push(&mut self, sample: Sample) {
        if sample.title != self.sample.title {
            // Another program has other caches: nothing of the old one counts.
            self.forget();
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

    /// The cache of which more is shown than its row.
    pub fn detail(&self) -> Option<&Key> {
        match self.page {
            Page::Details | Page::Map | Page::Stacks => self.selected.as_ref(),
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
        self.note = None;
        let goes_back = matches!(key.code, KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace);
        match self.page {
            Page::Filter => self.key_of_filter(key.code),
            Page::Help => {
                self.page = Page::Table;
                Action::Draw
            }
            Page::Details | Page::Map | Page::Stacks | Page::Doctor if goes_back => {
                self.page = Page::Table;
                Action::Draw
            }
            Page::Doctor => self.key_of_doctor(key.code),
            Page::Details | Page::Map | Page::Stacks | Page::Table => self.key_of_table(key.code),
        }
    }

    fn key_of_doctor(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            _ => return self.key_of_table(code),
        }
        Action::Draw
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
        let page = self.page;
        match code {
            KeyCode::Left if self.position.is_some() => return Action::Step(-1),
            KeyCode::Right if self.position.is_some() => return Action::Step(1),
            KeyCode::Char('[') => return self.leap(-1),
            KeyCode::Char(']') => return self.leap(1),
            KeyCode::Char('m') => return self.show_cache(Page::Map),
            KeyCode::Char('s') => return self.show_cache(Page::Stacks),
            KeyCode::Char('d') => return self.show_findings(),
            KeyCode::Char('w') => return self.write(),
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
            KeyCode::Enter => return self.show_cache(Page::Details),
            _ => {}
        }
        // The details of another cache need a look.
        match self.detail() {
            Some(_) if self.page == page => self.look(),
            _ => Action::Draw,
        }
    }

    /// A look at a process; a recording has its looks already.
    fn look(&self) -> Action {
        match self.position {
            Some(_) => Action::Draw,
            None => Action::Look,
        }
    }

    /// Goes a tenth of a recording forward, or back.
    fn leap(&mut self, direction: i64) -> Action {
        match self.position {
            Some(place) => Action::Step(direction * place.looks.div_ceil(10) as i64),
            None => Action::Draw,
        }
    }

    /// Whether what is asked for is not in a recording; then says so.
    fn is_missing(&mut self, what: &str) -> bool {
        let is_missing = self.position.is_some();
        if is_missing {
            self.note = Some(format!("a recording has no {what}"));
        }
        is_missing
    }

    /// Shows a page about the cache of the cursor, or the first one.
    fn show_cache(&mut self, page: Page) -> Action {
        if page == Page::Map && self.is_missing("map of slabs") {
            return Action::Draw;
        }
        if page == Page::Stacks && self.is_missing("stacks") {
            return Action::Draw;
        }
        if self.cursor(&self.shown()).is_none() {
            self.step(0);
        }
        if self.selected.is_none() {
            return Action::Draw;
        }
        self.page = page;
        self.look()
    }

    /// Shows what is wrong; looks for it if that does not go on already.
    fn show_findings(&mut self) -> Action {
        if self.is_missing("findings: uslub doctor needs the process") {
            return Action::Draw;
        }
        (self.page, self.scroll) = (Page::Doctor, 0);
        if matches!(self.check, Check::Runs) {
            return Action::Draw;
        }
        self.check = Check::Runs;
        Action::Examine
    }

    fn write(&mut self) -> Action {
        if self.is_missing("snapshot: uslub replay --at prints a look") {
            return Action::Draw;
        }
        Action::Write
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
