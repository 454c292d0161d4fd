//! The page about tuning says what the table of tunables says.

use uslub::{TUNABLES, Tuning};
use uslub_core::tunables::Tunables;

/// Lines of the page's tables whose first column is the name.
fn line_of(name: &str) -> Vec<&'static str> {
    let page = include_str!("../../../docs/tuning.md");
    let begins = format!("| `{name}` |");
    let line = page.lines().find(|line| line.starts_with(&begins));
    let line = line.unwrap_or_else(|| panic!("docs/tuning.md has no line for {name}"));
    line.split('|').map(str::trim).collect()
}

#[test]
fn each_tunable_has_a_line_with_its_bounds_and_its_default() {
    for tunable in TUNABLES {
        let line = line_of(tunable.name);
        let bounds = match (tunable.min, tunable.max) {
            (0, 1) => "0, 1".to_owned(),
            (min, max) => format!("{min}–{max}"),
        };
        assert_eq!(line[2], bounds, "{}", tunable.name);
        let default = tunable.get(&Tunables::DEFAULT).to_string();
        assert_eq!(line[3], default, "{}", tunable.name);
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
