//! The rules: what is wrong, in a sentence with figures, and one thing to do.
//!
//! A rule speaks only of what the looks support. A share of the memory counts only above an
//! absolute size: half of a small program is not worth a word.

use super::facts::{CacheFacts, Facts};
use crate::units;
use serde::Serialize;

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// The cache, if it is about one.
    pub cache: Option<String>,
    /// The bytes that it is about.
    pub bytes: Option<u64>,
    /// What is wrong.
    pub text: String,
    /// One thing to do.
    pub action: String,
}

/// A rule: its name, what it looks for, and the check.
pub type Rule = (&'static str, &'static str, fn(&Facts) -> Vec<Finding>);

/// All rules, the most useful first.
pub const RULES: [Rule; 12] = [
    ("grows", "a cache whose live objects only rise", grows),
    ("slack", "free slots that cost much memory", slack),
    ("cached", "sheaves that hold much memory", cached),
    ("kept", "free pages that do not go back", kept),
    (
        "round-up",
        "objects much smaller than their slots",
        round_up,
    ),
    ("slow-path", "allocations that use no sheaf", slow_path),
    ("lock-waits", "threads that wait for list locks", lock_waits),
    ("mode", "options that make every call slow", mode),
    ("limit", "a limit that is nearly reached", limit),
    ("swap", "memory that is swapped out", swap),
    ("not-ours", "memory that is not uslub's", not_ours),
    ("damaged", "records that make no sense", damaged),
];

/// Memory below which a share is not worth a word.
const BYTES_MIN: u64 = 1 << 20;
/// Memory below which sheaves and kept pages are as intended.
const CACHED_MIN: u64 = 4 << 20;
/// Resident memory below which it does not matter whose it is.
const NOT_OURS_MIN: u64 = 64 << 20;
/// Looks from which on a rise is no accident: a cache that rises and falls by chance rises in five
/// pairs of looks once in 32 times, and must also rise by the share below.
const GROWS_LOOKS: usize = 6;
/// Least rise: a hundredth of what was live, and this many objects.
const GROWS_OBJECTS: u64 = 64;
/// Calls a second below which the slow path does not matter.
const CALLS_MIN: f64 = 10_000.0;
/// Waits for list locks a second that cost about a thousandth of a CPU, at a microsecond each.
const WAITS_MIN: f64 = 1_000.0;

