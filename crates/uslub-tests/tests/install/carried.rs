//! The command alone, as `cargo install` leaves it: it unpacks the library that it carries.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::prefix;

/// Runs a copy of the command in a folder of its own.
fn alone(home: &Path, words: &[&str]) -> Option<Output> {
    let command = home.join("bin/uslub");
    fs::create_dir_all(home.join("bin")).expect("a folder");
    // By another process: a file that a child of another test inherits open for writing cannot be
    // executed.
    let copy = Command::new("cp")
        .args([&prefix()?.join("bin/uslub"), &command])
        .status();
    assert!(copy.expect("cp runs").success());
    let output = Command::new(command)
        .args(words)
        .env_remove("USLUB_LIBRARY")
        .env("XDG_CACHE_HOME", home.join("cache"))
        .output();
    Some(output.expect("the command can be run"))
}

#[test]
fn a_command_alone_runs_a_program_on_uslub() {
    let home = tempfile::tempdir().expect("a folder");
    let Some(output) = alone(home.path(), &["run", "--", "sort", "--version"]) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("kmalloc-") && said.contains("allocations"),
        "{said}"
    );
    let folder = home.path().join("cache/uslub");
    let mut names = fs::read_dir(folder).expect("the folder of the cache");
    let name = names.next().expect("one file").expect("it").file_name();
    let name = name.to_string_lossy();
    assert!(
        name.starts_with("libuslub_malloc-") && name.ends_with(".so"),
        "{name}"
    );
    assert!(names.next().is_none());
}

#[test]
fn a_folder_of_others_is_not_trusted() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("cache/uslub");
    fs::create_dir_all(&folder).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("a mode");
    let words = ["run", "--", "sh", "-c", "echo $LD_PRELOAD"];
    let Some(output) = alone(home.path(), &words) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("libuslub_malloc-"), "{said}");
    assert!(!said.contains(&*folder.to_string_lossy()), "{said}");
    // Whichever other folder it took: this test's file goes.
    let written = said.trim().rsplit(':').next().expect("a path");
    let _ = fs::remove_file(written);
    let _ = Path::new(written).parent().map(fs::remove_dir);
}
