//! What the documents name is there: tests, scripts, files and identifiers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use uslub_tests::subject::workspace;

fn read(path: &str) -> Option<String> {
    fs::read_to_string(workspace().join(path)).ok()
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The file and the text in it that prove that a test of this name is there; `None` for what names
/// no test.
fn place(quoted: &str) -> Option<(String, String)> {
    let (folder, rest) = quoted.split_once('/')?;
    let of_c = |path: &str, case: &str| Some((path.to_owned(), format!("\"{case}\",")));
    match folder {
        "case" => return of_c("tests/c/misuse.c", rest),
        "capi" if !rest.contains(": ") => {
            return of_c("crates/uslub-capi/tests/c/misuse.c", rest);
        }
        _ => {}
    }
    let (file, name) = rest.split_once(": ")?;
    let folder = match folder {
        "core" => "crates/uslub-core/tests/all",
        "uslub" => "crates/uslub/tests",
        "linux" => "crates/uslub-linux/tests",
        "c" => "crates/uslub-tests/tests/c",
        "capi" => "crates/uslub-capi/tests/capi",
        _ => return None,
    };
    Some((format!("{folder}/{file}.rs"), format!("fn {name}(")))
}

#[test]
fn each_test_that_the_documents_name_is_there() {
    let mut seen = BTreeSet::new();
    for document in ["docs/security.md", "docs/testing.md"] {
        let text = read(document).unwrap_or_else(|| panic!("{document} is missing"));
        for name in quoted(&text) {
            let Some((file, wanted)) = place(name) else {
                continue;
            };
            let source = read(&file).unwrap_or_else(|| panic!("{document}: no {file} for {name}"));
            assert!(
                source.contains(&wanted),
                "{document}: {name} is not in {file}"
            );
            seen.insert(name.to_owned());
        }
    }
    assert!(seen.len() > 80, "only {} tests are named", seen.len());
}

#[test]
fn each_row_of_the_table_of_misuse_names_a_test() {
    let text = read("docs/security.md").expect("the document");
    let rows: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "## The table")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| ") && !line.starts_with("| **"))
        .skip(1)
        .collect();
    assert!(rows.len() > 40, "only {} rows", rows.len());
    for row in rows {
        assert!(
            quoted(row).any(|name| place(name).is_some()),
            "no test: {row}"
        );
    }
}

#[test]
fn each_case_of_the_programs_of_misuse_is_in_the_table() {
    let text = read("docs/security.md").expect("the document");
    let named: BTreeSet<&str> = quoted(&text).collect();
    for (file, folder, quote) in [
        ("tests/c/misuse.c", "case", "    {\""),
        ("crates/uslub-capi/tests/c/misuse.c", "capi", "    { \""),
    ] {
        let source = read(file).expect("the program");
        for line in source.lines().filter_map(|line| line.strip_prefix(quote)) {
            let case = line.split('"').next().expect("a name");
            let name = format!("{folder}/{case}");
            assert!(named.contains(name.as_str()), "{name} is in no row");
        }
    }
}

#[test]
fn each_script_that_the_documents_name_is_there() {
    let mut count = 0;
    for document in ["docs/security.md", "docs/testing.md"] {
        let text = read(document).unwrap_or_else(|| panic!("{document} is missing"));
        for command in quoted(&text).filter(|quoted| quoted.starts_with(".ci/")) {
            let script = command.split_whitespace().next().expect("a word");
            let file: PathBuf = workspace().join(script);
            assert!(file.is_file(), "{document}: {script} is not there");
            count += 1;
        }
    }
    assert!(count > 5, "only {count} scripts are named");
}

/// What documents may name though no source or file has the name, each with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("libuslub_malloc.so", "cargo builds it"),
    ("mod.rs", "each folder has one"),
];

fn is_exception(name: &str) -> bool {
    EXCEPTIONS.iter().any(|(exception, _)| *exception == name)
}

/// The words of all sources of Rust and C below a folder.
fn collect_words(folder: &Path, words: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_words(&path, words);
        } else if path
            .extension()
            .is_some_and(|e| e == "rs" || e == "c" || e == "h")
        {
            let text = fs::read_to_string(&path).expect("a source");
            let all = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.extend(all.filter(|word| word.len() >= 3).map(str::to_owned));
        }
    }
}

/// Identifiers and files that a text names and that are nowhere, each with its line; and how many
/// it names.
fn stale(text: &str, words: &BTreeSet<String>) -> (Vec<String>, usize) {
    let folders = ["crates/uslub-core/src", "crates", "tests/mutations", ""];
    let (mut found, mut count) = (Vec::new(), 0);
    // The last folder named in the section: `sequences.rs` after `arch/x86_64/` is below it.
    let mut near = workspace().to_owned();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            near = workspace().to_owned();
        }
        for name in quoted(line) {
            let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let is_path = |c: char| is_word(c) || "./-".contains(c);
            let name = name.strip_suffix('!').unwrap_or(name);
            let has_end = name.ends_with('/') || Path::new(name).extension().is_some();
            let there = if name.len() < 3 {
                continue;
            } else if name.chars().all(is_word) {
                let parts = name.split("::").filter(|part| part.len() >= 3);
                let mut missing = parts.filter(|part| !words.contains(*part));
                is_exception(name) || missing.next().is_none()
            } else if name.chars().all(is_path) && has_end {
                let mut places = folders.iter().map(|folder| workspace().join(folder));
                match places.find(|place| place.join(name).exists()) {
                    Some(place) => {
                        let path = place.join(name);
                        near = if path.is_dir() { path } else { near };
                        true
                    }
                    None => is_exception(name) || near.join(name).exists(),
                }
            } else {
                continue;
            };
            count += 1;
            if !there {
                found.push(format!("line {}: {name}", at + 1));
            }
        }
    }
    (found, count)
}

#[test]
fn each_file_and_identifier_that_the_documents_name_is_there() {
    let mut words = BTreeSet::new();
    collect_words(&workspace().join("crates"), &mut words);
    for document in ["docs/architecture.md", "docs/reading.md"] {
        let text = read(document).unwrap_or_else(|| panic!("{document} is missing"));
        let (found, count) = stale(&text, &words);
        assert!(found.is_empty(), "{document}: nowhere: {found:#?}");
        assert!(count > 80, "{document}: only {count} names");
    }
    // Not written in one piece: it would be a word of this source.
    let text = concat!("`Base`, `made", "_up`, `slab/base.rs`, `slab/made-up.rs`");
    assert_eq!(
        stale(text, &words).0,
        [concat!("line 1: made", "_up"), "line 1: slab/made-up.rs"]
    );
}
