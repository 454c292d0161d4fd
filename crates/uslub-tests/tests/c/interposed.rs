//! Libraries that stand between a program and libc: the allocator must not call through them.

use std::path::Path;

use uslub_tests::compile::{library, own_new};
use uslub_tests::subject::subject;
use uslub_tests::tools::shared;
use uslub_tests::way::{Launch, Way};
use uslub_tests::{Run, in_every_way, program};

/// The list of libraries that puts the interposer before or behind uslub.
fn list(way: Way, interposer: &Path, first: bool) -> String {
    let (interposer, library) = (interposer.display(), subject().library.display());
    match way.launch {
        Launch::Command => interposer.to_string(),
        Launch::Preload if first => format!("{interposer}:{library}"),
        Launch::Preload => format!("{library}:{interposer}"),
    }
}

/// Runs the program with the interposer, whose clock goes so, in each order.
fn with_clock(way: Way, clock: &str) {
    let (Some(interposed), Some(interposer)) = (program("interposed"), library("interposer"))
    else {
        return;
    };
    for first in [true, false] {
        Run::of(&interposed)
            .args(["2"])
            .variable("LD_PRELOAD", list(way, &interposer, first))
            .variable("INTERPOSER_CLOCK", clock)
            .on(way)
            .wrote("interposed: ok");
    }
}

in_every_way! {
    fn wrappers_that_allocate_do_no_harm(way) {
        let _shared = shared();
        with_clock(way, "real");
    }

    fn a_clock_that_stands_still_does_no_harm(way) {
        let _shared = shared();
        with_clock(way, "frozen");
    }

    fn a_clock_that_jumps_does_no_harm(way) {
        let _shared = shared();
        with_clock(way, "jumping");
    }

    fn an_audit_library_may_follow_each_binding(way) {
        let _shared = shared();
        let Some(interposed) = program("interposed") else { return };
        let Some(interposer) = library("interposer") else { return };
        for lazy in ["LD_BIND_NOW", "LD_BIND_NOT"] {
            Run::of(&interposed)
                .variable("LD_AUDIT", &interposer)
                .variable(lazy, "1")
                .on(way)
                .wrote("interposed: ok");
        }
    }

    fn objects_of_another_malloc_go_back_to_it(way) {
        let _shared = shared();
        let Some(program) = own_new() else { return };
        Run::of(program).on(way).wrote("own_new: ok");
    }

    fn a_misuse_ends_by_the_signal_though_abort_is_wrapped(way) {
        let _shared = shared();
        let Some(interposed) = program("interposed") else { return };
        let Some(interposer) = library("interposer") else { return };
        let outcome = Run::of(&interposed)
            .args(["2", "misuse"])
            .variable("LD_PRELOAD", list(way, &interposer, true))
            .on(way);
        assert!(outcome.stderr.contains("double free"), "{}", outcome.describe());
        // The command passes its program's signal on as a shell does.
        let ended = outcome.ended_by(libc::SIGABRT) || outcome.status.code() == Some(128 + libc::SIGABRT);
        assert!(ended, "{}", outcome.describe());
    }
}
