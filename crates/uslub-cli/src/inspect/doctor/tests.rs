//! Each rule on facts that have the illness, and on facts that do not.

use super::facts::{CacheFacts, Facts, Limit};
use super::huge::HugePages;
use super::{findings, json, text};
use std::time::Duration;
use uslub_inspect::Bridge;

const MIB: u64 = 1 << 20;

/// A process in good health: 100 MiB, of it 90 MiB live in one cache.
fn healthy() -> Facts {
    let live = 90 * MIB / 256;
    Facts {
        pid: 4711,
        program: "server".to_owned(),
        watched: Duration::from_secs(3),
        looks: 7,
        bridge: Bridge {
            resident: 100 * MIB,
            live: 90 * MIB,
            cached: MIB,
            free: 4 * MIB,
            kept: MIB,
            tables: MIB,
            files: 2 * MIB,
            stack: 0,
            other: MIB,
        },
        kept: (MIB, MIB),
        swapped: 0,
        damaged: 0,
        caches: vec![CacheFacts {
            name: "kmalloc-256".to_owned(),
            size: (256, 256),
            live: vec![live; 7],
            uncertain: 0,
            memory: 94 * MIB,
            free: 4 * MIB,
            slabs: (24_000, 100),
            allocs: 900_000,
            frees: 900_000,
            moved: 9_000,
            slow: 900,
            waits: 10,
        }],
        limits: vec![Limit {
            what: "memory of the control group",
            action: "raise the group's limit",
            used: 100 * MIB,
            limit: 200 * MIB,
            in_bytes: true,
        }],
        huge: HugePages {
            asked: 70 * MIB,
            small: 8 * MIB,
            is_allowed: true,
        },
        options: "decay_ms=100,rseq=1,hardened=0".to_owned(),
    }
}

/// The rules that find something.
fn rules(facts: &Facts) -> Vec<&'static str> {
    let found = findings(facts);
    for finding in &found {
        assert!(finding.text.ends_with('.'), "{finding:?}");
        assert!(!finding.action.is_empty(), "{finding:?}");
    }
    found.iter().map(|finding| finding.rule).collect()
}

/// What the facts say after a change.
fn after(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
    let mut facts = healthy();
    change(&mut facts);
    rules(&facts)
}

#[test]
fn nothing_is_found_in_good_health() {
    assert_eq!(rules(&healthy()), [""; 0]);
    assert_eq!(rules(&Facts::default()), [""; 0]);
    let said = text(&healthy(), &[], 100);
    assert!(said.starts_with("server 4711: 100.0 MiB resident, 90.0 MiB live; 7 looks in 3.0 s\n"));
    assert!(said.contains("Nothing was found. Looked for: grows, slack"));
}

#[test]
fn a_cache_that_only_rises_grows() {
    let series = |numbers: &[u64]| {
        let numbers = numbers.to_vec();
        after(|facts| facts.caches[0].live = numbers)
    };
    let rises = [
        400_000, 401_000, 402_000, 403_000, 404_000, 405_000, 406_000,
    ];
    assert_eq!(series(&rises), ["grows"]);
    // It stood still once; it fell once; it rose by little; there are few looks.
    assert_eq!(
        series(&[400_000, 401_000, 401_000, 403_000, 404_000, 405_000]),
        [""; 0]
    );
    assert_eq!(
        series(&[400_000, 401_000, 400_999, 403_000, 404_000, 405_000]),
        [""; 0]
    );
    assert_eq!(
        series(&[400_000, 400_001, 400_002, 400_003, 400_004, 400_005]),
        [""; 0]
    );
    assert_eq!(series(&[400_000, 450_000, 500_000]), [""; 0]);
    // The looks may be wrong by more than the rise.
    let unsure = after(|facts| {
        facts.caches[0].live = rises.to_vec();
        facts.caches[0].uncertain = 7_000;
    });
    assert_eq!(unsure, [""; 0]);
    let mut facts = healthy();
    facts.caches[0].live = rises.to_vec();
    let found = &findings(&facts)[0];
    assert_eq!(
        found.text,
        "Cache 'kmalloc-256' grew from each look to the next, 6 times in 3.0 s: by 6 000 objects \
         (1.5 MiB), 500.0 KiB a second. It has 406 000 now."
    );
    assert_eq!(found.bytes, Some(6_000 * 256));
}

