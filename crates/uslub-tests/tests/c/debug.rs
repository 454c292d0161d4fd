//! `slab_debug` for malloc: a planted bug is found and named, and what is right passes.

use uslub_tests::subject::plain;
use uslub_tests::tools::{say_skipped, shared};
use uslub_tests::{Outcome, Run, Way, program};

/// The program with a bug, under some options; nothing where it cannot run.
fn run(bug: &str, options: &str) -> Option<Outcome> {
    if plain() {
        say_skipped("debug: only uslub has slab_debug");
        return None;
    }
    let _shared = shared();
    let planted = Run::of(program("planted")?).args([bug]);
    Some(
        planted
            .variable("USLUB_OPTIONS", options)
            .on(Way::PRELOADED),
    )
}

/// Fails unless the bug ends the program with these lines.
fn ends(bug: &str, options: &str, lines: &[&str]) {
    let Some(outcome) = run(bug, options) else {
        return;
    };
    let described = outcome.describe();
    assert!(outcome.ended_by(libc::SIGABRT), "{bug}: {described}");
    let first = outcome.stdout.lines().next().expect("an object");
    let object = first.strip_prefix("object ").expect("its address");
    for line in lines {
        let line = line.replace("OBJECT", object);
        assert!(
            outcome.stderr.contains(&line),
            "{bug}: no '{line}': {described}"
        );
    }
}

#[test]
fn a_write_behind_an_object_is_found_at_its_free() {
    let lines = [
        "[Right Redzone overwritten]",
        "First byte 0x12 instead of 0xcc",
        "BUG kmalloc-48 (pid ",
        "planted): Object corrupt",
        "Object OBJECT @offset=",
        "Redzone  0x",
        "FIX kmalloc-48: Restoring Right Redzone",
        "FIX kmalloc-48: Object at OBJECT not freed",
        "memory was damaged; slab_debug_fatal=0 repairs it and goes on",
    ];
    ends("behind", "slab_debug=FZ", &lines);
}

#[test]
fn a_write_before_an_object_is_found_at_its_free() {
    ends(
        "before",
        "slab_debug=FZ,kmalloc-*",
        &["[Left Redzone overwritten]", "Object OBJECT"],
    );
}

#[test]
fn a_write_behind_the_size_that_was_asked_for_is_found_with_who_allocated() {
    let lines = [
        "[kmalloc Redzone overwritten]",
        "Allocated in planted+0x",
        "age=",
        " pid=",
    ];
    ends("asked", "slab_debug=FZU", &lines);
}

#[test]
fn a_write_after_a_free_is_found_at_the_next_allocation_with_who_freed() {
    let lines = [
        "[Poison overwritten]",
        "First byte 0x12 instead of 0x6b",
        "Freed in planted+0x",
        "Object OBJECT",
        "FIX kmalloc-48: Marking all objects used",
    ];
    ends("after-free", "slab_debug=FPU", &lines);
}

#[test]
fn a_second_free_is_found_with_who_allocated_and_who_freed() {
    let lines = [
        "Object already free",
        "Allocated in planted+0x",
        "Freed in planted+0x",
    ];
    ends("twice", "slab_debug=FU", &lines);
    ends("twice", "slab_debug=P", &["double free"]);
}

#[test]
fn a_pointer_into_an_object_is_found() {
    ends(
        "interior",
        "slab_debug=F",
        &["BUG kmalloc-48", "Invalid object pointer"],
    );
}

#[test]
fn damage_is_repaired_where_reports_are_not_fatal() {
    let options = "slab_debug_fatal=0,slab_debug=FZPU";
    for bug in [
        "behind",
        "before",
        "asked",
        "after-free",
        "twice",
        "interior",
    ] {
        let Some(outcome) = run(bug, options) else {
            return;
        };
        assert!(outcome.status.success(), "{bug}: {}", outcome.describe());
        assert!(
            outcome.stdout.contains("went on"),
            "{bug}: {}",
            outcome.describe()
        );
        assert!(
            outcome.stderr.contains("FIX kmalloc-48: "),
            "{bug}: {}",
            outcome.describe()
        );
    }
}

#[test]
fn what_is_right_gives_no_report() {
    for options in [
        "slab_debug",
        "slab_debug=FZPU",
        "slab_debug=Z",
        "slab_debug=P",
        "slab_debug=U",
    ] {
        let Some(outcome) = run("none", options) else {
            return;
        };
        assert!(
            outcome.status.success(),
            "{options}: {}",
            outcome.describe()
        );
        assert_eq!(outcome.stderr, "", "{options}");
    }
}

#[test]
fn sized_frees_pass_with_the_right_size_and_end_the_program_with_another() {
    if plain() {
        return say_skipped("debug: only uslub has slab_debug");
    }
    let _shared = shared();
    let Some(sized) = program("sized") else {
        return;
    };
    for options in ["slab_debug=F", "slab_debug=FZPU"] {
        let run = || Run::of(sized.clone()).variable("USLUB_OPTIONS", options);
        let right = run().on(Way::PRELOADED);
        assert!(right.status.success(), "{options}: {}", right.describe());
        for wrong in [["1", "0"], ["1", "2"], ["2", "3"]] {
            let outcome = run().args(wrong).on(Way::PRELOADED);
            let said = outcome.stderr.contains("free_sized of 0x");
            let ended = outcome.ended_by(libc::SIGABRT);
            assert!(said && ended, "{options}: {}", outcome.describe());
        }
    }
}

#[test]
fn a_letter_that_is_unknown_is_named_and_skipped() {
    let Some(outcome) = run("none", "slab_debug=QF") else {
        return;
    };
    assert!(outcome.status.success());
    let message = "slab_debug option 'Q' unknown. skipped; known are F Z P U T A O -";
    assert!(outcome.stderr.contains(message), "{}", outcome.describe());
}
