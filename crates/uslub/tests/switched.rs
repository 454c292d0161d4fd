//! Size classes that are debugged, and plain again, while the program runs on them.

mod support;

use std::thread;

use support::{assert_fatal, in_child};
use uslub::debug::{SwitchError, switch_classes};
use uslub::{Gfp, Uslub, kfree, kmalloc};

#[global_allocator]
static GLOBAL: Uslub = Uslub;

/// A value that the heap holds, and what it must be.
fn words(seed: usize) -> Vec<String> {
    (0..200).map(|n| "x".repeat((n * seed) % 300)).collect()
}

fn assert_are_words(words: Vec<String>, seed: usize) {
    for (n, word) in words.iter().enumerate() {
        assert_eq!(word.len(), (n * seed) % 300);
        assert!(word.bytes().all(|byte| byte == b'x'));
    }
}

#[test]
fn collections_live_through_switches() {
    const TEST: &str = "collections_live_through_switches";
    if let Some(output) = in_child(TEST) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("BUG"), "{said}");
        return;
    }
    let old = words(7);
    thread::scope(|scope| {
        for seed in [11, 13] {
            scope.spawn(move || {
                for _ in 0..300 {
                    assert_are_words(words(seed), seed);
                }
            });
        }
        for value in ["FZPU", "-", "F,kmalloc-*", "ZP", "-,kmalloc-1*", ""] {
            switch_classes(value).unwrap();
            assert_are_words(words(5), 5);
        }
    });
    let debugged = words(3);
    assert_eq!(uslub::debug::errors(), 0);
    switch_classes("-").unwrap();
    assert_are_words(old, 7);
    assert_are_words(debugged, 3);
    assert_eq!(uslub::debug::errors(), 0);
}

#[test]
fn misuse_after_the_switch_is_found() {
    const TEST: &str = "misuse_after_the_switch_is_found";
    if let Some(output) = in_child(TEST) {
        assert_fatal(&output, &["'kmalloc-48'", "memory was damaged"]);
        let said = String::from_utf8_lossy(&output.stderr);
        for line in [
            "[kmalloc Redzone overwritten]",
            "BUG kmalloc-48",
            "Allocated in",
        ] {
            assert!(said.contains(line), "{said}");
        }
        return;
    }
    switch_classes("FZPU,kmalloc-48").unwrap();
    let object = kmalloc(40, Gfp::KERNEL).unwrap();
    // SAFETY: the bug that the test is about; the byte is the allocator's.
    unsafe {
        object.add(40).write_volatile(0x12);
        kfree(object.as_ptr());
    }
}

#[test]
fn what_is_unknown_is_refused() {
    let letter = switch_classes("FQ,kmalloc-48");
    assert_eq!(letter, Err(SwitchError::UnknownLetter('Q')));
    let named = switch_classes("F,session");
    assert_eq!(named, Err(SwitchError::UnknownClass("session")));
    let error: Box<dyn std::error::Error> = named.unwrap_err().into();
    assert!(
        error
            .to_string()
            .contains("known are kmalloc-8 to kmalloc-8k")
    );
}
