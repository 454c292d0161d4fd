//! The restartable sequences, as they are written, in every order and with everything that may come
//! in between.

use uslub_models::explore::Operation::{Add, Pop, PopMany, Push, PushMany, Take};
use uslub_models::explore::{Operation, Scenario, Seen, Sequences};

/// Preemptions, migrations and signals together: 1, or what `USLUB_PREEMPTIONS` adds to it.
fn disturbances() -> u32 {
    let more = std::env::var("USLUB_PREEMPTIONS");
    1 + more.map_or(0, |more| more.parse().expect("a number"))
}

/// The operations, numbering the objects that they push from `first`.
fn operations(first: u64) -> [Operation; 6] {
    [
        Pop,
        Push(first),
        PopMany(2),
        PushMany(vec![first, first + 1]),
        Take,
        Add(1),
    ]
}

fn pushed(operation: &Operation) -> u64 {
    match operation {
        Push(_) => 1,
        PushMany(objects) => objects.len() as u64,
        _ => 0,
    }
}

/// Each operation beside each, the second on `cpu`; `more` may change the scenario, given the next
/// object's number.
fn each_pair(name: &str, cpu: usize, more: impl Fn(&mut Scenario, u64)) {
    let sequences = Sequences::read();
    let mut all = Seen::default();
    for one in operations(4) {
        for other in operations(4 + pushed(&one)) {
            let next = 4 + pushed(&one) + pushed(&other);
            let mut scenario = Scenario {
                threads: vec![(0, vec![one.clone()]), (cpu, vec![other])],
                handler: None,
                drain: false,
                disturbances: disturbances(),
            };
            more(&mut scenario, next);
            let seen = sequences.explore(&scenario);
            all.states += seen.states;
            all.ends += seen.ends;
            all.aborts += seen.aborts;
        }
    }
    assert!(all.aborts > 0, "nothing was ever aborted");
    let Seen {
        states,
        ends,
        aborts,
        ..
    } = all;
    println!(
        "model sequences, {name}: {states} states, {ends} ends, {aborts} aborts, at most {} disturbances",
        disturbances()
    );
}

#[test]
fn two_threads_on_one_cpu() {
    each_pair("one CPU", 0, |_, _| ());
}

#[test]
fn two_threads_on_two_cpus() {
    each_pair("two CPUs", 1, |_, _| ());
}

#[test]
fn a_drain_comes_at_any_moment() {
    each_pair("drain", 0, |scenario, _| scenario.drain = true);
}

#[test]
fn a_signal_handler_allocates_at_any_moment() {
    each_pair("handler allocates", 0, |scenario, _| {
        scenario.handler = Some(Pop)
    });
}

#[test]
fn a_signal_handler_frees_at_any_moment() {
    each_pair("handler frees", 0, |scenario, next| {
        scenario.handler = Some(Push(next))
    });
}
