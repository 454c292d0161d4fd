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
fn every_misuse_is_seen_and_named_without_rseq() {
    misuse_is_seen(Way::TRY_LOCK);
}
