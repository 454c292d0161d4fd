//! The long ones: everything at once, every block verified.

use uslub_tests::tools::{alone, number};
use uslub_tests::{Run, Way, in_every_way, program};

fn stress(way: Way, threads: u64, seconds: u64) {
    let _alone = alone();
    let Some(stress) = program("stress") else {
        return;
    };
    let outcome = Run::of(stress)
        .args([seconds, threads].map(|n| n.to_string()))
        .limit(120 + 2 * seconds)
        .on(way)
        .wrote("errors=0");
    println!("{way:?}\n{}", outcome.stdout);
}

fn seconds() -> u64 {
    number("USLUB_STRESS_SECONDS", 5)
}

in_every_way! {
    fn sixteen_threads_lose_and_damage_no_block(way) {
        stress(way, 16, seconds());
    }
}

#[test]
fn one_thread_alone_loses_and_damages_no_block() {
    for way in [Way::PRELOADED, Way::BY_NUMBER, Way::TRY_LOCK] {
        stress(way, 1, seconds().div_ceil(5));
    }
}

#[test]
fn sixteen_threads_lose_and_damage_no_block_by_the_cpus_number() {
    stress(Way::BY_NUMBER, 16, seconds());
}

#[test]
fn sixteen_threads_lose_and_damage_no_block_with_a_barn_for_each_cpu() {
    let _alone = alone();
    let Some(stress) = program("stress") else {
        return;
    };
    Run::of(stress)
        .args([seconds(), 16].map(|n| n.to_string()))
        .limit(120 + 2 * seconds())
        .variable("USLUB_OPTIONS", "barn_cpus=1")
        .on(Way::PRELOADED)
        .wrote("errors=0");
}

#[test]
fn a_hundred_threads_lose_and_damage_no_block() {
    stress(Way::PRELOADED, 100, seconds().div_ceil(2));
}

#[test]
fn memory_does_not_grow_while_threads_come_and_go() {
    let _alone = alone();
    let Some(churn) = program("churn") else {
        return;
    };
    let seconds = number("USLUB_CHURN_SECONDS", 12);
    for way in [Way::PRELOADED, Way::TRY_LOCK] {
        let outcome = Run::of(&churn)
            .args([seconds.to_string()])
            .limit(120 + seconds)
            .on(way)
            .wrote("errors=0");
        println!("{way:?}\n{}", outcome.stdout);
    }
}
