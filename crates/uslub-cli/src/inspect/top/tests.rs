//! The view on terminals of several sizes, with keys fed as events.

mod pages;
mod tape;

use super::super::glyphs::{self, Glyphs};
use super::app::{Action, App, Check, Page};
use super::columns::{COLUMNS, Column};
use super::sample::{COUNTERS, Entry, Key, Sample};
use super::{last_view, plain, seconds, view};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::Duration;

/// The four sizes: a split window, the usual one, a large one, a wide screen.
const SIZES: [(u16, u16); 4] = [(60, 15), (80, 24), (120, 40), (200, 50)];

fn entry(index: usize, name: &str, size: u64, live: u64, slabs: u64) -> Entry {
    Entry {
        key: Key {
            heap: 0,
            index,
            name: name.to_owned(),
        },
        size,
        live,
        bytes: live * size,
        memory: slabs * 4096,
        cached: 12,
        free: (slabs * 4096 / size.max(1)).saturating_sub(live),
        slabs: Some(slabs),
        calls: (live * 3, live * 2),
        uncertain: 0,
    }
}

/// A look at three caches, `second` seconds after the first; 'session' grows by 310 objects.
fn sample(second: u64) -> Sample {
    let session = 9_000 + 310 * second;
    let mut entries = vec![
        entry(1, "kmalloc-64", 64, 2_204_118, 40_000),
        entry(2, "kmalloc-384", 384, 118_206, 27_412),
        entry(3, "session", 240, session, 900),
    ];
    entries[0].calls = (1_000_000 + 81_234 * second, 80_000 * second);
    Sample {
        pid: 4711,
        title: "server 4711".to_owned(),
        at: Duration::from_secs(second),
        took: Duration::from_micros(800),
        up: Duration::from_secs(3 * 3600 + 12 * 60),
        resident: 612 << 20,
        live: (400 + second) << 20,
        cached: 9 << 20,
        free: 71 << 20,
        kept: 22 << 20,
        entries,
        detail: None,
    }
}

fn app(looks: u64) -> App {
    let mut app = App::new(Duration::from_secs(1), Glyphs::Unicode);
    for second in 0..looks {
        app.push(sample(second));
    }
    app
}

fn press(app: &mut App, code: KeyCode) -> Action {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(app: &mut App, text: &str) {
    for c in text.chars() {
        press(app, KeyCode::Char(c));
    }
}

/// The lines of the view on a terminal of a size.
fn lines(app: &App, (columns, rows): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
    terminal
        .draw(|frame| view::draw(frame, app))
        .expect("a picture");
    let text = view::text_of(terminal.backend().buffer());
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), usize::from(rows));
    assert!(
        lines
            .iter()
            .all(|l| glyphs::width(l) <= usize::from(columns))
    );
    lines
}

/// Names of the caches in the order of the screen.
fn names(app: &App, size: (u16, u16)) -> Vec<String> {
    let rows = lines(app, size);
    let rows = rows[4..].iter().take_while(|line| !line.is_empty());
    rows.filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}

#[test]
fn every_size_has_the_process_the_rates_and_all_caches() {
    for size in SIZES {
        let lines = lines(&app(3), size);
        assert!(lines[0].starts_with("uslub top server 4711  up 3 h 12 min"));
        assert!(lines[1].starts_with("resident 612.0 MiB ▁▁▁  live 402.0 MiB ▁▄█"));
        // 81 234 of kmalloc-64, and three times 310 of 'session'.
        assert!(
            lines[2].starts_with("82.2 k allocs/s  80.6 k frees/s"),
            "{lines:?}"
        );
        assert!(lines[3].starts_with("CACHE"), "{}", lines[3]);
        assert!(lines[3].contains("MEMORY▾"), "{}", lines[3]);
        let first = &lines[4];
        assert!(first.starts_with("kmalloc-64"), "{first}");
        assert!(first.contains("2 204 118"), "{first}");
        assert!(first.contains("134.5 MiB"), "{first}");
        assert!(lines[6].starts_with("session"), "{lines:?}");
        assert!(lines.last().is_some_and(|foot| foot.starts_with("q quit")));
    }
}

#[test]
fn a_wide_terminal_has_every_column_and_a_narrow_one_the_first() {
    let app = app(3);
    let heads = |size| lines(&app, size)[3].clone();
    for column in COLUMNS {
        assert!(heads((200, 50)).contains(&column.name().to_uppercase()));
    }
    let narrow = heads((60, 15));
    for (name, is_there) in [
        ("LIVE", true),
        ("USE", true),
        ("SLABS", false),
        ("SIZE", false),
    ] {
        assert_eq!(narrow.contains(name), is_there, "{narrow}");
    }
    let mut unsure = sample(3);
    unsure.entries[2].uncertain = 400;
    let mut other = App::new(Duration::from_secs(1), Glyphs::Ascii);
    other.push(unsure);
    assert!(lines(&other, (60, 15))[6].contains(" ~9 930 "));
    let row = &lines(&app, (200, 50))[4];
    for cell in ["81.2 k", "80.0 k", "156.2 MiB", "40 000", " 64"] {
        assert!(row.contains(cell), "'{cell}': {row}");
    }
}

