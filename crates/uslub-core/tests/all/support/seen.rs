//! What the allocator says when it ends the process: on the platform for tests, a panic with its
//! message.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The message with which `work` ends the process.
pub fn message(work: impl FnOnce()) -> String {
    let ended = catch_unwind(AssertUnwindSafe(work));
    let why = ended.expect_err("this was not seen");
    *why.downcast::<String>().expect("a message")
}

/// Fails the test unless the message names the pointer and holds all `parts`.
pub fn assert_names(message: &str, pointer: *mut u8, parts: &[&str]) {
    let pointer = format!("{pointer:p}");
    for part in parts.iter().copied().chain([pointer.as_str()]) {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}
