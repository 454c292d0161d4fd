//! Misuse ends the program, and the program is told why.

use std::path::Path;

use uslub_tests::subject::plain;
use uslub_tests::tools::{say_skipped, shared};
use uslub_tests::{Outcome, Run, Way, program};

/// Words of which the message must hold one.
fn reasons(case: &str) -> &'static [&'static str] {
    if case.contains("double") || case.contains("realloc-freed") {
        &["double free", "already free", "not allocated", "freed"]
    } else if case.contains("interior") || case.contains("misaligned") {
        &["interior", "inside", "misaligned"]
    } else {
        &[
            "not allocated",
            "never allocated",
            "foreign",
            "not ours",
            "not from",
        ]
    }
}

/// What is wrong with the end of the program, if anything.
fn complaint(case: &str, outcome: &Outcome) -> Option<String> {
    let say = |what: &str| Some(format!("{case}: {what}: {}\n", outcome.describe()));
    if !outcome.ended_by(libc::SIGABRT) {
        return say("it did not abort");
    }
    let pointer = outcome
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("misuse: pointer "))
        .expect("the program names the pointer first");
    let Some(message) = outcome.stderr.lines().find(|line| line.contains("uslub:")) else {
        return say("no line from uslub");
    };
    if !message.to_lowercase().contains(pointer) {
        return say("the message lacks the pointer");
    }
    if !reasons(case).iter().any(|reason| message.contains(reason)) {
        return say("the message lacks the reason");
    }
    None
}

fn cases(misuse: &Path) -> Vec<String> {
    let list = Run::of(misuse).plainly().succeeded().stdout;
    list.lines().map(str::to_owned).collect()
}

fn misuse_is_seen(way: Way) {
    if plain() {
        return say_skipped("misuse: only uslub promises to see it");
    }
    let _shared = shared();
    let Some(misuse) = program("misuse") else {
        return;
    };
    let cases = cases(&misuse);
    assert!(cases.len() > 20, "the program lists its cases");
    let complaints: String = cases
        .iter()
        .filter_map(|case| complaint(case, &Run::of(&misuse).args([case]).on(way)))
        .collect();
    assert!(complaints.is_empty(), "{complaints}");
}

#[test]
fn every_misuse_is_seen_and_named() {
    misuse_is_seen(Way::PRELOADED);
}

#[test]
fn every_misuse_is_seen_and_named_without_libc_rseq() {
    misuse_is_seen(Way::UNREGISTERED);
}

#[test]
fn every_misuse_is_seen_and_named_by_the_cpus_number() {
    misuse_is_seen(Way::BY_NUMBER);
}

#[test]
fn every_misuse_is_seen_and_named_without_rseq() {
    misuse_is_seen(Way::TRY_LOCK);
}

/// What a call sees before it returns; the other cases are seen at the next flush.
#[test]
fn what_can_be_seen_at_once_is_seen_at_once() {
    if plain() {
        return say_skipped("misuse: only uslub promises to see it");
    }
    let _shared = shared();
    let Some(misuse) = program("misuse") else {
        return;
    };
    let at_once: &[&str] = &[
        "large-double",
        "large-double-later",
        "huge-double",
        "huge-double-later",
        "large-interior",
        "large-interior-near",
        "huge-interior",
        "huge-interior-near",
        "stack",
        "static",
        "code",
        "wild-high",
        "wild-low",
        "wild-kernel",
        "never-allocated",
        "realloc-freed-large",
        "realloc-freed-huge",
        "realloc-static",
        "realloc-huge-interior",
    ];
    let said = |case: &str, way| Run::of(&misuse).args([case]).on(way).stderr;
    for way in [Way::PRELOADED, Way::TRY_LOCK] {
        for case in at_once {
            let said = said(case, way);
            assert!(!said.contains("not seen at once"), "{case}: {said}");
        }
    }
    // Small objects: marks and slots.
    for case in [
        "small-double",
        "tiny-double",
        "page-double",
        "small-double-later",
        "small-interior",
        "small-misaligned",
        "page-interior",
    ] {
        for way in [Way::PRELOADED, Way::BY_NUMBER, Way::TRY_LOCK] {
            let said = said(case, way);
            assert!(!said.contains("not seen at once"), "{case}: {said}");
        }
    }
}

#[test]
fn a_sized_free_passes_with_the_right_size_and_ends_the_program_with_another() {
    let _shared = shared();
    if plain() {
        return say_skipped("sized frees: glibc has none yet");
    }
    let Some(sized) = program("sized") else {
        return;
    };
    for way in [Way::PRELOADED, Way::TRY_LOCK] {
        Run::of(&sized).on(way).wrote("sized: ok");
        for (one, other) in [("0", "3"), ("3", "0"), ("4", "6"), ("5", "2"), ("6", "1")] {
            let outcome = Run::of(&sized).args([one, other]).on(way);
            assert!(outcome.ended_by(libc::SIGABRT), "{}", outcome.describe());
            assert!(
                outcome.stderr.contains("wrong size or alignment"),
                "{}",
                outcome.describe()
            );
        }
    }
}
