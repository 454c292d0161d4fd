//! Programs that forbid themselves system calls, and programs that give rights up.

use uslub_tests::tools::{alone, say_skipped, shared, tool};
use uslub_tests::{Run, Way, in_every_way, program};

in_every_way! {
    fn a_program_in_a_filter_that_nobody_saw_goes_on(way) {
        let _shared = shared();
        let Some(shut_in) = program("shut_in") else { return };
        for allowed in ["", "m", "r", "mr"] {
            Run::of(&shut_in).args(["bare", allowed]).on(way).wrote("shut_in: ok");
        }
    }

    fn a_program_in_a_filter_of_the_c_librarys_goes_on(way) {
        let _shared = shared();
        let Some(shut_in) = program("shut_in") else { return };
        for how in ["prctl", "syscall"] {
            for allowed in ["", "mr"] {
                Run::of(&shut_in).args([how, allowed]).on(way).wrote("shut_in: ok");
            }
        }
    }

    fn threads_that_begin_in_a_filter_go_on(way) {
        let _shared = shared();
        let Some(shut_in) = program("shut_in") else { return };
        for how in ["prctl", "syscall"] {
            Run::of(&shut_in).args([how, "t"]).on(way).wrote("shut_in: ok");
        }
    }
}

#[test]
fn a_program_by_the_cpus_number_goes_on_in_any_filter() {
    let _shared = shared();
    let Some(shut_in) = program("shut_in") else {
        return;
    };
    for args in [["bare", ""], ["bare", "rt"], ["prctl", "t"]] {
        Run::of(&shut_in)
            .args(args)
            .on(Way::BY_NUMBER)
            .wrote("shut_in: ok");
    }
}

/// Where the library registers threads itself, it does so in a filter that it did not see too.
#[test]
fn threads_that_begin_in_a_filter_that_nobody_saw_go_on() {
    let _shared = shared();
    let Some(shut_in) = program("shut_in") else {
        return;
    };
    for way in [Way::PRELOADED, Way::TRY_LOCK, Way::UNDER_RUN] {
        Run::of(&shut_in)
            .args(["bare", "rt"])
            .on(way)
            .wrote("shut_in: ok");
    }
}

#[test]
fn a_right_given_up_by_a_bare_instruction_is_soon_gone_everywhere() {
    let _alone = alone();
    let Some(rights) = program("rights") else {
        return;
    };
    for way in [Way::UNDER_RUN, Way::UNDER_RUN_TRY_LOCK] {
        for how in [
            "setuid",
            "setgid",
            "setgroups",
            "capset",
            "no_new_privs",
            "seccomp",
        ] {
            Run::of(&rights).args(["bare", how]).on(way).succeeded();
        }
    }
}

/// Each call that changes rights, by the C library.
const CALLS: &[&str] = &[
    "setuid",
    "setgid",
    "seteuid",
    "setegid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setgroups",
    "initgroups",
    "setfsuid",
    "setfsgid",
    "capset",
    "capbset",
    "no_new_privs",
    "seccomp",
    "syscall_setuid",
    "syscall_setgroups",
    "syscall_capset",
    "syscall_prctl",
    "syscall_seccomp",
];

#[test]
fn no_thread_keeps_a_right_that_the_program_gives_up() {
    let _alone = alone();
    let Some(rights) = program("rights") else {
        return;
    };
    for how in CALLS {
        Run::of(&rights).args([how]).on(Way::UNDER_RUN).succeeded();
    }
    for way in [Way::PRELOADED, Way::UNDER_RUN_TRY_LOCK] {
        Run::of(&rights).args(["setuid"]).on(way).succeeded();
    }
}

/// Outside the namespace, the child's number is that of another process, which has one thread.
#[test]
fn the_first_process_of_a_namespace_has_no_helper() {
    let _alone = alone();
    let Some(namespace) = program("namespace") else {
        return;
    };
    let Some(unshare) = tool("unshare") else {
        return;
    };
    let Some(nothing) = tool("/bin/true") else {
        return;
    };
    let unshare = unshare.display().to_string();
    let words = [
        &unshare,
        "-rpf",
        "--mount-proc",
        "/bin/sh",
        "-c",
        "\"$@\"; exit $?",
        "sh",
    ];
    let possible = Run::of(&nothing).behind(words).on(Way::PRELOADED);
    if !possible.status.success() {
        return say_skipped("no namespace of processes may be made here");
    }
    for way in [Way::PRELOADED, Way::UNDER_RUN] {
        Run::of(&namespace).behind(words).on(way).succeeded();
    }
}
