//! Rules about one cache each.

use super::facts::{CacheFacts, Facts};
use super::finding::{BYTES_MIN, Finding, is_share, of_cache, per_second, share};
use crate::units;

/// Looks from which on a rise is no accident: a cache that rises and falls by chance rises in five
/// pairs of looks once in 32 times, and must also rise by the share below.
const GROWS_LOOKS: usize = 6;
/// Least rise: a hundredth of what was live, and this many objects.
const GROWS_OBJECTS: u64 = 64;
/// Calls a second below which the slow path does not matter.
const CALLS_MIN: f64 = 10_000.0;
/// Waits for list locks a second that cost about a thousandth of a CPU, at a microsecond each.
const WAITS_MIN: f64 = 1_000.0;

/// Caches whose live objects rose from each look to the next.
pub fn grows(facts: &Facts) -> Vec<Finding> {
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

/// Caches with many free slots of which little is used.
pub fn slack(facts: &Facts) -> Vec<Finding> {
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

/// Caches whose objects are much smaller than their slots.
pub fn round_up(facts: &Facts) -> Vec<Finding> {
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

/// Allocations that no sheaf served.
pub fn slow_path(facts: &Facts) -> Vec<Finding> {
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

/// Caches for whose list locks threads wait.
pub fn lock_waits(facts: &Facts) -> Vec<Finding> {
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

/// Caches of which most objects are freed on another CPU slot than they were allocated on.
pub fn remote_frees(facts: &Facts) -> Vec<Finding> {
    let many = |cache: &&CacheFacts| {
        per_second(cache.moved, facts) >= CALLS_MIN && is_share(cache.moved, cache.frees, 50)
    };
    let found = facts.caches.iter().filter(many).map(|cache| Finding {
        text: format!(
            "At least {} of {} objects of cache '{}' that were freed in {:.1} s were allocated on \
             another CPU: their cache lines move from CPU to CPU.",
            units::count(cache.moved),
            units::count(cache.frees),
            cache.name,
            facts.watched.as_secs_f64(),
        ),
        action: "free objects on the thread that allocated them: hand them back to it in batches"
            .to_owned(),
        bytes: None,
        ..of_cache("remote-frees", cache, 0)
    });
    found.collect()
}
