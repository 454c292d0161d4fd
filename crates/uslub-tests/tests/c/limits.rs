//! Programs that may not have all the memory they want.

use uslub_tests::tools::{alone, shared, tool};
use uslub_tests::{Run, Way, in_every_way, program};

const MIB_IN_KIB: u64 = 1024;

in_every_way! {
    fn a_limit_that_the_program_sets_on_its_address_space_is_kept(way) {
        let _alone = alone();
        let Some(rlimit) = program("rlimit") else { return };
        Run::of(rlimit).args(["as", "512"]).on(way).wrote("rlimit: ok");
    }

    fn a_limit_that_the_program_sets_on_its_data_is_kept(way) {
        let _alone = alone();
        let Some(rlimit) = program("rlimit") else { return };
        Run::of(rlimit).args(["data", "512"]).on(way).wrote("rlimit: ok");
    }

    fn a_limit_that_the_shell_sets_is_kept(way) {
        let _alone = alone();
        let Some(rlimit) = program("rlimit") else { return };
        for mib in [64, 128, 256, 512, 1024, 2048, 4096] {
            Run::of(&rlimit)
                .args(["inherited"])
                .address_space(mib * MIB_IN_KIB)
                .on(way)
                .wrote("rlimit: ok");
        }
    }

    fn small_programs_run_under_any_limit(way) {
        let _shared = shared();
        let Some(rlimit) = program("rlimit") else { return };
        let Some(nothing) = tool("/bin/true") else { return };
        for mib in [64, 96, 128, 200, 256, 512, 1000, 1024, 2048, 3000, 4096] {
            let limited = |run: Run| run.address_space(mib * MIB_IN_KIB).on(way).succeeded();
            limited(Run::of(&nothing));
            limited(Run::of(&rlimit).args(["small"]));
        }
    }
}

#[test]
fn the_programs_themselves_hold_on_the_library_that_is_there() {
    let _alone = alone();
    for (name, args) in [
        ("api", &[][..]),
        ("align", &[]),
        ("info", &[]),
        ("cxx", &[]),
        ("threads", &["500"]),
        ("stress", &["1"]),
        ("tiny", &[]),
        ("rlimit", &["as", "512"]),
        ("rlimit", &["small"]),
    ] {
        let Some(file) = program(name) else { return };
        Run::of(file).args(args).plainly().succeeded();
    }
}

#[test]
fn a_program_really_runs_on_uslub_when_it_says_so() {
    let _shared = shared();
    if uslub_tests::subject::plain() {
        return;
    }
    let Some(tiny) = program("tiny") else { return };
    // without the library, a program that expects it must fail
    let outcome = Run::of(&tiny).variable("USLUB_EXPECT", "1").plainly();
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.describe());
    for way in [Way::PRELOADED, Way::UNDER_RUN] {
        Run::of(&tiny).on(way).wrote("tiny: ok");
    }
}