/// Whether a part is at least so many per cent of the whole; false if the whole is 0.
fn is_share(part: u64, whole: u64, percent: u64) -> bool {
    whole > 0 && u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

/// A share for a sentence.
fn share(part: u64, whole: u64) -> String {
    units::share(part, whole).unwrap_or_else(|| "0 %".to_owned())
}

/// A number a second; 0 if no time passed.
fn per_second(number: u64, facts: &Facts) -> f64 {
    let seconds = facts.watched.as_secs_f64();
    if seconds > 0.0 {
        number as f64 / seconds
    } else {
        0.0
    }
}

fn of_cache(rule: &'static str, cache: &CacheFacts, bytes: u64) -> Finding {
    Finding {
        rule,
        cache: Some(cache.name.clone()),
        bytes: Some(bytes),
        text: String::new(),
        action: String::new(),
    }
}

fn of_process(rule: &'static str, bytes: u64, text: String, action: String) -> Vec<Finding> {
    vec![Finding {
        rule,
        cache: None,
        bytes: Some(bytes),
        text,
        action,
    }]
}

fn grows(facts: &Facts) -> Vec<Finding> {
    let grown = |cache: &&CacheFacts| {
        let (Some(first), last) = (cache.live.first(), cache.live_now()) else {
            return false;
        };
        let least = (first / 100).max(GROWS_OBJECTS).max(cache.uncertain);
        let mut pairs = cache.live.windows(2);
        cache.live.len() >= GROWS_LOOKS
            && last.saturating_sub(*first) >= least
            && pairs.all(|pair| pair[0] < pair[1])
    };
    let found = facts.caches.iter().filter(grown).map(|cache| {
        let more = cache.live_now() - cache.live[0];
        let bytes = more * cache.size.0;
        Finding {
            text: format!(
                "Cache '{}' grew from each look to the next, {} times in {:.1} s: by {} objects \
                 ({}), {} a second. It has {} now.",
                cache.name,
                cache.live.len() - 1,
                facts.watched.as_secs_f64(),
                units::count(more),
                units::size(bytes),
                units::size(per_second(bytes, facts) as u64),
                units::count(cache.live_now()),
            ),
            action: format!(
                "see whether it goes on: uslub doctor {} --seconds 60",
                facts.pid
            ),
            ..of_cache("grows", cache, bytes)
        }
    });
    found.collect()
}

fn slack(facts: &Facts) -> Vec<Finding> {
    let resident = facts.bridge.resident;
    let much = |cache: &&CacheFacts| {
        let used = cache.live_now() * cache.size.0;
        cache.free >= BYTES_MIN
            && is_share(cache.free, resident, 5)
            && !is_share(used, cache.memory, 50)
    };
    let found = facts.caches.iter().filter(much).map(|cache| {
        let used = cache.live_now() * cache.size.0;
        let (slabs, sparse) = cache.slabs;
        Finding {
            text: format!(
                "Cache '{}' uses {} of its {}: free slots are {}. {} of its {} slabs have at most \
                 a quarter of their slots live.",
                cache.name,
                share(used, cache.memory),
                units::size(cache.memory),
                units::size(cache.free),
                units::count(sparse),
                units::count(slabs),
            ),
            action: format!(
                "see how full its slabs are: uslub map {} {}",
                facts.pid, cache.name
            ),
            ..of_cache("slack", cache, cache.free)
        }
    });
    found.collect()
}

fn cached(facts: &Facts) -> Vec<Finding> {
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

fn kept(facts: &Facts) -> Vec<Finding> {
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

fn round_up(facts: &Facts) -> Vec<Finding> {
    let waste = |cache: &CacheFacts| {
        let (slot, object) = cache.size;
        match object {
            0 => 0,
            _ => slot.saturating_sub(object),
        }
    };
    let much = |cache: &&CacheFacts| {
        is_share(waste(cache), cache.size.0, 20) && waste(cache) * cache.live_now() >= BYTES_MIN
    };
    let found = facts.caches.iter().filter(much).map(|cache| {
        let bytes = waste(cache) * cache.live_now();
        Finding {
            text: format!(
                "Objects of cache '{}' have {} bytes, their slots {}: {} {} hold {} of padding.",
                cache.name,
                cache.size.1,
                cache.size.0,
                units::count(cache.live_now()),
                units::plural(cache.live_now(), "object", "objects"),
                units::size(bytes),
            ),
            action: "lower the cache's alignment, or make its objects smaller".to_owned(),
            ..of_cache("round-up", cache, bytes)
        }
    });
    found.collect()
}

fn slow_path(facts: &Facts) -> Vec<Finding> {
    let all: u64 = facts.caches.iter().map(|cache| cache.allocs).sum();
    let slow: u64 = facts.caches.iter().map(|cache| cache.slow).sum();
    if per_second(all, facts) < CALLS_MIN || !is_share(slow, all, 50) {
        return Vec::new();
    }
    let worst = facts.caches.iter().max_by_key(|cache| cache.slow);
    let worst = worst.map_or(String::new(), |cache| cache.name.clone());
    vec![Finding {
        rule: "slow-path",
        text: format!(
            "{} of {} allocations in {:.1} s came directly from slabs, without a sheaf; most of \
             them in cache '{worst}'.",
            share(slow, all),
            units::count(all),
            facts.watched.as_secs_f64(),
        ),
        cache: Some(worst),
        bytes: None,
        action: "look for the reason: docs/observing.md, 'Why does no sheaf serve?'".to_owned(),
    }]
}

fn lock_waits(facts: &Facts) -> Vec<Finding> {
    let slow = |cache: &&CacheFacts| per_second(cache.waits, facts) >= WAITS_MIN;
    let found = facts.caches.iter().filter(slow).map(|cache| Finding {
        text: format!(
            "Threads waited {} times in {:.1} s for the list lock of cache '{}'.",
            units::count(cache.waits),
            facts.watched.as_secs_f64(),
            cache.name,
        ),
        action: "let sheaves grow: USLUB_OPTIONS=sheaf_capacity_max=500".to_owned(),
        bytes: None,
        ..of_cache("lock-waits", cache, 0)
    });
    found.collect()
}

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

fn mode(facts: &Facts) -> Vec<Finding> {
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

fn limit(facts: &Facts) -> Vec<Finding> {
    let near = |limit: &&super::facts::Limit| is_share(limit.used, limit.limit, 90);
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

fn swap(facts: &Facts) -> Vec<Finding> {
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

fn not_ours(facts: &Facts) -> Vec<Finding> {
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

fn damaged(facts: &Facts) -> Vec<Finding> {
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
