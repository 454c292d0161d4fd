//! Rules about the process as a whole.

use super::facts::{Facts, Limit};
use super::finding::{BYTES_MIN, Finding, is_share, of_process, share};
use crate::units;

/// Memory below which sheaves and kept pages are as intended.
const CACHED_MIN: u64 = 4 << 20;
/// Resident memory below which it does not matter whose it is.
const NOT_OURS_MIN: u64 = 64 << 20;
/// Slabs in small pages below which huge pages would save little: a CPU of today keeps the
/// translations of about 2,048 pages.
const SMALL_PAGES_MIN: u64 = 8 << 20;

/// Options of the process under which every call, or every call of some caches, is slow: the name,
/// the value that matters (`None`: any), and what it does.
const SLOW_OPTIONS: [(&str, Option<&str>, &str); 6] = [
    ("rseq", Some("0"), "every call takes a try-lock"),
    ("slab_debug", None, "debugged caches have no sheaves"),
    ("slub_debug", None, "debugged caches have no sheaves"),
    ("init_on_alloc", Some("1"), "caches have no sheaves"),
    ("init_on_free", Some("1"), "caches have no sheaves"),
    ("hardened", Some("1"), "every free is checked"),
];

/// Sheaves that hold much memory.
pub fn cached(facts: &Facts) -> Vec<Finding> {
    let (cached, live) = (facts.bridge.cached, facts.bridge.live);
    if cached < CACHED_MIN || !is_share(cached, live, 10) {
        return Vec::new();
    }
    let text = format!(
        "Free objects in sheaves hold {}; live objects hold {}.",
        units::size(cached),
        units::size(live)
    );
    let action = "bound the sheaves: USLUB_OPTIONS=sheaf_budget_mb=16 (more slow paths)";
    of_process("cached", cached, text, action.to_owned())
}

/// Free pages that stayed for all looks.
pub fn kept(facts: &Facts) -> Vec<Finding> {
    let kept = facts.bridge.kept.min(facts.kept.0).min(facts.kept.1);
    // Pages stay for a second by default.
    let is_long = facts.watched.as_secs_f64() >= 2.0;
    if !is_long || kept < CACHED_MIN || !is_share(kept, facts.bridge.resident, 10) {
        return Vec::new();
    }
    let calls: u64 = facts.caches.iter().map(|cache| cache.allocs).sum();
    let why = match calls {
        0 => "The program allocated nothing meanwhile, and only calls give pages back.".to_owned(),
        n => format!(
            "The program allocated {} objects meanwhile.",
            units::count(n)
        ),
    };
    let text = format!(
        "Free pages hold {} ({} of the resident memory), and did so for {:.1} s. {why}",
        units::size(kept),
        share(kept, facts.bridge.resident),
        facts.watched.as_secs_f64(),
    );
    let action = "call malloc_trim(0) at quiet moments, or start the program with 'uslub run', \
                  whose helper gives them back";
    of_process("kept", kept, text, action.to_owned())
}

/// Options at the start that make calls slow.
pub fn mode(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for word in facts.options.split([',', ' ']) {
        let Some((name, value)) = word.split_once('=') else {
            continue;
        };
        for (option, wanted, what) in SLOW_OPTIONS {
            if name.trim() == option && wanted.is_none_or(|wanted| wanted == value.trim()) {
                found.push(Finding {
                    rule: "mode",
                    cache: None,
                    bytes: None,
                    text: format!("The program was started with {name}={value}: {what}."),
                    action: format!("if that is not meant, start it without {name}"),
                });
            }
        }
    }
    found
}

/// Limits that are nearly reached.
pub fn limit(facts: &Facts) -> Vec<Finding> {
    let near = |limit: &&Limit| is_share(limit.used, limit.limit, 90);
    let found = facts.limits.iter().filter(near).map(|limit| {
        let figure = |n| {
            if limit.in_bytes {
                units::size(n)
            } else {
                units::count(n)
            }
        };
        Finding {
            rule: "limit",
            cache: None,
            bytes: limit.in_bytes.then_some(limit.used),
            text: format!(
                "{} of the limit on {} is used: {} of {}.",
                share(limit.used, limit.limit),
                limit.what,
                figure(limit.used),
                figure(limit.limit),
            ),
            action: limit.action.to_owned(),
        }
    });
    found.collect()
}

/// Memory that is swapped out.
pub fn swap(facts: &Facts) -> Vec<Finding> {
    let all = facts.swapped.saturating_add(facts.bridge.resident);
    if facts.swapped < BYTES_MIN || !is_share(facts.swapped, all, 10) {
        return Vec::new();
    }
    let text = format!(
        "{} of the program is swapped out; {} is resident.",
        units::size(facts.swapped),
        units::size(facts.bridge.resident)
    );
    let action = "give the machine more memory, or run less on it";
    of_process("swap", facts.swapped, text, action.to_owned())
}

/// Memory that is not uslub's.
pub fn not_ours(facts: &Facts) -> Vec<Finding> {
    let bridge = &facts.bridge;
    let others = bridge.files + bridge.stack + bridge.other;
    if bridge.resident < NOT_OURS_MIN || !is_share(others, bridge.resident, 50) {
        return Vec::new();
    }
    let text = format!(
        "{} of {} resident are not uslub's: files {}, other mappings {}.",
        units::size(others),
        units::size(bridge.resident),
        units::size(bridge.files),
        units::size(bridge.other),
    );
    let action = format!(
        "see which mappings: sort the sizes in /proc/{}/smaps",
        facts.pid
    );
    of_process("not-ours", others, text, action)
}

/// Records of caches that made no sense in any look.
pub fn damaged(facts: &Facts) -> Vec<Finding> {
    if facts.damaged == 0 {
        return Vec::new();
    }
    vec![Finding {
        rule: "damaged",
        cache: None,
        bytes: None,
        text: format!(
            "{} {} of caches made no sense in any look: the program may have overwritten {}.",
            units::count(facts.damaged),
            units::plural(facts.damaged, "record", "records"),
            units::plural(facts.damaged, "it", "them"),
        ),
        action: "find the write: start the program with 'uslub run --debug FZ'".to_owned(),
    }]
}

/// Huge pages that were split, or never came.
pub fn huge_pages(facts: &Facts) -> Vec<Finding> {
    let huge = &facts.huge;
    if huge.small < SMALL_PAGES_MIN || !is_share(huge.small, huge.asked, 50) {
        return Vec::new();
    }
    let (why, action) = match huge.is_allowed {
        true => (
            "parts of their 2 MiB went back to the system, which splits them, or it had none left",
            "keep free pages for longer: USLUB_OPTIONS=decay_ms=10000 (more memory idles)",
        ),
        false => (
            "the system allows none",
            "allow them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    };
    let text = format!(
        "{} of {} of slabs are in small pages, though huge pages were asked for: {why}.",
        units::size(huge.small),
        units::size(huge.asked),
    );
    of_process("huge-pages", huge.small, text, action.to_owned())
}
