//! The header says what the sources say. That it is just what `.ci/header` makes of them is that
//! step's to check.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The functions that the sources export.
pub fn functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(crate_folder().join("src")).expect("the sources") {
        let text = fs::read_to_string(entry.expect("a source").path()).expect("a source is text");
        let mut exported = false;
        for line in text.lines() {
            if exported
                && let Some((_, rest)) = line.split_once("extern \"C\" fn ")
                && let Some((name, _)) = rest.split_once('(')
            {
                names.insert(name.to_owned());
            }
            exported = line == "#[unsafe(no_mangle)]";
        }
    }
    names
}

#[test]
fn the_header_has_and_describes_every_function() {
    let header = fs::read_to_string(crate_folder().join("include/uslub.h")).expect("the header");
    let mut declared = BTreeSet::new();
    let mut above = "";
    for line in header.lines() {
        if let Some((before, _)) = line.split_once('(')
            && let Some(name) = before.rsplit([' ', '*']).next()
            && name.starts_with("uslub_")
            && !line.starts_with([' ', '#'])
            && !line.starts_with("typedef")
        {
            assert!(above.ends_with("*/"), "{name} is not described");
            declared.insert(name.to_owned());
        }
        above = line;
    }
    assert_eq!(declared, functions());
    assert!(declared.len() > 60);
}
