//! Statically linked programs on uslub, by pkg-config and by CMake.

use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
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
fn a_static_program_keeps_its_headers_and_code_read_only() {
    for flag in ["-static", "-static-pie"] {
        let Some((_folder, program)) = compiled("static_malloc.cc", flag) else {
            return;
        };
        let bytes = std::fs::read(&program).expect("the program");
        let header = elf::FileHeader64::<Endianness>::parse(&*bytes).expect("an ELF file");
        let endian = header.endian().expect("a byte order");
        let segments = header.program_headers(endian, &*bytes).expect("segments");
        let mut loaded = segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD);
        let is_writable =
            |s: &elf::ProgramHeader64<Endianness>| s.p_flags(endian) & elf::PF_W == elf::PF_W;
        let first = loaded.clone().next().expect("a segment");
        assert!(!is_writable(first), "writable headers, {flag}");
        let mut code = loaded
            .clone()
            .filter(|s| s.p_flags(endian) & elf::PF_X == elf::PF_X);
        assert!(
            code.clone().count() > 0 && !code.any(is_writable),
            "writable code, {flag}"
        );
        assert!(loaded.any(is_writable), "data, {flag}");
    }
}

/// Lets the program end by SIGABRT with a core file of the kernel in the folder.
fn dumped(program: &Path, folder: &Path) -> Option<PathBuf> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("a pattern");
    if pattern.trim() != "core" {
        eprintln!("skipped: the system's core files go elsewhere: {pattern}");
        return None;
    }
    let mut shell = Command::new("sh");
    let line = "ulimit -c unlimited; echo x | \"$0\" >/dev/null 2>&1 abort";
    shell.args(["-c", line]).arg(program).current_dir(folder);
    assert!(!shell.status().expect("sh").success());
    let files = std::fs::read_dir(folder).expect("the folder");
    let mut files = files.map(|file| file.expect("a file").path());
    let core = files.find(|path| {
        path.file_name()
            .is_some_and(|n| n.as_bytes().starts_with(b"core"))
    });
    Some(core.expect("a core file"))
}

#[test]
fn a_core_file_of_a_static_program_leads_to_its_caches() {
    for flag in ["-static", "-static-pie"] {
        let Some((folder, program)) = compiled("static_waits.cc", flag) else {
            return;
        };
        let Some(core) = dumped(&program, folder.path()) else {
            return;
        };
        let mut inspect = Command::new(prefix().expect("it").join("bin/uslub"));
        inspect.args(["inspect", "core"]).arg(&core).arg("--json");
        let look: Value = serde_json::from_str(&succeed(&mut inspect)).expect("JSON");
        let caches = look["allocators"][0]["caches"].as_array().expect("caches");
        let cache = caches.iter().find(|cache| cache["name"] == "kmalloc-176");
        assert_eq!(cache.expect("a cache")["live"], 2000, "{flag}");
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
