//! Statically linked programs on uslub, by pkg-config and by CMake.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use uslub_tests::Run;
use uslub_tests::subject::workspace;
use uslub_tests::tools::tool;

use crate::{prefix, succeed};

/// Runs the program, which must leave a report of its own.
fn reports(program: &Path) {
    let folder = tempfile::tempdir().expect("a folder for reports");
    let outcome = Run::of(program)
        .variable("USLUB_REPORT", folder.path())
        .plainly();
    let outcome = outcome.wrote("ok");
    assert!(outcome.stderr.contains("uslub: "), "{}", outcome.describe());
    let files = std::fs::read_dir(folder.path()).expect("the folder");
    let reports = files.map(|file| std::fs::read(file.expect("a file").path()).expect("a report"));
    let reports: Vec<_> = reports
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .collect();
    let is_whole = |text: &String| text.contains("\"allocs\":") && text.contains("\"kmalloc-64\"");
    assert!(reports.iter().any(is_whole), "{reports:?}");
}

/// Compiles `tests/c/static_malloc.cc` with the flags of pkg-config.
fn compiled(flag: &str) -> Option<(TempDir, PathBuf)> {
    let (prefix, compiler) = (prefix()?, tool("c++")?);
    let mut pkg_config = Command::new(tool("pkg-config")?);
    pkg_config
        .args(["--libs", "uslub-malloc"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let libraries = succeed(&mut pkg_config);
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    let mut command = Command::new(compiler);
    command
        .args([
            "-std=c++17",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            flag,
        ])
        .arg(workspace().join("tests/c/static_malloc.cc"))
        .arg("-o")
        .arg(&program)
        .args(libraries.split_whitespace());
    succeed(&mut command);
    Some((folder, program))
}

#[test]
fn a_static_program_in_cxx_runs_on_uslub() {
    if let Some((_folder, program)) = compiled("-static") {
        reports(&program);
    }
}

#[test]
fn a_static_program_with_a_random_address_runs_on_uslub() {
    if let Some((_folder, program)) = compiled("-static-pie") {
        reports(&program);
    }
}

#[test]
fn cmake_has_a_target_for_static_programs() {
    let (Some(prefix), Some(cmake)) = (prefix(), tool("cmake")) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let source = workspace().join("tests/c/static_malloc.cc");
    let text = format!(
        "cmake_minimum_required(VERSION 3.18)\n\
         project(static_malloc CXX)\n\
         find_package(uslub 0.1 REQUIRED)\n\
         add_executable(program {})\n\
         target_link_options(program PRIVATE -static)\n\
         target_link_libraries(program PRIVATE uslub::malloc_static)\n",
        source.display()
    );
    std::fs::write(folder.path().join("CMakeLists.txt"), text).expect("a file");
    let build = folder.path().join("build");
    let mut configure = Command::new(&cmake);
    configure
        .arg("-S")
        .arg(folder.path())
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    succeed(&mut configure);
    succeed(Command::new(&cmake).arg("--build").arg(&build));
    reports(&build.join("program"));
}
