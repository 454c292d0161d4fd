//! What the documents say of tests and scripts: each that they name is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

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
        "capi" => return of_c("crates/uslub-capi/tests/c/misuse.c", rest),
        _ => {}
    }
    let (file, name) = rest.split_once(": ")?;
    let folder = match folder {
        "core" => "crates/uslub-core/tests/all",
        "uslub" => "crates/uslub/tests",
        "linux" => "crates/uslub-linux/tests",
        "c" => "crates/uslub-tests/tests/c",
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
