//! `malloc` and `free` for aarch64, as they are written, in every order and with everything that
//! may come in between.

use uslub_models::fast_explore::Call::{Free, Malloc};
use uslub_models::fast_explore::{Call, FastPaths, Scenario, Seen};

/// Preemptions, migrations and signals together: 1, or what `USLUB_PREEMPTIONS` adds to it.
fn disturbances() -> u32 {
    let more = std::env::var("USLUB_PREEMPTIONS");
    1 + more.map_or(0, |more| more.parse().expect("a number"))
}

/// What the first thread calls.
fn first_calls() -> Vec<Vec<Call>> {
    vec![
        vec![Malloc, Malloc],
        vec![Free(4), Malloc],
        vec![Free(4), Free(5)],
    ]
}

/// Each call beside each, the second on `cpu`; `more` may change the scenario, given the next
/// object's number.
fn each_pair(name: &str, cpu: usize, first_calls: &[Vec<Call>], more: impl Fn(&mut Scenario, u64)) {
    let paths = FastPaths::read();
    let mut all = Seen::default();
    for one in first_calls {
        for other in [Malloc, Free(6)] {
            let frees = |calls: &[Call]| calls.iter().filter(|call| **call != Malloc).count();
            let first = 4 + frees(one) as u64;
            let other = if other == Malloc { Malloc } else { Free(first) };
            let mut scenario = Scenario {
                threads: vec![(0, one.clone()), (cpu, vec![other])],
                handler: None,
                drain: false,
                disturbances: disturbances(),
            };
            more(&mut scenario, first + frees(&[other]) as u64);
            let seen = paths.explore(&scenario);
            all.states += seen.states;
            all.ends += seen.ends;
            all.aborts += seen.aborts;
            all.late += seen.late;
        }
    }
    assert!(all.late > 0, "nothing was ever aborted behind its commit");
    assert!(
        all.aborts > all.late,
        "nothing was ever aborted before its commit"
    );
    let Seen {
        states,
        ends,
        aborts,
        late,
    } = all;
    println!(
        "model fast paths, {name}: {states} states, {ends} ends, {aborts} aborts, \
         {late} behind the commit, at most {} disturbances",
        disturbances()
    );
}

#[test]
fn two_threads_on_one_cpu() {
    each_pair("one CPU", 0, &first_calls(), |_, _| ());
}

#[test]
fn two_threads_on_two_cpus() {
    each_pair("two CPUs", 1, &first_calls(), |_, _| ());
}

#[test]
fn a_drain_comes_at_any_moment() {
    each_pair("drain", 0, &[vec![Malloc], vec![Free(4)]], |scenario, _| {
        scenario.drain = true
    });
}

#[test]
fn a_signal_handler_allocates_at_any_moment() {
    each_pair("handler allocates", 0, &first_calls(), |scenario, _| {
        scenario.handler = Some(Malloc)
    });
}

#[test]
fn a_signal_handler_frees_at_any_moment() {
    each_pair("handler frees", 0, &first_calls(), |scenario, next| {
        scenario.handler = Some(Free(next))
    });
}
