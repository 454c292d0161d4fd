//! `slab_debug` for malloc's classes, switched in a process that began without it.

use uslub_tests::subject::plain;
use uslub_tests::tools::{say_skipped, shared};
use uslub_tests::{Outcome, Run, Way, program};

/// The program doing something, under some options; nothing where it cannot run.
fn run(what: &[&str], options: &str) -> Option<Outcome> {
    if plain() {
        say_skipped("switched: only uslub has slab_debug");
        return None;
    }
    let _shared = shared();
    let run = Run::of(program("switched")?).args(what.iter().copied());
    Some(run.variable("USLUB_OPTIONS", options).on(Way::PRELOADED))
}

/// Fails unless the bug ends the program with these lines.
fn ends(what: &[&str], lines: &[&str]) {
    let Some(outcome) = run(what, "") else {
        return;
    };
    let described = outcome.describe();
    assert!(outcome.ended_by(libc::SIGABRT), "{what:?}: {described}");
    let object = (outcome.stdout.lines()).find_map(|line| line.strip_prefix("object "));
    let object = object.expect("its address");
    for line in lines {
        let line = line.replace("OBJECT", object);
        let said = outcome.stderr.contains(&line);
        assert!(said, "{what:?}: no '{line}': {described}");
    }
}

fn goes_on(what: &[&str], options: &str) -> Option<Outcome> {
    let outcome = run(what, options)?;
    let described = outcome.describe();
    assert!(outcome.status.success(), "{what:?}: {described}");
    assert!(outcome.stdout.contains("went on"), "{what:?}: {described}");
    Some(outcome)
}

#[test]
fn misuse_after_the_switch_is_found_and_names_cache_pointer_and_stacks() {
    let allocated = "Allocated in switched+0x";
    let report = ["BUG kmalloc-48 (pid ", "switched): Object corrupt"];
    ends(
        &["asked"],
        &[
            report.as_slice(),
            &["[kmalloc Redzone overwritten]", "OBJECT", allocated],
        ]
        .concat(),
    );
    ends(
        &["before"],
        &[
            report.as_slice(),
            &["[Left Redzone overwritten]", "Object OBJECT", allocated],
        ]
        .concat(),
    );
    ends(
        &["after-free"],
        &[
            report.as_slice(),
            &["[Poison overwritten]", "Freed in switched+0x"],
        ]
        .concat(),
    );
    ends(
        &["twice"],
        &[
            "BUG kmalloc-48",
            "Object already free",
            "OBJECT",
            "Freed in switched+0x",
        ],
    );
    ends(&["interior"], &["BUG kmalloc-48", "Invalid object pointer"]);
    ends(
        &["behind", "FZ,kmalloc-48"],
        &[
            "[Right Redzone overwritten]",
            "FIX kmalloc-48: Object at OBJECT not freed",
        ],
    );
}

#[test]
fn damage_is_repaired_where_reports_are_not_fatal() {
    for bug in ["asked", "before", "after-free", "twice", "interior"] {
        let Some(outcome) = goes_on(&[bug], "slab_debug_fatal=0") else {
            return;
        };
        let said = outcome.stderr.contains("FIX kmalloc-48: ");
        assert!(said, "{bug}: {}", outcome.describe());
    }
}

#[test]
fn what_is_right_gives_no_report_while_threads_and_children_run() {
    for options in [
        "",
        "slab_debug=FZ,kmalloc-1*",
        "rseq=0",
        "guard=1000",
        "rseq=2",
    ] {
        let Some(outcome) = goes_on(&["right"], options) else {
            return;
        };
        assert_eq!(outcome.stderr, "", "{options}");
    }
}

#[test]
fn objects_from_before_the_switch_are_freed_right() {
    ends(&["old"], &["'kmalloc-48'", "double free", "OBJECT"]);
}

#[test]
fn what_cannot_be_switched_is_refused_with_a_message() {
    let Some(outcome) = goes_on(&["refused"], "") else {
        return;
    };
    let classes = "is no size class; known are kmalloc-8 to kmalloc-8k, and prefixes with a *";
    for message in [
        "slab_debug option 'Q' unknown; known are F Z P U T A O -",
        &format!("slab_debug: 'session' {classes}"),
        &format!("slab_debug: 'kmalloc-50' {classes}"),
        "slab_debug ';' switches nothing; it takes letters (F Z P U T A O -), a comma and names",
        "slab_debug: the value is null",
    ] {
        let said = outcome.stderr.contains(message);
        assert!(said, "no '{message}': {}", outcome.describe());
    }
}

#[test]
fn the_hardened_mode_cannot_be_switched() {
    let Some(outcome) = run(&["twice"], "hardened=1") else {
        return;
    };
    let message = "slab_debug cannot be switched with hardened=1";
    assert!(outcome.stderr.contains(message), "{}", outcome.describe());
}
