//! The installed files: they work where they are, and go when they are told to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{install, prefix, succeed};

/// All files and folders below `root`, without `root`.
fn tree(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder can be read") {
            let entry = entry.expect("an entry can be read");
            if entry.file_type().expect("a type").is_dir() {
                folders.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

#[test]
fn the_installed_command_finds_the_installed_library() {
    let Some(prefix) = prefix() else { return };
    let mut command = Command::new(prefix.join("bin/uslub"));
    command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD; exit 0"]);
    let said = succeed(&mut command);
    let library = prefix.join("lib/uslub/libuslub_malloc.so");
    assert!(said.contains(&*library.to_string_lossy()), "{said}");
    assert!(said.contains("allocations"), "{said}");
}

#[test]
fn the_installed_command_is_small() {
    let Some(prefix) = prefix() else { return };
    let bytes = prefix.join("bin/uslub").metadata().expect("it").len();
    // The aim is 4 MiB. The views, the recorder, the laboratory and the names of stacks take more.
    assert!(bytes < 6 << 20, "{bytes} bytes");
}

#[test]
fn pages_and_completions_are_installed() {
    let Some(prefix) = prefix() else { return };
    for page in [
        "man1/uslub.1",
        "man1/uslub-run.1",
        "man1/uslub-bench.1",
        "man3/libuslub.3",
        "man7/uslub_malloc.7",
    ] {
        let path = prefix.join("share/man").join(page);
        let text = std::fs::read_to_string(&path).expect("a page");
        assert!(text.contains("NAME"), "{page}");
    }
    for file in [
        "bash-completion/completions/uslub",
        "zsh/site-functions/_uslub",
        "fish/vendor_completions.d/uslub.fish",
    ] {
        assert!(prefix.join("share").join(file).is_file(), "{file}");
    }
}

#[test]
fn an_installation_goes_without_a_trace_and_takes_nothing_else_along() {
    let Some(_) = prefix() else { return };
    let root = tempfile::tempdir().expect("a folder");
    let inside = root.path().join("opt");
    std::fs::create_dir_all(inside.join("share/man/man1")).expect("folders");
    std::fs::write(inside.join("share/man/man1/other.1"), "other").expect("a file");
    let before = tree(&inside);
    // Twice: the second finds the folders of the first.
    for _ in 0..2 {
        install(Path::new("/opt"), Some(root.path()), &[]);
    }
    assert!(inside.join("bin/uslub").is_file());
    let text = std::fs::read_to_string(inside.join("lib/pkgconfig/uslub.pc")).expect("a file");
    assert!(text.starts_with("prefix=/opt\n"), "{text}");
    install(Path::new("/opt"), Some(root.path()), &["--uninstall"]);
    assert_eq!(tree(&inside), before);
}
