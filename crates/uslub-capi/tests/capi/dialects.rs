//! `uslub.hpp` in each standard, with each library and with each switch.

use std::process::Command;

use uslub_tests::Run;
use uslub_tests::subject::workspace;
use uslub_tests::tools::{say_skipped, tool};

use crate::built::{folder, prefix, succeed};

/// Compiles `tests/c/dialects.cc` and runs it; returns what it wrote.
fn dialect(compiler: &str, flags: &[&str]) -> Option<String> {
    let (prefix, compiler_path) = (prefix()?, tool(compiler)?);
    let name = format!("{compiler}{}", flags.concat());
    let program = folder().join(name.replace(['=', '+'], "_"));
    let mut command = Command::new(compiler_path);
    command
        .args(["-O0", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags)
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(workspace().join("crates/uslub-capi/tests/c/dialects.cc"))
        .arg("-o")
        .arg(&program)
        .arg(prefix.join("lib/libuslub.a"));
    succeed(&mut command);
    Some(Run::of(program).plainly().wrote("ok").stdout)
}

#[test]
fn the_header_serves_each_standard_with_and_without_exceptions() {
    // Each standard and each switch once for each compiler, not all combinations: a compilation
    // takes a second or two.
    let ways: [(&str, &[&str]); 6] = [
        ("g++", &["-std=c++17"]),
        ("g++", &["-std=c++20", "-fno-rtti"]),
        ("g++", &["-std=c++2b", "-fno-exceptions"]),
        ("clang++", &["-std=c++17", "-fno-exceptions", "-fno-rtti"]),
        ("clang++", &["-std=c++20"]),
        ("clang++", &["-std=c++2b", "-fno-rtti"]),
    ];
    for (compiler, flags) in ways {
        if let Some(said) = dialect(compiler, flags) {
            assert!(said.starts_with("with memory_resource"), "{said}");
        }
    }
}

#[test]
fn the_header_serves_a_library_without_memory_resources() {
    let Some(clang) = tool("clang++") else { return };
    let probe = Command::new(&clang)
        .args(["-stdlib=libc++", "-std=c++17", "-x", "c++", "-fsyntax-only"])
        .args(["-include", "new", "/dev/null"])
        .output()
        .expect("a compiler can be run");
    if !probe.status.success() {
        say_skipped("libc++");
        return;
    }
    for flags in [&["-fno-exceptions", "-fno-rtti"][..], &[]] {
        let flags = [&["-stdlib=libc++", "-std=c++17"], flags].concat();
        dialect("clang++", &flags);
    }
}

#[test]
fn an_older_standard_is_refused_in_one_sentence() {
    let (Some(prefix), Some(compiler)) = (prefix(), tool("c++")) else {
        return;
    };
    let output = Command::new(compiler)
        .args(["-std=c++14", "-x", "c++", "-fsyntax-only", "/dev/null"])
        .arg(format!("-I{}", prefix.join("include").display()))
        .args(["-include", "uslub.hpp"])
        .output()
        .expect("a compiler can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("uslub.hpp needs C++17 or later"), "{said}");
}
