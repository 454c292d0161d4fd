//! Interpreters.

use tempfile::tempdir;
use uslub_programs::text::write_lines;
use uslub_programs::{Program, Way};

#[test]
fn perl_uses_hashes_regular_expressions_and_growing_strings() {
    let Some(perl) = Program::find("perl") else {
        return;
    };
    let folder = tempdir().unwrap();
    let lines = folder.path().join("lines");
    write_lines(&lines, 300_000, 1_000_000).unwrap();
    perl.arg(crate::given("words.pl"))
        .arg(&lines)
        .variable("PERL_HASH_SEED", "0")
        .same_both_ways()
        .succeeded();
}

/// Python itself: `python3` on the search path may be a script that picks one.
fn python() -> Option<Program> {
    let python = Program::find("python3")?;
    let path = python
        .args(["-c", "import sys; print(sys.executable)"])
        .run(Way::Plain)
        .succeeded();
    let python = Program::at(path.text());
    Some(python.variable("PYTHONHASHSEED", "0").arg("-B"))
}

#[test]
fn python_builds_dicts_in_threads_forks_and_starts_subprocesses() {
    let Some(python) = python() else {
        return;
    };
    python
        .arg(crate::given("objects.py"))
        .same_both_ways()
        .succeeded();
}

#[test]
fn python_does_the_same_with_every_object_from_malloc() {
    let Some(python) = python() else {
        return;
    };
    python
        .arg(crate::given("objects.py"))
        .variable("PYTHONMALLOC", "malloc")
        .same_both_ways()
        .succeeded();
}

#[test]
fn lua_builds_binary_trees_tables_and_strings() {
    let Some(lua) = Program::find("lua5.4") else {
        return;
    };
    lua.arg(crate::given("trees.lua"))
        .same_both_ways()
        .succeeded();
}

#[test]
fn children_of_a_program_on_uslub_are_on_uslub_too() {
    let Some(python) = python() else {
        return;
    };
    let ask = python.args([
        "-c",
        "import subprocess; print(subprocess.getoutput('grep -c libuslub_malloc /proc/self/maps'))",
    ]);
    assert_eq!(ask.run(Way::Plain).succeeded().text(), "0");
    assert_ne!(ask.run(Way::Uslub).succeeded().text(), "0");
}
