//! Thirty misuses, by default and in the hardened mode, against the table of docs/security.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use uslub_tests::subject::{plain, workspace};
use uslub_tests::tools::{say_skipped, shared};
use uslub_tests::{Outcome, Run, Way, program};

/// How far a program came before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    AtOnce,
    AtNextUse,
    AtTheFlush,
    Not,
}

fn seen(case: &str, outcome: &Outcome) -> Seen {
    let said = &outcome.stderr;
    let seen = match said.matches("misuse: survived").count() {
        0 => Seen::AtOnce,
        1 => Seen::AtNextUse,
        2 => Seen::AtTheFlush,
        _ => Seen::Not,
    };
    let by_message = outcome.ended_by(libc::SIGABRT) && said.contains("uslub:");
    let by_guard = outcome.ended_by(libc::SIGSEGV);
    assert_eq!(
        by_message || by_guard,
        seen != Seen::Not,
        "{case}: {}",
        outcome.describe()
    );
    if by_message {
        let pointer = (said.lines()).find_map(|line| line.strip_prefix("misuse: pointer "));
        let pointer = pointer.expect("a pointer");
        // A report of slab_debug or of guarded objects has several lines.
        let is_report = said.contains("BUG");
        let named = said
            .lines()
            .filter(|line| line.contains("uslub:") || (is_report && !line.starts_with("misuse:")))
            .any(|line| line.contains(pointer));
        assert!(named, "{case}: {}", outcome.describe());
    }
    seen
}

/// What the table says of each case: by default, hardened, with each of [`LETTERS`], and guarded.
fn table() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(workspace().join("docs/security.md")).expect("the document");
    text.lines()
        .skip_while(|line| *line != "## Misuse by mode")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let case = cells.get(1)?.strip_prefix("`thirty/")?.strip_suffix('`')?;
            let cells = &cells[2..][..3 + LETTERS.len()];
            Some((
                case.to_owned(),
                cells.iter().map(|&cell| cell.to_owned()).collect(),
            ))
        })
        .collect()
}

/// The letters of `slab_debug` that have a column.
const LETTERS: [&str; 4] = ["F", "FZ", "FP", "FZPU"];

/// Whether what was seen is what a cell says.
fn agrees(cell: &str, seen: Seen) -> bool {
    match cell {
        "at once" => seen == Seen::AtOnce,
        // Quarantine is left in random order.
        "by the flush" => seen <= Seen::AtTheFlush,
        "next use" => seen == Seen::AtNextUse,
        "flush" => seen == Seen::AtTheFlush,
        "not" => seen == Seen::Not,
        other => panic!("the table says '{other}'"),
    }
}

/// The cases of which the table says another thing than is seen, and how many ended.
fn compare(thirty: &Path, options: &str, column: usize) -> (Vec<String>, usize) {
    let table = table();
    let list = Run::of(thirty).plainly().succeeded().stdout;
    let cases: Vec<&str> = list.lines().collect();
    assert_eq!(cases.len(), 30);
    assert!(table.keys().eq(&{
        let mut sorted: Vec<String> = cases.iter().map(|&case| case.to_owned()).collect();
        sorted.sort();
        sorted
    }));
    let (mut wrong, mut ended) = (Vec::new(), 0);
    for case in cases {
        let outcome = Run::of(thirty)
            .args([case])
            .variable("USLUB_OPTIONS", options)
            .on(Way::PRELOADED);
        let seen = seen(case, &outcome);
        ended += usize::from(seen != Seen::Not);
        if !agrees(&table[case][column], seen) {
            wrong.push(format!("{case}: {seen:?}, not {}", table[case][column]));
        }
    }
    (wrong, ended)
}

fn program_to_misuse() -> Option<std::path::PathBuf> {
    if plain() {
        say_skipped("thirty: only uslub promises to see them");
        return None;
    }
    program("thirty")
}

#[test]
fn by_default_twenty_of_thirty_misuses_end_the_program() {
    let _shared = shared();
    let Some(thirty) = program_to_misuse() else {
        return;
    };
    for options in ["rseq=1", "rseq=2", "rseq=0"] {
        let (wrong, ended) = compare(&thirty, options, 0);
        assert!(wrong.is_empty(), "{options}: {wrong:#?}");
        assert!(ended >= 20, "{options}: {ended}");
    }
}

#[test]
fn each_letter_of_slab_debug_sees_what_the_table_says() {
    let _shared = shared();
    let Some(thirty) = program_to_misuse() else {
        return;
    };
    for (column, letter) in LETTERS.iter().enumerate() {
        let (wrong, _) = compare(&thirty, &format!("slab_debug={letter}"), 2 + column);
        assert!(wrong.is_empty(), "{letter}: {wrong:#?}");
    }
}

#[test]
fn a_guarded_object_is_seen_as_the_table_says() {
    let _shared = shared();
    let Some(thirty) = program_to_misuse() else {
        return;
    };
    for options in ["guard=10000", "guard=10000,rseq=0"] {
        let (wrong, _) = compare(&thirty, options, 2 + LETTERS.len());
        assert!(wrong.is_empty(), "{options}: {wrong:#?}");
    }
}

#[test]
fn hardened_all_of_thirty_misuses_end_the_program() {
    let _shared = shared();
    let Some(thirty) = program_to_misuse() else {
        return;
    };
    for options in ["hardened=1", "hardened=1,rseq=0"] {
        let (wrong, ended) = compare(&thirty, options, 1);
        assert!(wrong.is_empty(), "{options}: {wrong:#?}");
        assert!(ended >= 27, "{options}: {ended}");
    }
}

/// No false alarm: programs that use every call do so in the hardened mode too.
#[test]
fn hardened_right_programs_run() {
    let _shared = shared();
    if plain() {
        return say_skipped("hardened: only uslub has the mode");
    }
    for name in ["align", "threads", "storm", "info"] {
        let Some(program) = program(name) else {
            return;
        };
        Run::of(&program)
            .variable("USLUB_OPTIONS", "hardened=1")
            .on(Way::PRELOADED)
            .succeeded();
    }
}
