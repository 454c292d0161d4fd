//! Processes, threads and libraries that come and go.

use uslub_tests::subject::{plain, subject};
use uslub_tests::tools::{alone, number, say_skipped, shared};
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

    fn threads_fork_inside_every_lock(way) {
        let _alone = alone();
        let Some(storm) = program("storm") else { return };
        let seconds = number("USLUB_STORM_SECONDS", 3);
        Run::of(storm)
            .args([seconds.to_string()])
            .limit(120 + seconds)
            .on(way)
            .wrote("storm: ok");
    }

    fn a_stack_of_16_kib_is_enough(way) {
        let _alone = alone();
        let Some(odd) = program("odd") else { return };
        Run::of(odd).args(["stacks"]).on(way).wrote("odd: ok, stacks");
    }

    fn threads_that_are_cancelled_leave_nothing_behind(way) {
        let _alone = alone();
        let Some(odd) = program("odd") else { return };
        Run::of(odd).args(["cancel"]).on(way).wrote("odd: ok, cancel");
    }

    fn children_that_share_memory_may_run_programs(way) {
        let _alone = alone();
        let Some(odd) = program("odd") else { return };
        Run::of(odd).args(["clone"]).on(way).wrote("odd: ok, clone");
    }

    fn features_of_the_kernel_do_no_harm(way) {
        let _shared = shared();
        let Some(features) = program("features") else { return };
        Run::of(features).on(way).wrote("features: ok");
    }

    fn a_handler_on_a_small_stack_may_allocate(way) {
        let _alone = alone();
        let Some(odd) = program("odd") else { return };
        Run::of(odd).args(["handler"]).on(way).succeeded();
    }

    fn copies_of_the_library_live_side_by_side(way) {
        let _alone = alone();
        if plain() {
            return say_skipped("copies: only uslub can be loaded by file");
        }
        let Some(copies) = program("copies") else { return };
        let folder = tempfile::tempdir().expect("a folder for copies");
        let files = ["one.so", "two.so"].map(|name| {
            let file = folder.path().join(name);
            std::fs::copy(&subject().library, &file).expect("the library is copied");
            file
        });
        Run::of(copies).args(files).on(way).wrote("copies: ok, 3");
    }
}
