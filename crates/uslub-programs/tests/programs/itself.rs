//! The project builds its command on uslub.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::tempdir;
use uslub_programs::{Program, Way, cargo, uslub, workspace};

/// The compiler of this toolchain, made to allocate from the C library's
/// malloc, and so from uslub: see `programs/rustc.c`. A compiler that is built
/// otherwise is taken as it is.
fn rustc(folder: &Path) -> Option<PathBuf> {
    let (compiler, names) = (Program::find("cc")?, Program::find("nm")?);
    let rustc = match env::var_os("RUSTC") {
        Some(rustc) => Program::at(rustc),
        None => Program::find("rustc")?,
    };
    let sysroot = rustc
        .args(["--print", "sysroot"])
        .folder(workspace())
        .run(Way::Plain)
        .succeeded();
    let sysroot = Path::new(sysroot.text());
    let original = sysroot.join("bin/rustc");

    let wanted = names
        .args(["-D", "--undefined-only"])
        .arg(&original)
        .run(Way::Plain)
        .succeeded();
    let is_entry = |name: &&str| name.contains("rustc_driver") && name.ends_with("4main");
    let Some(entry) = wanted.text().split_whitespace().find(is_entry) else {
        return Some(original);
    };
    let lib = sysroot.join("lib");
    let driver = lib
        .read_dir()
        .expect("the toolchain has libraries")
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .find(|name| name.starts_with("librustc_driver") && name.ends_with(".so"))
        .expect("the compiler is in a library");
    let rustc = folder.join("rustc");
    compiler
        .arg(format!("-DRUSTC_MAIN=\"{entry}\""))
        .arg(crate::given("rustc.c"))
        .arg("-o")
        .arg(&rustc)
        .args([format!("-L{}", lib.display()), format!("-l:{driver}")])
        .arg(format!("-Wl,-rpath,{}", lib.display()))
        .run(Way::Plain)
        .succeeded();
    Some(rustc)
}

/// A compiler that compiles even the smallest crate allocates more than this.
const OBJECTS_OF_A_COMPILER: u64 = 10_000;

#[test]
fn the_command_builds_with_every_compiler_linker_and_build_script_on_uslub() {
    let folder = tempdir().unwrap();
    let Some(rustc) = rustc(folder.path()) else {
        return;
    };
    let target = folder.path().join("target");
    let build = Program::at(cargo())
        .args(["build", "--package", "uslub-cli", "--offline"])
        .folder(workspace())
        .variable("RUSTC", rustc)
        .variable("CARGO_TARGET_DIR", &target)
        .limit(Duration::from_secs(1800))
        .run(Way::Uslub)
        .succeeded();
    let children = build.report["children"].as_array().expect("a list");
    let compilers = children
        .iter()
        .filter(|child| child["allocs"].as_u64() > Some(OBJECTS_OF_A_COMPILER))
        .count();
    assert!(
        compilers >= 20,
        "of {} children only {compilers} were compilers on uslub",
        children.len()
    );
    let version = |command: &Path| {
        let outcome = Program::at(command).arg("--version").run(Way::Plain);
        outcome.succeeded().text().to_owned()
    };
    assert_eq!(version(&target.join("debug/uslub")), version(uslub()));
}