#[test]
fn free_slots_are_slack_if_they_are_many_and_the_cache_is_little_used() {
    let slack = |live: u64, free: u64| {
        after(|facts| {
            facts.caches[0].live = vec![live; 7];
            facts.caches[0].free = free;
        })
    };
    assert_eq!(slack(10 * MIB / 256, 80 * MIB), ["slack"]);
    assert_eq!(
        slack(60 * MIB / 256, 30 * MIB),
        [""; 0],
        "more than half is used"
    );
    assert_eq!(slack(10 * MIB / 256, 4 * MIB), [""; 0], "4 % of the memory");
    let small = after(|facts| {
        facts.bridge.resident = 2 * MIB;
        facts.caches[0] = CacheFacts {
            memory: MIB,
            free: MIB / 2,
            ..CacheFacts::default()
        };
    });
    assert_eq!(small, [""; 0], "a small program");
}

#[test]
fn the_largest_finding_of_a_rule_comes_first() {
    let mut facts = healthy();
    let little_used = |name: &str, free| CacheFacts {
        name: name.to_owned(),
        size: (64, 64),
        memory: 50 * MIB,
        free,
        ..CacheFacts::default()
    };
    facts.caches = vec![
        little_used("small", 6 * MIB),
        little_used("large", 40 * MIB),
        little_used("middle", 20 * MIB),
    ];
    let found = findings(&facts);
    let names: Vec<_> = found.iter().filter_map(|f| f.cache.as_deref()).collect();
    assert_eq!(names, ["large", "middle", "small"]);
}

#[test]
fn sheaves_and_kept_pages_need_a_size_and_a_share() {
    let cached = |live, cached| after(|f| (f.bridge.live, f.bridge.cached) = (live, cached));
    assert_eq!(cached(50 * MIB, 6 * MIB), ["cached"]);
    assert_eq!(cached(90 * MIB, 6 * MIB), [""; 0]);
    assert_eq!(cached(2 * MIB, 2 * MIB), [""; 0]);
    let kept = |first, last, seconds| {
        after(|facts| {
            (facts.kept, facts.bridge.kept) = ((first, last), last);
            facts.watched = Duration::from_secs(seconds);
        })
    };
    assert_eq!(kept(20 * MIB, 20 * MIB, 3), ["kept"]);
    assert_eq!(kept(0, 20 * MIB, 3), [""; 0], "they came just now");
    assert_eq!(kept(20 * MIB, 20 * MIB, 0), [""; 0], "no time passed");
    assert_eq!(kept(3 * MIB, 3 * MIB, 3), [""; 0]);
    let mut facts = healthy();
    (facts.kept, facts.bridge.kept) = ((20 * MIB, 20 * MIB), 20 * MIB);
    facts.caches[0].allocs = 0;
    assert!(
        findings(&facts)[0]
            .text
            .contains("allocated nothing meanwhile")
    );
}

#[test]
fn padding_counts_if_the_object_is_much_smaller_than_its_slot() {
    let padded = |object| after(|facts| facts.caches[0].size = (256, object));
    assert_eq!(padded(136), ["round-up"]);
    assert_eq!(padded(250), [""; 0]);
    assert_eq!(padded(0), [""; 0], "the size of the objects is not known");
}

