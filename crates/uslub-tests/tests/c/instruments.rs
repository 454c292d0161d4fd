//! Programs run under valgrind and can be stepped through; each per-CPU mode
//! is the one that was asked for.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;
use uslub_tests::subject::plain;
use uslub_tests::tools::{say_skipped, shared, tool};
use uslub_tests::{Launch, Run, Way, program};

/// Valgrind has no rseq and little address space: uslub must live with both.
/// Memcheck is not asked, for it puts its own malloc in the place of any other.
#[test]
fn it_runs_under_valgrind() {
    let _shared = shared();
    let Some(valgrind) = tool("valgrind") else {
        return;
    };
    let Some(tiny) = program("tiny") else { return };
    let Some(threads) = program("threads") else {
        return;
    };
    for instrument in ["none", "lackey", "callgrind"] {
        let mut words = vec![
            valgrind.display().to_string(),
            "-q".to_owned(),
            "--error-exitcode=9".to_owned(),
            format!("--tool={instrument}"),
        ];
        if instrument == "callgrind" {
            words.push("--callgrind-out-file=/dev/null".to_owned());
        }
        for way in [Way::PRELOADED, Way::TRY_LOCK] {
            Run::of(&tiny).behind(&words).on(way).wrote("tiny: ok");
        }
        if instrument == "none" {
            Run::of(&threads)
                .args(["200"])
                .behind(&words)
                .on(Way::PRELOADED)
                .wrote("threads: ok");
        }
    }
}

/// Runs `script` in gdb on `tiny`; nothing where there is no gdb or it may not trace.
fn gdb(tiny: &Path, way: Way, script: &str) -> Option<String> {
    assert_eq!(way.launch, Launch::Preload, "gdb starts the program itself");
    let gdb = tool("gdb")?;
    let mut commands = String::from(
        "set pagination off\nset confirm off\nset startup-with-shell off\n\
         handle SIGALRM nostop noprint pass\n",
    );
    for (name, value) in way.variables() {
        writeln!(commands, "set environment {name} {value}").expect("a string grows");
    }
    commands += script;
    let file = tempfile::NamedTempFile::new().expect("a file for the script");
    fs::write(file.path(), commands).expect("the script is written");
    let run = Run::of(gdb)
        .args(["-nx", "-batch", "-return-child-result", "-x"])
        .args([file.path(), tiny])
        .variable("DEBUGINFOD_URLS", "");
    let outcome = run.plainly();
    let all = format!("{}{}", outcome.stdout, outcome.stderr);
    if all.contains("Operation not permitted") && !all.contains("Breakpoint 1,") {
        say_skipped("gdb may not trace here");
        return None;
    }
    outcome.succeeded();
    assert!(all.contains("exited normally"), "{all}");
    assert!(all.contains("tiny: ok"), "{all}");
    Some(all)
}

/// A step is an interrupt: every restartable sequence starts again, for ever,
/// unless the allocator gives it up.
#[test]
fn stepping_through_malloc_comes_out_on_the_other_side() {
    let _shared = shared();
    let Some(tiny) = program("tiny") else { return };
    for way in [Way::PRELOADED, Way::UNREGISTERED, Way::TRY_LOCK] {
        let script = "break stepped\nrun\nignore 1 3\ncontinue\n\
                      set language c\nset $i = 0\nset $rounds = &rounds_done\nset $first = *$rounds\n\
                      while $i < 100000 && *$rounds < $first + 3\n\
                      stepi\nset $i = $i + 1\nend\n\
                      printf \"%d rounds in %d steps\\n\", *$rounds - $first, $i\n\
                      step 300\ninfo symbol $pc\ndelete\ncontinue\n";
        let Some(all) = gdb(&tiny, way, script) else {
            return;
        };
        let line = all.lines().find(|line| line.contains(" rounds in "));
        println!("{way:?}: {line:?}");
        assert!(
            line.is_some_and(|line| line.starts_with("3 rounds")),
            "{way:?}: it does not come out: {line:?}"
        );
    }
}

#[test]
fn breakpoints_in_malloc_and_free_do_no_harm() {
    let _shared = shared();
    let Some(tiny) = program("tiny") else { return };
    for way in [Way::PRELOADED, Way::TRY_LOCK] {
        let script = "break stepped\nrun\nbreak malloc\nbreak free\nset $i = 0\n\
                      while $i < 60\ncontinue\nstepi 7\nset $i = $i + 1\nend\n\
                      delete\ncontinue\n";
        if gdb(&tiny, way, script).is_none() {
            return;
        }
    }
}

/// The mode that the allocator names in its report.
fn mode(way: Way) -> String {
    let folder = tempfile::tempdir().expect("a folder for the report");
    let tiny = program("tiny").expect("it compiled before");
    Run::of(tiny)
        .variable("USLUB_REPORT", folder.path())
        .on(way)
        .wrote("tiny: ok");
    let report = fs::read_dir(folder.path())
        .expect("the folder is there")
        .flatten()
        .find(|entry| {
            let path = entry.path();
            (path.extension()).is_some_and(|ending| ending == "map" || ending == "json")
        })
        .expect("the library left a report");
    let text = fs::read_to_string(report.path()).expect("the report can be read");
    let process: Value =
        serde_json::from_str(text.trim_end_matches('\0')).expect("the report is JSON");
    process["mode"]
        .as_str()
        .expect("the report names the mode")
        .to_owned()
}

/// Whether glibc has registered an rseq area for this very process.
pub fn libc_has_rseq() -> bool {
    // SAFETY: dlsym reads a name that ends with 0 and returns an address or null.
    let size = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()) };
    // SAFETY: where glibc has `__rseq_size`, it is a constant `unsigned int`.
    !size.is_null() && unsafe { *size.cast::<libc::c_uint>() } != 0
}

#[test]
fn each_mode_is_the_one_that_was_asked_for() {
    let _shared = shared();
    if plain() || program("tiny").is_none() {
        return;
    }
    assert_eq!(mode(Way::TRY_LOCK), "try-lock");
    let unregistered = mode(Way::UNREGISTERED);
    assert!(
        unregistered.starts_with("rseq ") || unregistered == "try-lock",
        "{unregistered}"
    );
    if cfg!(target_arch = "x86_64") && libc_has_rseq() {
        let usual = mode(Way::PRELOADED);
        assert!(usual.starts_with("rseq "), "{usual}");
    }
}
