//! What is installed: what the libraries show, and that others find them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use uslub_tests::tools::tool;

use crate::built::{folder, prefix, succeed};
use crate::header::functions;

/// The names that `nm` lists.
fn names(args: &[&str], library: &Path) -> Option<BTreeSet<String>> {
    let said = succeed(Command::new(tool("nm")?).args(args).arg(library));
    Some(
        said.lines()
            .filter(|line| !line.ends_with(':'))
            .filter_map(|line| line.split_whitespace().last())
            .map(|name| name.split('@').next().unwrap_or(name).to_owned())
            .collect(),
    )
}

#[test]
fn the_shared_library_shows_its_functions_only() {
    let Some(prefix) = prefix() else { return };
    let library = prefix.join("lib/libuslub.so");
    if let Some(names) = names(&["-D", "--defined-only"], &library) {
        assert_eq!(names, functions());
    }
    // Nothing of Rust's standard library: it would bring an unwinder.
    if let Some(needed) = names(&["-D", "--undefined-only"], &library) {
        assert!(
            !needed.iter().any(|name| name.contains("Unwind")),
            "{needed:?}"
        );
    }
    let Some(readelf) = tool("readelf") else {
        return;
    };
    let said = succeed(Command::new(readelf).arg("-dW").arg(&library));
    let needed: Vec<_> = said
        .lines()
        .filter(|line| line.contains("NEEDED"))
        .collect();
    // Nothing names musl: each program for it has it.
    let c_library: &[&str] = match env::var("CARGO_BUILD_TARGET") {
        Ok(target) if target.ends_with("musl") => &[],
        _ => &["[libc.so.6]"],
    };
    assert!(
        needed.len() == c_library.len() && c_library.iter().all(|name| needed[0].contains(name)),
        "{needed:?}"
    );
    assert!(
        said.contains("soname: [libuslub.so.0]") && said.contains("NODELETE"),
        "{said}"
    );
}

#[test]
fn the_static_library_shows_its_functions_only() {
    let Some(prefix) = prefix() else { return };
    if let Some(names) = names(&["-g", "--defined-only"], &prefix.join("lib/libuslub.a")) {
        assert!(
            names.iter().all(|name| name.starts_with("uslub_")),
            "{names:?}"
        );
        assert!(names.is_superset(&functions()));
    }
}

#[test]
fn a_destdir_goes_before_the_prefix_and_into_no_file() {
    if prefix().is_none() {
        return;
    }
    let root = folder().join("destdir");
    succeed(
        Command::new(uslub_tests::subject::workspace().join("scripts/install-capi"))
            .arg("/opt/uslub")
            .env("DESTDIR", &root),
    );
    let text = fs::read_to_string(root.join("opt/uslub/lib/pkgconfig/uslub.pc")).expect("a file");
    assert!(text.starts_with("prefix=/opt/uslub\n"), "{text}");
}

const PROGRAM: &str = "\
#include <uslub.h>
int main(void) { void *p = uslub_kmalloc(10, USLUB_GFP_KERNEL); uslub_kfree(p); return !p; }
";

#[test]
fn pkg_config_finds_it() {
    let (Some(prefix), Some(pkg_config)) = (prefix(), tool("pkg-config")) else {
        return;
    };
    let source = folder().join("by_pkg_config.c");
    fs::write(&source, PROGRAM).expect("a source");
    let ask = |what: &[&str]| {
        let mut command = Command::new(&pkg_config);
        command
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .args(what)
            .arg("uslub");
        succeed(&mut command)
    };
    assert_eq!(ask(&["--modversion"]).trim(), env!("CARGO_PKG_VERSION"));
    let program = folder().join("by_pkg_config");
    succeed(
        Command::new("cc")
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .args(ask(&["--cflags", "--libs"]).split_whitespace()),
    );
    succeed(Command::new(program).env("LD_LIBRARY_PATH", prefix.join("lib")));
}

const CMAKE: &str = "\
cmake_minimum_required(VERSION 3.10)
project(consumer C)
find_package(uslub 0.1 REQUIRED)
add_executable(shared by_cmake.c)
target_link_libraries(shared uslub::uslub)
add_executable(archive by_cmake.c)
target_link_libraries(archive uslub::static)
";

#[test]
fn cmake_finds_it() {
    let (Some(prefix), Some(cmake), Some(_)) = (prefix(), tool("cmake"), tool("make")) else {
        return;
    };
    let consumer = folder().join("consumer");
    fs::create_dir_all(&consumer).expect("a folder");
    fs::write(consumer.join("by_cmake.c"), PROGRAM).expect("a source");
    fs::write(consumer.join("CMakeLists.txt"), CMAKE).expect("a project");
    let build = consumer.join("build");
    succeed(
        Command::new(&cmake)
            .arg("-S")
            .arg(&consumer)
            .arg("-B")
            .arg(&build)
            .args(["-G", "Unix Makefiles"])
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())),
    );
    succeed(Command::new(&cmake).arg("--build").arg(&build));
    for program in ["shared", "archive"] {
        succeed(&mut Command::new(build.join(program)));
    }
    // A version of another series is not taken.
    fs::write(
        consumer.join("CMakeLists.txt"),
        CMAKE.replace("uslub 0.1", "uslub 0.0"),
    )
    .expect("a project");
    let refused = Command::new(&cmake)
        .arg("-B")
        .arg(&build)
        .arg("-S")
        .arg(&consumer)
        .output()
        .expect("cmake runs");
    assert!(!refused.status.success());
}
