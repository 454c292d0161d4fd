//! Misuse of caches and of kmalloc from C, by default, in the hardened mode, and with each letter of
//! `slab_debug`, against the table of docs/security.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use uslub_tests::Run;
use uslub_tests::subject::workspace;

use crate::SIGABRT;
use crate::built::{Linked, outcome, program};

/// The columns of the table, as `USLUB_OPTIONS`.
const MODES: [&str; 7] = [
    "",
    "hardened=1",
    "slab_debug=F",
    "slab_debug=FZ",
    "slab_debug=FP",
    "slab_debug=FZPU",
    "guard=10000",
];

/// What a misuse's end shows, in the words of the table.
fn seen(program: &Path, case: &str, options: &str) -> &'static str {
    let outcome = Run::of(program)
        .args([case])
        .variable("USLUB_OPTIONS", options)
        .plainly();
    let said = &outcome.stderr;
    let aborted = outcome.ended_by(SIGABRT);
    let named = said.contains("uslub: ") || said.contains("BUG misused");
    assert!(
        !aborted || named,
        "{case}, {options}: {}",
        outcome.describe()
    );
    match (said.matches("survived").count(), aborted) {
        (0, true) => "at once",
        (1, true) => "next use",
        (2, true) => "flush",
        (3, false) if said.contains("is not freed") => "warned",
        (3, false) => "not",
        _ => panic!("{case}, {options}: {}", outcome.describe()),
    }
}

/// The rows of the table, by misuse.
fn table() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(workspace().join("docs/security.md")).expect("the document");
    text.lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let case = cells.next()?.strip_prefix("`c/")?.strip_suffix('`')?;
            let cells = cells.take(MODES.len()).map(str::to_owned).collect();
            Some((case.to_owned(), cells))
        })
        .collect()
}

#[test]
fn each_misuse_is_seen_where_the_table_says() {
    let source = "crates/uslub-capi/tests/c/modes.c";
    let Some(program) = program(source, Linked::Dynamic, &[]) else {
        return;
    };
    let list = outcome(&program, &[]).succeeded().stdout;
    let table = table();
    assert_eq!(table.len(), list.lines().count(), "{:?}", table.keys());
    let mut wrong = String::new();
    for case in list.lines() {
        let found: Vec<_> = MODES.iter().map(|o| seen(&program, case, o)).collect();
        if table[case] != found {
            wrong += &format!("| `c/{case}` | {} |\n", found.join(" | "));
        }
    }
    assert!(wrong.is_empty(), "this was seen:\n{wrong}");
}