#[test]
fn a_terminal_without_room_has_one_line() {
    for size in [(39, 24), (80, 7), (20, 5), (1, 1)] {
        let lines = lines(&app(3), size);
        assert!("402.0 MiB live of 612.0 MiB, 82.2 k allocs/s".starts_with(&lines[0]));
        assert!(lines[1..].iter().all(String::is_empty));
    }
    let mut buffer = ratatui::buffer::Buffer::empty(ratatui::layout::Rect::ZERO);
    view::paint(&mut buffer, ratatui::layout::Rect::ZERO, &app(1));
}

#[test]
fn the_keys_sort_by_every_column() {
    let mut app = app(3);
    app.sort = Column::Cache;
    for column in COLUMNS {
        assert_eq!(app.sort, column);
        for size in SIZES {
            let heads = lines(&app, size)[3].clone();
            let head = format!("{}▾", column.name().to_uppercase());
            assert!(heads.contains(&head), "{size:?}: {heads}");
        }
        let down = names(&app, (200, 50));
        press(&mut app, KeyCode::Char('r'));
        let mut up = names(&app, (200, 50));
        up.reverse();
        assert_eq!((down.len(), &down), (3, &up));
        press(&mut app, KeyCode::Char('r'));
        press(&mut app, KeyCode::Char('>'));
    }
    assert_eq!(app.sort, Column::Cache, "behind the last comes the first");
    press(&mut app, KeyCode::Char('<'));
    assert_eq!(app.sort, Column::Size);
    assert_eq!(names(&app, (80, 24))[0], "kmalloc-384");
    app.sort = Column::Growth;
    assert_eq!(names(&app, (80, 24))[0], "session");
    app.sort = Column::Cache;
    let by_name = ["kmalloc-384", "kmalloc-64", "session"];
    assert_eq!(names(&app, (80, 24)), by_name);
}

#[test]
fn a_filter_is_typed_kept_and_dropped() {
    for size in SIZES {
        let mut app = app(2);
        press(&mut app, KeyCode::Char('/'));
        type_in(&mut app, "SESSx");
        press(&mut app, KeyCode::Backspace);
        assert_eq!(names(&app, size), ["session"]);
        assert!(
            lines(&app, size)
                .last()
                .unwrap()
                .starts_with("filter: SESS_")
        );
        press(&mut app, KeyCode::Enter);
        assert_eq!((app.page, names(&app, size).len()), (Page::Table, 1));
        assert!(lines(&app, size)[2].contains("1 of 3 caches"), "{size:?}");
        // A key of the table is text while a filter is typed.
        press(&mut app, KeyCode::Char('/'));
        assert_eq!(press(&mut app, KeyCode::Char('q')), Action::Draw);
        assert!(lines(&app, size)[4].starts_with("no cache has 'SESSq'"));
        press(&mut app, KeyCode::Esc);
        assert_eq!(names(&app, size).len(), 3);
    }
}

#[test]
fn the_cursor_follows_its_cache() {
    let mut app = app(2);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Char('j'));
    assert_eq!(app.selected.as_ref().unwrap().name, "kmalloc-384");
    app.is_reversed = true;
    app.push(sample(2));
    let shown = app.shown();
    assert_eq!(app.cursor(&shown), Some(1));
    press(&mut app, KeyCode::End);
    assert_eq!(app.selected.as_ref().unwrap().name, "kmalloc-64");
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::Up);
    assert_eq!(app.selected.as_ref().unwrap().name, "session");
}

#[test]
fn two_thousand_caches_scroll() {
    let mut app = app(0);
    let mut many = sample(0);
    many.entries = (1..=2000)
        .map(|i| entry(i, &format!("cache-{i:04}"), 64, 1, 1))
        .collect();
    app.push(many);
    app.sort = Column::Cache;
    for size in SIZES {
        press(&mut app, KeyCode::End);
        let shown = names(&app, size);
        assert!(
            shown.contains(&"cache-2000".to_owned()),
            "{size:?}: {shown:?}"
        );
        press(&mut app, KeyCode::Home);
        assert_eq!(names(&app, size)[0], "cache-0001");
    }
}

#[test]
fn details_ask_for_a_look_and_show_the_cache() {
    for size in SIZES {
        let mut app = app(2);
        press(&mut app, KeyCode::Char('/'));
        type_in(&mut app, "sess");
        press(&mut app, KeyCode::Enter);
        assert_eq!(press(&mut app, KeyCode::Enter), Action::Look);
        assert_eq!(app.detail().unwrap().name, "session");
        let lines = lines(&app, size);
        assert_eq!(lines[3], "cache 'session'");
        assert!(lines[4].starts_with("live    9 310 in"), "{}", lines[4]);
        assert!(lines[5].contains("930 allocs/s"), "{}", lines[5]);
        assert!(lines.last().unwrap().starts_with("esc back"));
        press(&mut app, KeyCode::Esc);
        assert_eq!((app.page, app.filter.as_str()), (Page::Table, "sess"));
    }
}

