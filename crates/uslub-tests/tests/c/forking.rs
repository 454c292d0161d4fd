//! Processes that are copied: in any way, at any moment, with whatever fork handlers.

use uslub_tests::tools::alone;
use uslub_tests::{Run, Way, atfork, in_every_way, program};

/// Ways to make a child, as `forking.c` numbers them; those before the last are functions of the C
/// library.
const WAYS: [u32; 5] = [0, 1, 2, 3, 4];

fn forking(arguments: &[u32], mode: &str, way: Way) {
    let _alone = alone();
    let Some(program) = program("forking") else {
        return;
    };
    Run::of(program)
        .args([mode.to_owned()])
        .args(arguments.iter().map(u32::to_string))
        .on(way)
        .wrote(&format!("forking: ok, {mode}"));
}

fn handlers_allocate(first: bool, way: Way) {
    let _alone = alone();
    let Some(program) = atfork(first) else {
        return;
    };
    for threads in ["0", "2"] {
        Run::of(&program)
            .args([threads])
            .on(way)
            .wrote("atfork: ok");
    }
}

in_every_way! {
    fn fork_handlers_registered_before_ours_may_allocate(way) {
        handlers_allocate(true, way);
    }

    fn fork_handlers_registered_behind_ours_may_allocate(way) {
        handlers_allocate(false, way);
    }

    fn children_are_made_in_any_way_by_one_thread(way) {
        WAYS.iter().for_each(|&how| forking(&[how, 0], "ways", way));
    }

    fn children_are_made_in_any_way_among_threads(way) {
        WAYS.iter().for_each(|&how| forking(&[how, 2], "ways", way));
    }

    fn signal_handlers_fork_inside_malloc_and_inside_fork(way) {
        forking(&[0], "handlers", way);
    }

    fn signal_handlers_fork_among_threads(way) {
        forking(&[2], "handlers", way);
    }

    fn a_fork_and_streams_never_wait_for_each_other(way) {
        forking(&[], "streams", way);
    }

    fn a_fork_and_name_services_and_the_loader_never_wait_for_each_other(way) {
        forking(&[], "names", way);
    }

    fn many_threads_fork_and_end(way) {
        forking(&[], "exits", way);
    }

    fn children_that_find_structures_half_changed_start_over(way) {
        forking(&[], "torn", way);
    }
}

#[test]
fn children_are_made_in_any_way_by_cpu_number() {
    for how in WAYS {
        forking(&[how, 2], "ways", Way::BY_NUMBER);
    }
    forking(&[], "torn", Way::BY_NUMBER);
}
