//! Programs at the bounds of address space, memory and mappings: what the allocator keeps ahead of
//! use is not missing there.

use uslub_tests::tools::{alone, shared, tool};
use uslub_tests::{Run, Way, in_every_way, program};

const MIB_IN_KIB: u64 = 1024;
const GIB_IN_KIB: u64 = 1024 * MIB_IN_KIB;

/// Threads that `bounds threads` could create.
fn threads(stdout: &str) -> usize {
    let count = stdout
        .lines()
        .find_map(|line| line.strip_prefix("threads "));
    count
        .and_then(|n| n.parse().ok())
        .expect("a number of threads")
}

in_every_way! {
    fn tools_run_under_small_limits(way) {
        let _shared = shared();
        let Some(bounds) = program("bounds") else { return };
        for mib in [16, 24, 32, 48, 64] {
            let limited = |run: Run| run.address_space(mib * MIB_IN_KIB).on(way).succeeded();
            for (name, args) in [("/bin/ls", &["/"][..]), ("/bin/cat", &["/etc/passwd"]), ("/usr/bin/sort", &["/etc/passwd"])] {
                let Some(file) = tool(name) else { continue };
                limited(Run::of(file).args(args));
            }
            if mib >= 24 {
                limited(Run::of(&bounds).args(["small"]));
            }
            if mib >= 32 && let Some(python) = tool("/usr/bin/python3") {
                limited(Run::of(python).args(["-c", "pass"]));
            }
        }
    }

    fn nine_tenths_of_the_address_space_can_be_one_object(way) {
        let _shared = shared();
        let Some(bounds) = program("bounds") else { return };
        for mib in [256, 1024, 4096] {
            Run::of(&bounds).args(["large", "90"]).address_space(mib * MIB_IN_KIB).on(way).wrote("bounds: ok");
        }
    }

    fn there_are_as_many_threads_under_a_limit_as_without_the_library(way) {
        let _alone = alone();
        let Some(bounds) = program("bounds") else { return };
        let script = format!("ulimit -v {GIB_IN_KIB} && exec \"$0\" threads");
        let plain = Run::of("/bin/sh").args(["-c", &script]).args([&bounds]).plainly();
        let plain = threads(&plain.succeeded().stdout);
        let ours = Run::of(bounds).args(["threads"]).address_space(GIB_IN_KIB).on(way);
        let ours = threads(&ours.succeeded().stdout);
        assert!(ours + 4 >= plain, "{ours} threads, {plain} without the library");
    }

    fn a_limit_on_address_space_leaves_all_of_it_to_the_program(way) {
        let _alone = alone();
        let Some(bounds) = program("bounds") else { return };
        Run::of(bounds).args(["own", "AS"]).on(way).wrote("bounds: ok");
    }

    fn a_limit_on_data_leaves_all_of_it_to_the_program(way) {
        let _alone = alone();
        let Some(bounds) = program("bounds") else { return };
        Run::of(bounds).args(["own", "DATA"]).on(way).wrote("bounds: ok");
    }

    fn all_memory_can_be_locked_where_little_can(way) {
        let _shared = shared();
        let Some(bounds) = program("bounds") else { return };
        Run::of(bounds).args(["lock"]).on(way).wrote("bounds: ok");
    }

    fn many_large_objects_have_few_mappings(way) {
        let _alone = alone();
        let Some(bounds) = program("bounds") else { return };
        for args in [["many", "300", "40000"], ["many", "1500", "20000"], ["many", "5000", "9000"]] {
            Run::of(&bounds).args(args).on(way).wrote("bounds: ok");
        }
    }

    fn objects_grow_and_shrink_among_many(way) {
        let _alone = alone();
        let Some(bounds) = program("bounds") else { return };
        Run::of(bounds).args(["grow"]).on(way).wrote("bounds: ok");
    }

    fn what_the_system_refuses_to_unmap_goes_later(way) {
        let _alone = alone();
        let Some(bounds) = program("bounds") else { return };
        Run::of(bounds).args(["refused"]).on(way).wrote("bounds: ok");
    }
}

#[test]
fn the_program_holds_on_the_library_that_is_there() {
    let _alone = alone();
    let Some(bounds) = program("bounds") else {
        return;
    };
    // On glibc the others fail.
    for args in ["small", "lock"] {
        Run::of(&bounds).args([args]).plainly().succeeded();
    }
}

/// As [`many_large_objects_have_few_mappings`], with as many objects as were reported.
#[test]
#[ignore = "long; by name"]
fn very_many_large_objects_have_few_mappings() {
    let _alone = alone();
    let Some(bounds) = program("bounds") else {
        return;
    };
    for args in [["many", "300", "150000"], ["many", "1500", "70000"]] {
        Run::of(&bounds)
            .args(args)
            .on(Way::PRELOADED)
            .wrote("bounds: ok");
    }
}
