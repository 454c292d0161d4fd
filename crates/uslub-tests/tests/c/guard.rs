//! Guarded objects: each misuse of one is seen and named, and what is right goes on.

use uslub_tests::subject::{plain, subject};
use uslub_tests::tools::{say_skipped, shared, tool};
use uslub_tests::{Outcome, Run, Way, program};

/// A case of `tests/c/guard.c` under some options; nothing where it cannot run.
fn run(case: &str, options: &str) -> Option<Outcome> {
    if plain() {
        say_skipped("guard: only uslub has guarded objects");
        return None;
    }
    let _shared = shared();
    let guard = Run::of(program("guard")?).args([case]);
    Some(guard.variable("USLUB_OPTIONS", options).on(Way::PRELOADED))
}

const ENDS: &str = "guard=1000";
const RECOVERS: &str = "guard=1000,guard_recover=1";

/// Fails unless the misuse ends the program with these lines, and with `recover` the program goes
/// on after the same lines. `OBJECT` in a line stands for the object's address.
fn is_reported(case: &str, lines: &[&str]) {
    for options in [ENDS, RECOVERS] {
        let Some(outcome) = run(case, options) else {
            return;
        };
        let described = outcome.describe();
        let goes_on = outcome.stdout.contains("went on");
        if options == ENDS {
            assert!(outcome.ended_by(libc::SIGABRT), "{case}: {described}");
            assert!(outcome.stderr.contains("uslub: "), "{case}: {described}");
        } else {
            assert!(outcome.status.success() && goes_on, "{case}: {described}");
        }
        let first = outcome.stdout.lines().next().expect("an object");
        let object = first.strip_prefix("object ").expect("its address");
        for line in lines {
            let line = line.replace("OBJECT", object);
            assert!(
                outcome.stderr.contains(&line),
                "{case}: no '{line}': {described}"
            );
        }
        let reports = outcome.stderr.matches("BUG: guard: ").count();
        let twice = ["realloc-freed", "forked"].contains(&case) && options == RECOVERS;
        assert!(reports == 1 || twice && reports == 2, "{case}: {described}");
    }
}

const ALLOCATED: [&str; 3] = [
    "size=40, cache=kmalloc-48",
    "allocated by thread ",
    "\n guard+0x",
];

fn with_stacks<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [more, &ALLOCATED].concat()
}

#[test]
fn a_read_or_write_over_the_end_is_seen_at_once() {
    let right = "8 bytes right of guard-#";
    for (case, what) in [
        ("read-right", "BUG: guard: out-of-bounds read in guard+0x"),
        ("write-right", "BUG: guard: out-of-bounds write in guard+0x"),
    ] {
        is_reported(case, &with_stacks(&[what, right]));
    }
}

#[test]
fn a_read_or_write_before_the_start_is_seen_at_once() {
    for (case, what, place) in [
        (
            "read-left",
            "out-of-bounds read in guard+0x",
            "1 bytes left of",
        ),
        (
            "write-left",
            "out-of-bounds write in guard+0x",
            "8 bytes left of",
        ),
    ] {
        is_reported(case, &with_stacks(&[what, place]));
    }
}

#[test]
fn a_use_after_the_free_is_seen_at_once_with_both_stacks() {
    for (case, what) in [
        ("read-freed", "use-after-free read in guard+0x"),
        ("write-freed", "use-after-free write in guard+0x"),
    ] {
        let lines = [what, "3 bytes into guard-#", "freed by thread "];
        is_reported(case, &with_stacks(&lines));
    }
}

#[test]
fn what_was_written_next_to_an_object_is_seen_at_its_free() {
    for case in ["canary-right", "canary-left"] {
        let lines = ["memory corruption in guard+0x", "[ 01 .", "around guard-#"];
        is_reported(
            case,
            &with_stacks(if case == "canary-left" {
                &lines[..1]
            } else {
                &lines
            }),
        );
    }
}

#[test]
fn a_second_free_and_a_pointer_to_no_object_are_seen() {
    let twice = ["double free in guard+0x", "At OBJECT, ", "freed by thread "];
    is_reported("twice", &with_stacks(&twice));
    let interior = ["free of a pointer to no object", "8 bytes into guard-#"];
    is_reported("interior", &with_stacks(&interior));
    is_reported(
        "outside",
        &["free of a pointer to no object", "near no object"],
    );
}

