//! What `uslub run` says when it cannot run the program: the reason, what to
//! do, and the exit status of a shell.

mod support;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::{contains, starts_with};
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use support::{compile, put, text, uslub_assert};
use tempfile::tempdir;

/// Runs `program` and expects this exit status and these words, in an error of
/// one line and a hint.
fn expect(program: &str, code: i32, words: &[&str]) {
    let output = uslub_assert(&["run", "--", program])
        .assert()
        .code(code)
        .stdout("");
    let output = output
        .stderr(starts_with("uslub: "))
        .get_output()
        .stderr
        .clone();
    let stderr = String::from_utf8(output).unwrap();
    for word in words {
        assert!(stderr.contains(word), "'{word}' is not in: {stderr}");
    }
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(lines[1].starts_with("  hint: "), "{stderr}");
}

#[test]
fn a_program_that_is_not_in_path() {
    expect(
        "no-such-program-anywhere",
        127,
        &["no-such-program-anywhere is not found in PATH"],
    );
}

#[test]
fn a_program_that_lies_in_this_folder_but_not_in_path() {
    let folder = tempdir().unwrap();
    put(&folder.path().join("uslub-test-tool"), "exit 0\n", 0o755);
    let mut command = uslub_assert(&["run", "uslub-test-tool"]);
    command
        .current_dir(folder.path())
        .assert()
        .code(127)
        .stderr(contains("./uslub-test-tool"));
}

#[test]
fn a_path_that_does_not_exist() {
    expect(
        "/no/such/program",
        127,
        &["/no/such/program does not exist"],
    );
}

#[test]
fn a_directory() {
    expect("/tmp", 126, &["/tmp is a directory"]);
}

#[test]
fn a_file_that_is_not_executable() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("plain");
    put(&file, "#!/bin/sh\n", 0o644);
    expect(text(&file), 126, &["is not executable", "chmod +x"]);
}

#[test]
fn an_empty_file_and_a_file_that_is_no_program() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("empty");
    put(&file, "", 0o755);
    expect(text(&file), 126, &["is an empty file"]);
    let file = folder.path().join("data");
    put(&file, [1, 2, 3, 0, 4], 0o755);
    expect(
        text(&file),
        126,
        &["is neither an ELF program nor a script"],
    );
}

#[test]
fn a_corrupt_program() {
    let folder = tempdir().unwrap();
    let mut bytes = fs::read("/bin/sh").unwrap();
    let file = folder.path().join("cut");
    put(&file, &bytes[..40], 0o755);
    expect(text(&file), 126, &["is a damaged ELF file"]);
    // The offset of the program headers.
    bytes[32..40].fill(0xff);
    let file = folder.path().join("wild");
    put(&file, &bytes, 0o755);
    expect(text(&file), 126, &["is a damaged ELF file"]);
}

#[test]
fn a_program_for_another_machine() {
    let folder = tempdir().unwrap();
    let mut bytes = fs::read("/bin/sh").unwrap();
    let (machine, name) = match std::env::consts::ARCH {
        "aarch64" => (62_u16, "x86-64"),
        _ => (183_u16, "aarch64"),
    };
    bytes[18..20].copy_from_slice(&machine.to_ne_bytes());
    let file = folder.path().join("foreign");
    put(&file, &bytes, 0o755);
    let own = std::env::consts::ARCH.replace('_', "-");
    expect(
        text(&file),
        126,
        &[
            &format!("is built for {name}"),
            &format!("is built for {own}"),
        ],
    );
}

#[test]
fn statically_linked_programs() {
    let folder = tempdir().unwrap();
    for flag in ["-static", "-static-pie"] {
        let file = folder.path().join(&flag[1..]);
        if compile("int main(void) { return 0; }", &[flag], &file) {
            expect(
                text(&file),
                126,
                &[
                    "is statically linked: LD_PRELOAD cannot reach it",
                    "dynamically linked build",
                ],
            );
        }
    }
}

#[test]
fn an_object_file_and_a_shared_library() {
    let folder = tempdir().unwrap();
    for (flag, name) in [("-c", "an object file"), ("-shared", "a shared library")] {
        let file = folder.path().join(flag);
        if compile(
            "int answer(void) { return 42; }",
            &[flag, "-fPIC", "-nostdlib"],
            &file,
        ) {
            put(&file, fs::read(&file).unwrap(), 0o755);
            expect(text(&file), 126, &[&format!("is {name}, not a program")]);
        }
    }
}

#[test]
fn a_program_with_another_loader() {
    let folder = tempdir().unwrap();
    let source = "int main(void) { return 0; }";
    let loader = |name: &str| format!("-Wl,--dynamic-linker=/lib/{name}");
    let file = folder.path().join("musl");
    if compile(source, &[&loader("ld-musl-x86_64.so.1")], &file) {
        expect(text(&file), 126, &["is linked with musl", "glibc"]);
    }
    let file = folder.path().join("gone");
    if compile(source, &[&loader("no-such-loader.so.1")], &file) {
        expect(
            text(&file),
            127,
            &["needs the loader /lib/no-such-loader.so.1"],
        );
    }
}

