//! The keys `m`, `d`, `s` and `w`, and the list of keys.

use super::super::app::{Action, Check, Page};
use super::super::sample::{COUNTERS, Detail, Sample};
use super::{SIZES, app, lines, press, sample};
use ratatui::crossterm::event::KeyCode;
use uslub_inspect::fullness::Fullness;
use uslub_inspect::heap::Cache;

/// 'session' with 20 slabs of 16 slots: 12 with one live object, 8 full ones.
fn with_slabs(second: u64) -> Sample {
    let mut cache = Cache::default();
    (cache.name, cache.size, cache.objects) = ("session".to_owned(), 240, 16);
    let mut slabs = vec![0; 17];
    (slabs[1], slabs[16]) = (12, 8);
    let mut sample = sample(second);
    sample.detail = Some(Detail {
        key: sample.entries[2].key.clone(),
        sheaves: Vec::new(),
        fullness: Fullness { cache, slabs },
        counters: [0; COUNTERS.len()],
    });
    sample
}

#[test]
fn m_shows_the_slabs_of_the_cache_under_the_cursor() {
    for size in SIZES {
        let mut app = app(2);
        app.filter = "session".to_owned();
        assert_eq!(press(&mut app, KeyCode::Char('m')), Action::Look);
        assert_eq!(app.detail().unwrap().name, "session");
        let text = lines(&app, size).join("\n");
        assert!(text.contains("cache 'session' has no slab any more"));
        app.push(with_slabs(2));
        let text = lines(&app, size).join("\n");
        assert!(
            text.contains("cache 'session': 20 slabs of 4.0 KiB, 16"),
            "{text}"
        );
        assert!(
            text.contains("kept by one object: 12 slabs, 48.0 KiB"),
            "{text}"
        );
        // Another cache needs a look of its own.
        app.filter.clear();
        assert_eq!(press(&mut app, KeyCode::Up), Action::Look);
        assert_eq!(app.detail().unwrap().name, "kmalloc-384");
        assert!(!lines(&app, size).join("\n").contains("20 slabs"));
        press(&mut app, KeyCode::Esc);
        assert_eq!(app.page, Page::Table);
    }
}

#[test]
fn d_looks_for_what_is_wrong_once_at_a_time() {
    let mut app = app(8);
    assert!(lines(&app, (120, 40))[2].ends_with("session grows: +310/s  d: why"));
    assert_eq!(press(&mut app, KeyCode::Char('d')), Action::Examine);
    assert!(matches!(app.check, Check::Runs) && app.detail().is_none());
    for size in SIZES {
        assert!(lines(&app, size)[3].starts_with("looking at the process for three seconds"));
    }
    assert_eq!(
        press(&mut app, KeyCode::Char('d')),
        Action::Draw,
        "it goes on"
    );
    app.check = Check::Done(Ok(Box::default()));
    for size in SIZES {
        app.scroll = 0;
        let text = lines(&app, size);
        assert!(
            text[5].starts_with("Nothing was found. Looked for: grows"),
            "{text:?}"
        );
        press(&mut app, KeyCode::Down);
        assert!(app.scroll == 1 && app.page == Page::Doctor);
    }
    app.check = Check::Done(Err("process 4711 has ended".to_owned()));
    assert_eq!(lines(&app, (80, 24))[3], "process 4711 has ended");
    assert_eq!(
        press(&mut app, KeyCode::Char('d')),
        Action::Examine,
        "again"
    );
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.page, Page::Table);
}

#[test]
fn s_says_that_there_are_no_stacks_and_how_to_get_them() {
    for size in SIZES {
        let mut app = app(2);
        app.filter = "session".to_owned();
        press(&mut app, KeyCode::Char('s'));
        assert_eq!(app.page, Page::Stacks);
        let text = lines(&app, size).join(" ");
        for part in [
            "No stacks",
            "uslub holders 4711 ADDRESS",
            "--debug U,session",
        ] {
            assert!(text.contains(part), "'{part}': {text}");
        }
    }
}

#[test]
fn w_asks_for_a_file_and_its_name_stays_until_the_next_key() {
    let mut app = app(2);
    assert_eq!(press(&mut app, KeyCode::Char('w')), Action::Write);
    app.note = Some("wrote uslub-4711-1.json".to_owned());
    for size in SIZES {
        assert!(lines(&app, size)[2].starts_with("wrote uslub-4711-1.json  "));
    }
    app.push(sample(2));
    assert!(lines(&app, (80, 24))[2].starts_with("wrote"));
    press(&mut app, KeyCode::Char('r'));
    assert!(lines(&app, (80, 24))[2].starts_with("82.2 k allocs/s"));
}

#[test]
fn every_key_is_in_the_list_of_keys() {
    let mut app = app(2);
    press(&mut app, KeyCode::Char('?'));
    for size in SIZES {
        let text = lines(&app, size).join("\n");
        for key in [
            "q, Ctrl-C",
            "enter, m, s",
            "\nd  ",
            "\nw  ",
            "\nspace",
            "\n+ -",
            "\n/ ",
        ] {
            assert!(text.contains(key), "'{key}' at {size:?}: {text}");
        }
    }
    app.page = Page::Table;
    let foot = lines(&app, (120, 40)).pop().unwrap();
    for key in ["m map", "d doctor", "s stacks", "w write"] {
        assert!(foot.contains(key), "{foot}");
    }
}
