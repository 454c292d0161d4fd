//! The page about tuning says what the table of tunables says.

use uslub::{TUNABLES, Tuning};
use uslub_core::tunables::Tunables;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tuning.md");

/// The page's table of the tunables of a cache, or of the process.
fn table(of_a_cache: bool) -> String {
    let mut text =
        String::from("\n| name | values | default | what it does |\n|---|---|---|---|\n");
    for t in TUNABLES {
        if Tuning::DEFAULT.get(t.name).is_some() == of_a_cache {
            let values = match (t.min, t.max) {
                (0, 1) => "0, 1".to_owned(),
                (min, max) => format!("{min}–{max} {}", t.unit),
            };
            let (values, default) = (values.trim_end(), t.get(&Tunables::DEFAULT));
            text += &format!("| `{}` | {values} | {default} | {} |\n", t.name, t.help);
        }
    }
    text
}

/// The page with the text between two markers replaced.
fn replaced(page: &str, name: &str, text: &str) -> String {
    let marker = |edge| format!("\n<!-- {name}: {edge} -->\n");
    let (before, rest) = page.split_once(&marker("begin")).expect("a first marker");
    let (_, after) = rest.split_once(&marker("end")).expect("a last marker");
    [before, &marker("begin"), text, &marker("end"), after].concat()
}

/// With `USLUB_WRITE` set it writes the tables: `scripts/tuning`.
#[test]
fn the_page_has_the_tables_that_the_tunables_make() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let made = replaced(&page, "tunables of a cache", &table(true));
    let made = replaced(&made, "tunables of the process", &table(false));
    if std::env::var_os("USLUB_WRITE").is_some() {
        std::fs::write(PAGE, made).unwrap();
    } else {
        assert!(
            made == page,
            "docs/tuning.md is not what tunables.rs says: run scripts/tuning"
        );
    }
}

#[test]
fn values_of_a_cache_are_read_and_set_by_name() {
    let mut tuning = Tuning::DEFAULT;
    for tunable in TUNABLES {
        let setting = format!("{}={}", tunable.name, tunable.max);
        match tuning.get(tunable.name) {
            Some(_) => {
                tuning.set(&setting).unwrap();
                assert_eq!(tuning.get(tunable.name), Some(tunable.max));
            }
            None => assert!(tuning.set(&setting).is_err()),
        }
    }
    assert_eq!(tuning.check().map_err(|t| t.name), Ok(()));
}
