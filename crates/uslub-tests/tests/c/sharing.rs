//! Children that share memory, and libraries that share the process.

use std::ffi::OsString;
use std::path::Path;

use uslub_tests::subject::{plain, subject};
use uslub_tests::tools::{alone, say_skipped, shared, tool};
use uslub_tests::{Launch, Run, Way, deep_library, in_every_way, library, program};

/// Runs one part of `tests/c/sharing.c`.
fn part(name: &str, way: Way) {
    let _alone = alone();
    let Some(sharing) = program("sharing") else {
        return;
    };
    let said = format!("sharing: ok, {name}");
    Run::of(sharing).args([name]).on(way).wrote(&said);
}

in_every_way! {
    fn children_of_vfork_may_allocate(way) {
        part("vfork", way);
    }

    fn children_of_clone_may_allocate(way) {
        part("clone", way);
    }

    fn children_that_live_beside_their_parent_may_allocate(way) {
        part("lives", way);
    }

    fn children_by_number_may_allocate(way) {
        part("number", way);
    }

    fn threads_that_nobody_registers_may_allocate(way) {
        part("thread", way);
    }

    fn forks_past_the_c_library_may_allocate(way) {
        part("fork", way);
    }

    fn children_of_posix_spawn_do_no_harm(way) {
        part("spawn", way);
    }

    fn children_of_all_kinds_come_and_go_at_once(way) {
        part("many", way);
    }
}

#[test]
fn by_the_cpus_number_too_children_may_allocate() {
    for name in ["vfork", "clone", "lives", "number", "thread", "many"] {
        part(name, Way::BY_NUMBER);
    }
}

/// The ways to preload `other` and uslub: before it and, where the command does not decide, behind
/// it.
fn orders(other: &Path, way: Way) -> Vec<OsString> {
    if plain() {
        return vec![other.into()];
    }
    if way.launch == Launch::Command {
        // `uslub run` adds its library.
        return vec![other.into()];
    }
    let ours = &subject().library;
    [[ours, other], [other, ours]]
        .map(|[first, second]| {
            let mut list = first.as_os_str().to_owned();
            list.push(":");
            list.push(second);
            list
        })
        .into()
}

in_every_way! {
    fn other_libraries_see_each_call_once(way) {
        let _shared = shared();
        let (Some(chain), Some(other)) = (program("chain"), library("chain_lib")) else { return };
        for order in orders(&other, way) {
            Run::of(&chain)
                .args(["calls"])
                .variable("LD_PRELOAD", &order)
                .on(way)
                .wrote("chain: ok, calls")
                .wrote("chain: _exit seen");
        }
    }

    fn torsocks_sees_each_connection(way) {
        let _shared = shared();
        let (Some(chain), Some(torsocks)) = (program("chain"), tool("torsocks")) else { return };
        Run::of(chain).behind([torsocks]).args(["connect"]).on(way).wrote("chain: ok, connect");
    }

    fn the_inner_names_of_malloc_are_ours(way) {
        let _shared = shared();
        let (Some(chain), Some(other)) = (program("chain"), library("malloc_lib")) else { return };
        Run::of(&chain).args(["names"]).on(way).wrote("chain: ok, names");
        for order in orders(&other, way) {
            Run::of(&chain)
                .args(["names"])
                .variable("LD_PRELOAD", &order)
                .on(way)
                .wrote("chain: a wrapper was")
                .wrote("chain: ok, names");
        }
    }

    fn a_library_that_binds_deeply_uses_the_same_malloc(way) {
        let _shared = shared();
        let (Some(chain), Some(deep)) = (program("chain"), deep_library()) else { return };
        Run::of(chain).args(["deep".as_ref(), deep.as_os_str()]).on(way).wrote("chain: ok, deep");
    }
}

#[test]
fn torsocks_before_and_behind_the_library_sees_each_connection() {
    let _shared = shared();
    let Some(chain) = program("chain") else {
        return;
    };
    let places = [
        "/usr/lib/x86_64-linux-gnu/torsocks/libtorsocks.so",
        "/usr/lib/aarch64-linux-gnu/torsocks/libtorsocks.so",
    ];
    let Some(other) = places
        .map(Path::new)
        .into_iter()
        .find(|file| file.is_file())
    else {
        return say_skipped("torsocks is not installed");
    };
    for order in orders(other, Way::PRELOADED) {
        Run::of(&chain)
            .args(["connect"])
            .variable("LD_PRELOAD", &order)
            .on(Way::PRELOADED)
            .wrote("chain: ok, connect");
    }
}
