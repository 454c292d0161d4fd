//! The rules: what is wrong, in a sentence with figures, and one thing to do.
//!
//! A rule speaks only of what the looks support. A share of the memory counts only above an
//! absolute size: half of a small program is not worth a word.

use super::facts::Facts;
use super::finding::Finding;
use super::{cache_rules, process_rules};

/// A rule: its name, what it looks for, and the check.
pub type Rule = (&'static str, &'static str, fn(&Facts) -> Vec<Finding>);

/// All rules, the most useful first.
pub const RULES: [Rule; 14] = [
    (
        "grows",
        "a cache whose live objects only rise",
        cache_rules::grows,
    ),
    (
        "slack",
        "free slots that cost much memory",
        cache_rules::slack,
    ),
    (
        "cached",
        "sheaves that hold much memory",
        process_rules::cached,
    ),
    (
        "kept",
        "free pages that do not go back",
        process_rules::kept,
    ),
    (
        "round-up",
        "objects much smaller than their slots",
        cache_rules::round_up,
    ),
    (
        "slow-path",
        "allocations that use no sheaf",
        cache_rules::slow_path,
    ),
    (
        "lock-waits",
        "threads that wait for list locks",
        cache_rules::lock_waits,
    ),
    (
        "remote-frees",
        "objects that are freed on another CPU",
        cache_rules::remote_frees,
    ),
    (
        "huge-pages",
        "slabs in small pages instead of huge ones",
        process_rules::huge_pages,
    ),
    (
        "mode",
        "options that make every call slow",
        process_rules::mode,
    ),
    (
        "limit",
        "a limit that is nearly reached",
        process_rules::limit,
    ),
    ("swap", "memory that is swapped out", process_rules::swap),
    (
        "not-ours",
        "memory that is not uslub's",
        process_rules::not_ours,
    ),
    (
        "damaged",
        "records that make no sense",
        process_rules::damaged,
    ),
];