#[test]
fn other_calls_with_a_freed_object_are_seen() {
    is_reported(
        "realloc-freed",
        &with_stacks(&["realloc of a freed object"]),
    );
    is_reported("size-freed", &with_stacks(&["size of a freed object"]));
    let Some(outcome) = run("sized", ENDS) else {
        return;
    };
    assert!(outcome.ended_by(libc::SIGABRT), "{}", outcome.describe());
    let message = "cache 'kmalloc-48': free_sized of ";
    assert!(outcome.stderr.contains(message), "{}", outcome.describe());
}

#[test]
fn a_child_of_a_fork_knows_its_parents_objects() {
    is_reported("forked", &["use-after-free read", "freed by thread "]);
}

#[test]
fn a_program_keeps_its_own_handler_of_the_signal() {
    is_reported("handler", &["use-after-free write in guard+0x"]);
}

#[test]
fn what_is_right_gives_no_report() {
    for case in ["right", "threads", "forks"] {
        for options in [ENDS, RECOVERS, "guard=1000,rseq=0"] {
            let Some(outcome) = run(case, options) else {
                return;
            };
            let described = outcome.describe();
            assert!(outcome.status.success(), "{options}: {described}");
            assert_eq!(outcome.stderr, "", "{options}");
        }
    }
}

/// The programs of the C tests, whose own handlers, forks and small stacks must work.
#[test]
fn right_programs_run() {
    if plain() {
        return say_skipped("guard: only uslub has guarded objects");
    }
    let _shared = shared();
    for name in ["align", "signals", "storm", "info", "sandbox"] {
        let Some(program) = program(name) else {
            return;
        };
        let outcome = Run::of(&program)
            .variable("USLUB_OPTIONS", "guard=1000")
            .on(Way::PRELOADED)
            .succeeded();
        assert!(!outcome.stderr.contains("BUG: guard"), "{name}");
    }
}

/// Python that uses an object of C after it has freed it.
const PLANTED: &str = "import ctypes, time
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.malloc_usable_size.argtypes = c.free.argtypes = [ctypes.c_void_p]
for _ in range(4000):
    for _ in range(500):
        p = c.malloc(1000)
        if c.malloc_usable_size(p) == 1000:
            c.free(p)
            ctypes.string_at(p, 4)
    time.sleep(0.001)
";

#[test]
fn a_planted_bug_in_a_real_program_is_found_with_both_stacks() {
    if plain() {
        return say_skipped("guard: only uslub has guarded objects");
    }
    let _shared = shared();
    let Some(python) = tool("python3") else {
        return;
    };
    let outcome = Run::of(&subject().command)
        .args(["run", "-q", "--guard=1000", "--"])
        .args([python.as_os_str()])
        .args(["-c", PLANTED])
        .variable("USLUB_LIBRARY", &subject().library)
        .plainly();
    let described = outcome.describe();
    assert!(!outcome.status.success(), "{described}");
    for part in [
        "BUG: guard: use-after-free read in ",
        "0 bytes into guard-#",
        "size=1000, cache=kmalloc-1k",
        "allocated by thread ",
        "freed by thread ",
    ] {
        assert!(outcome.stderr.contains(part), "no '{part}': {described}");
    }
}

#[test]
fn a_bad_form_of_the_option_is_named_with_the_accepted_ones() {
    if plain() {
        return say_skipped("guard: only uslub has guarded objects");
    }
    let with = |option: &str| {
        Run::of(&subject().command)
            .args(["run", option, "--", "true"])
            .variable("USLUB_LIBRARY", &subject().library)
            .plainly()
    };
    for option in [
        "--guard=x",
        "--guard=0",
        "--guard=5,",
        "--guard=10001,recover",
    ] {
        let outcome = with(option);
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.describe());
        let value = option.strip_prefix("--guard=").expect("a value");
        let message = format!(
            "--guard takes a number of objects a second, 'recover', or both, not '{value}'"
        );
        assert!(outcome.stderr.contains(&message), "{}", outcome.describe());
        assert!(
            outcome.stderr.contains("--guard=100,recover"),
            "{}",
            outcome.describe()
        );
    }
    for option in [
        "--guard",
        "--guard=7",
        "--guard=recover",
        "--guard=7,recover",
    ] {
        assert!(with(option).status.success(), "{option}");
    }
    if let Some(outcome) = run("right", "guard=99999") {
        let message = "tunable 'guard' takes 0 to 10000, not 99999";
        assert!(outcome.stderr.contains(message), "{}", outcome.describe());
    }
}
