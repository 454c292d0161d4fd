//! Memory goes back to the system, and nobody notices how.

use uslub_tests::tools::{alone, shared};
use uslub_tests::{Run, Way, in_every_way, program};

in_every_way! {
    fn malloc_trim_gives_everything_back_at_once(way) {
        let _alone = alone();
        let Some(rss) = program("rss") else { return };
        for threads in ["1", "4"] {
            Run::of(&rss).args(["trim", threads]).on(way).wrote("rss: ok");
        }
    }

    fn a_program_that_locks_itself_up_notices_nothing(way) {
        let _alone = alone();
        let Some(sandbox) = program("sandbox") else { return };
        Run::of(sandbox).on(way).succeeded();
    }

    fn a_single_threaded_program_stays_single_threaded(way) {
        let _shared = shared();
        let Some(unshare) = program("unshare") else { return };
        Run::of(unshare).on(way).wrote("unshare: 1 threads");
    }
}

#[test]
fn a_program_that_locks_itself_up_may_leave_by_exit() {
    let _alone = alone();
    let Some(sandbox) = program("sandbox") else {
        return;
    };
    // under `uslub run` a report is written at the end, which needs open
    for way in [Way::PRELOADED, Way::UNREGISTERED, Way::TRY_LOCK] {
        Run::of(&sandbox)
            .args(["exit"])
            .on(way)
            .wrote("sandbox: ok");
    }
}

#[test]
fn an_idle_program_gives_everything_back_in_five_seconds_under_uslub_run() {
    let _alone = alone();
    let Some(rss) = program("rss") else { return };
    for way in [Way::UNDER_RUN, Way::UNDER_RUN_TRY_LOCK] {
        for threads in ["1", "4"] {
            Run::of(&rss).args(["idle", threads]).on(way).succeeded();
        }
    }
}

#[test]
fn decay_rides_on_later_calls_in_the_bare_library() {
    let _alone = alone();
    let Some(rss) = program("rss") else { return };
    for way in [Way::PRELOADED, Way::TRY_LOCK] {
        for threads in ["1", "4"] {
            Run::of(&rss).args(["calls", threads]).on(way).succeeded();
        }
    }
}
