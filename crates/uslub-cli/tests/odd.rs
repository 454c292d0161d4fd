//! Odd words and odd files: each is refused in one sentence, and at once.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use support::{text, uslub_assert};

/// What the command says in its first line, if it ends in time with this status.
fn refused(words: &[&str], code: i32) -> String {
    let mut command = uslub_assert(words);
    let output = command.timeout(Duration::from_secs(60)).output();
    let output = output.expect("the command ends");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{words:?}: {error}");
    error.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn what_is_no_file_is_named_by_its_kind_and_does_not_hang() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let (pipe, folder) = (text(&pipe), text(folder.path()));
    for words in [
        &["info", pipe][..],
        &["inspect", "core", pipe],
        &["metrics", pipe],
        &["list", pipe, "c"],
    ] {
        let said = refused(words, 2);
        assert_eq!(said, format!("uslub: '{pipe}' is a pipe, not a core file"));
    }
    let said = refused(&["info", folder], 2);
    assert!(said.ends_with("is a folder, not a core file"), "{said}");
    let said = refused(&["replay", pipe], 125);
    assert!(said.ends_with("it is a pipe"), "{said}");
    let page = format!("{folder}/page");
    refused(&["report", pipe, "-o", &page], 125);
    assert!(!Path::new(&page).exists());
    for input in [folder, pipe] {
        for command in [&["fail"][..], &["bench", "run"]] {
            let said = refused(&[command, &["--input", input, "true"]].concat(), 2);
            assert!(said.contains("it is a "), "{said}");
        }
    }
}

/// A core file with one part of the memory, which is not in it.
fn cut_core(path: &Path) {
    let machine: u16 = match std::env::consts::ARCH {
        "aarch64" => 183,
        "riscv64" => 243,
        _ => 62,
    };
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([4_u16, machine].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    // No entry; program headers follow; no sections.
    file.extend([0_u64, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([64_u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    // A part that can be read and written.
    file.extend([1_u32, 6].map(u32::to_le_bytes).concat());
    let part = [4096_u64, 0x1000_0000, 0, 8192, 8192, 4096];
    file.extend(part.map(u64::to_le_bytes).concat());
    fs::write(path, file).expect("a core file");
}

#[test]
fn a_core_file_that_ends_early_is_called_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let core = folder.path().join("core");
    cut_core(&core);
    for words in [&["info"][..], &["inspect", "core"]] {
        let said = refused(&[words, &[text(&core)]].concat(), 125);
        assert!(said.contains("ends early"), "{said}");
        assert!(!said.contains("not on uslub"), "{said}");
    }
}

#[test]
fn a_file_may_have_any_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join(OsStr::from_bytes(b"core\xff"));
    fs::write(&name, "no core").expect("a file");
    for (word, code) in [("info", 125), ("map", 125), ("metrics", 125), ("doctor", 2)] {
        let mut command = uslub_assert(&[word]);
        let output = command.arg(&name).output().expect("the command ends");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{word}: {error}");
        let expected = match word {
            "doctor" => "core\\xff' is no text: it is not UTF-8",
            _ => "core\\xff' is no core file that can be read",
        };
        assert!(error.contains(expected), "{word}: {error}");
    }
}