#[test]
fn rates_need_time_and_counters_that_rise() {
    // Two looks at the same moment.
    let mut app = app(1);
    assert!(app.rates.is_none());
    assert!(lines(&app, (80, 24))[2].starts_with("rates after the second look"));
    app.push(sample(0));
    assert!(app.rates.is_none());
    assert!(
        app.lines
            .iter()
            .all(|line| line.allocs.is_none() && line.growth.is_none())
    );
    // A counter that went back.
    let mut later = sample(1);
    later.entries[0].calls.0 = 5;
    app.push(later);
    assert_eq!(
        (app.lines[0].allocs, app.lines[0].frees),
        (None, Some(80_000.0))
    );
    assert_eq!(app.lines[2].allocs, Some(930.0));
    // A cache that is new, and one without slabs.
    let mut last = sample(2);
    last.entries.push(entry(9, "new", 64, 0, 0));
    app.push(last);
    let new = app.lines.last().unwrap();
    assert_eq!((new.allocs, Column::Use.text(new)), (None, "-".to_owned()));
    for size in SIZES {
        assert_eq!(names(&app, size).len(), 4);
    }
    assert_eq!(COUNTERS.len(), 6);
}

#[test]
fn a_program_that_replaces_itself_starts_anew() {
    let mut app = app(8);
    let mut other = sample(8);
    other.title = "other 4711".to_owned();
    app.push(other);
    let text = lines(&app, (120, 40));
    assert!(text[0].starts_with("uslub top other 4711"));
    assert!(text[2].starts_with("rates after the second look"));
    assert!(!text[2].contains("grows"));
    app.push(sample(9));
    assert!(app.rates.is_none());
}

#[test]
fn only_a_cache_that_never_falls_is_said_to_grow() {
    let text = |app: &App| lines(app, (120, 40))[2].clone();
    assert!(!text(&app(5)).contains("grows"), "five looks are too few");
    assert!(text(&app(8)).contains("session grows: +310/s"));
    let mut app = app(8);
    let mut fallen = sample(8);
    fallen.entries[2].live = 9_000;
    app.push(fallen);
    assert!(!text(&app).contains("grows"));
}

#[test]
fn the_end_keeps_the_last_look_and_says_why() {
    for size in SIZES {
        let mut app = app(3);
        app.ended = Some("it was killed by SIGKILL".to_owned());
        let on_screen = lines(&app, size);
        assert!(on_screen[2].starts_with("server 4711: it was killed by SIGKILL;"));
        let kept = last_view(&app, size.0, size.1);
        assert!(kept.contains("it was killed by SIGKILL"));
        assert!(kept.contains("kmalloc-64") && kept.contains("session"));
        assert!(
            !kept.contains("q quit"),
            "there are no keys any more: {kept}"
        );
        assert!(kept.lines().count() <= usize::from(size.1));
    }
}

#[test]
fn ascii_has_ascii_only() {
    let mut app = app(8);
    app.glyphs = Glyphs::Ascii;
    app.check = Check::Done(Ok(Box::default()));
    for page in [
        Page::Table,
        Page::Filter,
        Page::Details,
        Page::Map,
        Page::Stacks,
        Page::Doctor,
        Page::Help,
    ] {
        app.page = page;
        app.selected = Some(app.lines[0].entry.key.clone());
        for size in SIZES {
            let lines = lines(&app, size);
            assert!(lines.iter().all(|line| line.is_ascii()), "{lines:?}");
        }
    }
    assert!(plain::text(&app).is_ascii());
}

#[test]
fn other_keys_work() {
    let mut app = app(2);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Action::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    app.page = Page::Filter;
    assert_eq!(app.key(interrupt), Action::Quit);
    app.page = Page::Table;
    assert_eq!(press(&mut app, KeyCode::Char(' ')), Action::Draw);
    assert!(app.is_paused && lines(&app, (80, 24))[0].contains("PAUSED"));
    assert_eq!(press(&mut app, KeyCode::Char(' ')), Action::Look);
    for _ in 0..20 {
        press(&mut app, KeyCode::Char('+'));
    }
    assert_eq!(app.delay, Duration::from_secs(60));
    for _ in 0..20 {
        press(&mut app, KeyCode::Char('-'));
    }
    assert_eq!(app.delay, Duration::from_millis(100));
    press(&mut app, KeyCode::Char('?'));
    assert!(
        lines(&app, (80, 24))
            .iter()
            .any(|line| line.contains("Ctrl-C"))
    );
    press(&mut app, KeyCode::Char('x'));
    assert_eq!(app.page, Page::Table);
}

#[test]
fn plain_lines_have_every_column() {
    let text = plain::text(&app(2));
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("server 4711: up 3 h 12 min, resident 612.0 MiB"));
    assert_eq!(lines[1], "82.2 k allocs/s, 80.6 k frees/s");
    assert_eq!((lines[2].split_whitespace().count(), lines.len()), (12, 6));
}

#[test]
fn the_time_between_looks_has_bounds() {
    assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    for wrong in ["0", "0.05", "61", "-1", "x", "", "nan", "inf", "1e300"] {
        let error = seconds(wrong).unwrap_err();
        assert!(error.contains("0.1 to 60"), "{wrong}: {error}");
    }
}