#[test]
fn a_set_user_id_program_unless_the_user_stays_the_same() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("elevated");
    put(&file, fs::read("/bin/sh").unwrap(), 0o755);
    if chown(&file, Some(65534), None).is_ok() {
        put(&file, fs::read("/bin/sh").unwrap(), 0o4755);
        expect(
            text(&file),
            126,
            &["is set-user-ID (it runs as user 65534)", "LD_PRELOAD"],
        );
        chown(&file, Some(0), None).unwrap();
        put(&file, fs::read("/bin/sh").unwrap(), 0o4755);
        uslub_assert(&["run", "-q", text(&file), "-c", "exit 5"])
            .assert()
            .code(5);
    } else if Path::new("/usr/bin/passwd").exists() {
        expect(
            "/usr/bin/passwd",
            126,
            &["is set-user-ID (it runs as user 0)", "LD_PRELOAD"],
        );
    } else {
        eprintln!("skipped: passwd is absent and files cannot be given away");
    }
}

#[test]
fn scripts_whose_interpreter_is_the_trouble() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("script");
    put(&file, "#!/no/such/interpreter -x\n", 0o755);
    expect(
        text(&file),
        127,
        &["whose interpreter /no/such/interpreter does not exist"],
    );
    put(&file, "#!/usr/bin/env no-such-interpreter\n", 0o755);
    expect(
        text(&file),
        127,
        &["no-such-interpreter is not found in PATH"],
    );
    put(&file, "#!/bin/sh\r\n", 0o755);
    expect(text(&file), 126, &["carriage return"]);
    let interpreter = folder.path().join("interpreter");
    if compile("int main(void) { return 0; }", &["-static"], &interpreter) {
        put(&file, format!("#!{}\n", text(&interpreter)), 0o755);
        expect(
            text(&file),
            126,
            &["whose interpreter", "is statically linked"],
        );
    }
}

#[test]
fn a_tunable_that_is_unknown_or_out_of_range() {
    uslub_assert(&["run", "--set", "colour=1", "true"])
        .assert()
        .code(2)
        .stdout("")
        .stderr(
            starts_with("uslub: unknown tunable 'colour'; known are").and(contains("decay_ms")),
        );
    uslub_assert(&["run", "--set", "slab_max_order=99", "true"])
        .assert()
        .code(2)
        .stderr(contains("takes 0 to 5, not 99"));
    uslub_assert(&["run", "--set", "rseq", "true"])
        .assert()
        .code(2)
        .stderr(contains("KEY=VALUE"));
    uslub_assert(&["run", "true"])
        .env("USLUB_OPTIONS", "colour=1")
        .assert()
        .code(2)
        .stderr(contains("unknown tunable").and(contains("USLUB_OPTIONS")));
}

#[test]
fn a_command_line_that_is_wrong() {
    uslub_assert(&["run", "--colour", "true"])
        .assert()
        .code(2)
        .stderr(starts_with("uslub: unknown option '--colour'").and(contains("--follow")));
    uslub_assert(&["walk"])
        .assert()
        .code(2)
        .stderr(contains("unknown command 'walk'; known are run"));
    uslub_assert(&["run"])
        .assert()
        .code(2)
        .stderr(contains("no program is given"));
    uslub_assert(&["run", "--follow", "perhaps", "true"])
        .assert()
        .code(2)
        .stderr(contains("yes, no"));
    uslub_assert(&[]).assert().code(2).stderr(contains("Usage"));
}

#[test]
fn help_goes_to_stdout_and_lists_the_tunables() {
    uslub_assert(&["run", "--help"])
        .assert()
        .success()
        .stdout(
            contains("slab_max_order")
                .and(contains("sheaf_capacity"))
                .and(contains("--report")),
        )
        .stderr("");
    uslub_assert(&["--version"])
        .assert()
        .success()
        .stdout(starts_with("uslub "));
}

#[test]
fn a_library_that_is_missing_or_damaged() {
    uslub_assert(&["run", "true"])
        .env("USLUB_LIBRARY", "/no/such/library.so")
        .assert()
        .code(125)
        .stderr(contains("/no/such/library.so"));
    uslub_assert(&["run", "true"])
        .env("USLUB_LIBRARY", "/etc/passwd")
        .assert()
        .code(125)
        .stderr(contains("cannot be used"));
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_program_runs() {
    uslub_assert(&["run", "--report", "/no/such/folder/r.json", "echo", "ran"])
        .assert()
        .code(125)
        .stdout("")
        .stderr(contains("cannot write the report /no/such/folder/r.json"));
}
