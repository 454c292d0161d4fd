//! Processes, threads and libraries that come and go.

use uslub_tests::tools::{alone, number, shared};
use uslub_tests::{Run, early, in_every_way, program};

in_every_way! {
    fn it_works_before_main_after_main_and_under_dlopen(way) {
        let _shared = shared();
        let Some((early, library)) = early() else { return };
        Run::of(early).args([library]).on(way).wrote("early: ok, 1000 loads");
    }

    fn children_are_born_at_any_moment(way) {
        let _alone = alone();
        let Some(forks) = program("forks") else { return };
        let count = number("USLUB_FORKS", 200);
        Run::of(forks)
            .args([count, count.min(200)].map(|n| n.to_string()))
            .limit(120 + count)
            .on(way)
            .wrote("forks: ok");
    }

    fn a_thread_that_freed_much_may_end(way) {
        let _shared = shared();
        let Some(leaving) = program("leaving") else { return };
        Run::of(leaving).on(way).wrote("leaving: ok");
    }

    fn short_threads_leave_nothing_behind(way) {
        let _alone = alone();
        let Some(threads) = program("threads") else { return };
        Run::of(threads).on(way).wrote("threads: ok, 2000");
    }
}
