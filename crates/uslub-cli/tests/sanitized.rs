//! `uslub run` says what to do with a program that was built with a sanitizer.

mod support;

use std::fs;
use std::process::Command;
use support::uslub_command;
use tempfile::tempdir;

#[test]
fn a_program_with_a_sanitizer_is_refused_in_one_sentence() {
    let folder = tempdir().unwrap();
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut tried = 0;
    for compiler in ["gcc", "clang"] {
        for (option, name) in [
            ("-fsanitize=address", "AddressSanitizer"),
            ("-fsanitize=thread", "ThreadSanitizer"),
            ("-fsanitize=memory", "MemorySanitizer"),
        ] {
            let mut command = Command::new(compiler);
            command.arg(option).arg("-o").arg(&program).arg(&source);
            let built = command.output().is_ok_and(|output| output.status.success());
            if !built {
                // gcc has no MemorySanitizer, and a runtime may not be installed.
                eprintln!("skipped: {compiler} {option}");
                continue;
            }
            tried += 1;
            let output = uslub_command(&["run"]).arg(&program).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(126),
                "{compiler} {option}: {errors}"
            );
            let what = format!("is built with {name}, whose runtime replaces malloc itself");
            assert!(errors.contains(&what), "{compiler} {option}: {errors}");
            let remedy = format!("run it without uslub, or build it without {option}");
            assert!(errors.contains(&remedy), "{compiler} {option}: {errors}");
        }
    }
    if tried == 0 {
        eprintln!("skipped: no compiler has a sanitizer");
    }
}