#[test]
fn slow_paths_and_waits_need_many_calls() {
    let slow = |allocs, slow| {
        after(|facts| (facts.caches[0].allocs, facts.caches[0].slow) = (allocs, slow))
    };
    assert_eq!(slow(900_000, 500_000), ["slow-path"]);
    assert_eq!(slow(900_000, 400_000), [""; 0]);
    assert_eq!(slow(9_000, 9_000), [""; 0]);
    assert_eq!(after(|f| f.caches[0].waits = 9_000), ["lock-waits"]);
    let at_once = after(|facts| {
        facts.caches[0].waits = 9_000;
        facts.watched = Duration::ZERO;
    });
    assert_eq!(at_once, [""; 0]);
}

#[test]
fn frees_on_other_cpus_need_many_of_them() {
    let moved = |frees, moved| {
        after(|facts| (facts.caches[0].frees, facts.caches[0].moved) = (frees, moved))
    };
    assert_eq!(moved(900_000, 500_000), ["remote-frees"]);
    assert_eq!(moved(900_000, 400_000), [""; 0], "less than half");
    assert_eq!(moved(20_000, 20_000), [""; 0], "few a second");
    let at_once = after(|facts| {
        facts.caches[0].moved = 900_000;
        facts.watched = Duration::ZERO;
    });
    assert_eq!(at_once, [""; 0]);
}

#[test]
fn small_pages_count_where_huge_pages_were_asked_for() {
    let pages = |asked, small| after(|facts| (facts.huge.asked, facts.huge.small) = (asked, small));
    assert_eq!(pages(70 * MIB, 40 * MIB), ["huge-pages"]);
    assert_eq!(pages(70 * MIB, 30 * MIB), [""; 0], "less than half");
    assert_eq!(pages(7 * MIB, 7 * MIB), [""; 0], "too little to matter");
    assert_eq!(pages(0, 0), [""; 0], "never asked for");
    let mut facts = healthy();
    facts.huge.small = 70 * MIB;
    facts.huge.is_allowed = false;
    let found = &findings(&facts)[0];
    assert!(found.text.ends_with("the system allows none."), "{found:?}");
    assert!(found.action.contains("transparent_hugepage"), "{found:?}");
}

#[test]
fn options_that_make_calls_slow_are_named() {
    let with = |options: &str| after(|facts| facts.options = options.to_owned());
    assert_eq!(with("rseq=0"), ["mode"]);
    assert_eq!(with("decay_ms=5, rseq=0"), ["mode"]);
    assert_eq!(with("slab_debug=FZ,kmalloc-64"), ["mode"]);
    assert_eq!(with("hardened=1 init_on_free=1"), ["mode", "mode"]);
    for fine in ["", "rseq=1", "rseq", "=", "hardened=0", "norseq=0"] {
        assert_eq!(with(fine), [""; 0], "{fine}");
    }
}

#[test]
fn limits_swap_foreign_memory_and_damage_are_said() {
    assert_eq!(after(|f| f.limits[0].used = 190 * MIB), ["limit"]);
    assert_eq!(after(|f| f.limits[0].limit = 0), [""; 0]);
    assert_eq!(after(|f| f.swapped = 50 * MIB), ["swap"]);
    assert_eq!(after(|f| f.swapped = 5 * MIB), [""; 0]);
    assert_eq!(after(|f| f.bridge.other = 60 * MIB), ["not-ours"]);
    let small = after(|f| (f.bridge.other, f.bridge.resident) = (30 * MIB, 40 * MIB));
    assert_eq!(small, [""; 0]);
    assert_eq!(after(|f| f.damaged = 1), ["damaged"]);
}

#[test]
fn json_has_all_rules_and_the_findings() {
    let mut facts = healthy();
    facts.damaged = 2;
    let found = findings(&facts);
    let text = json(&facts, &found).expect("JSON");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&value["format"], &value["pid"]), (&1.into(), &4711.into()));
    assert_eq!(value["rules"].as_array().expect("rules").len(), 14);
    assert_eq!(value["findings"][0]["rule"], "damaged");
    assert_eq!(value["findings"][0]["cache"], serde_json::Value::Null);
}
