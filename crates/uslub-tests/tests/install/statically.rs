//! Statically linked programs on uslub, by pkg-config and by CMake.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
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

/// Compiles a program of `tests/c` with the flags of pkg-config.
fn compiled(source: &str, flag: &str) -> Option<(TempDir, PathBuf)> {
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
        .arg(workspace().join("tests/c").join(source))
        .arg("-o")
        .arg(&program)
        .args(libraries.split_whitespace());
    succeed(&mut command);
    Some((folder, program))
}

#[test]
fn a_static_program_in_cxx_runs_on_uslub() {
    if let Some((_folder, program)) = compiled("static_malloc.cc", "-static") {
        reports(&program);
    }
}

#[test]
fn a_static_program_with_a_random_address_runs_on_uslub() {
    if let Some((_folder, program)) = compiled("static_malloc.cc", "-static-pie") {
        reports(&program);
    }
}

#[test]
fn a_static_program_is_read_exactly_from_outside() {
    for flag in ["-static", "-static-pie"] {
        let Some((_folder, program)) = compiled("static_waits.cc", flag) else {
            return;
        };
        let mut waiting = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let out = BufReader::new(waiting.stdout.take().expect("a pipe")).lines();
        let said: Vec<_> = (out.map(|line| line.expect("UTF-8")))
            .take_while(|line| line != "ready")
            .collect();
        let own = |name: &str| -> u64 {
            let mut lines = said.iter().filter_map(|line| line.split_once('='));
            let found = lines.find(|(key, _)| key.trim() == name);
            let (_, number) = found.unwrap_or_else(|| panic!("no '{name}' in {said:?}"));
            number.trim().parse().expect("a number")
        };
        // It runs until it waits for input.
        let stat = format!("/proc/{}/stat", waiting.id());
        while !std::fs::read_to_string(&stat)
            .expect("stat")
            .contains(") S ")
        {
            std::thread::yield_now();
        }
        let mut info = Command::new(prefix().expect("it").join("bin/uslub"));
        let look = succeed(info.args(["info", &waiting.id().to_string(), "--json"]));
        let look: Value = serde_json::from_str(&look).expect("JSON");
        let allocator = &look["allocators"][0];
        for (key, name) in [
            ("live_bytes", "live bytes"),
            ("cached_bytes", "cached bytes"),
            ("free_bytes", "free bytes in slabs"),
            ("large_bytes", "large bytes"),
        ] {
            assert_eq!(allocator[key].as_u64(), Some(own(name)), "{key}, {flag}");
        }
        let caches = allocator["caches"].as_array().expect("caches");
        for (name, live) in [("kmalloc-176", 2000), ("kmalloc-368", 2000)] {
            let cache = caches.iter().find(|cache| cache["name"] == name);
            assert_eq!(cache.expect("a cache")["live"], live, "{name}, {flag}");
        }
        assert_eq!(allocator["large_objects"], 20);
        drop(waiting.stdin.take());
        assert!(waiting.wait().expect("an end").success());
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
