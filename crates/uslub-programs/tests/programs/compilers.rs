//! Compilers on uslub, and what they compile on uslub.

use std::fs;
use std::path::PathBuf;

use tempfile::tempdir;
use uslub_programs::program::{WAYS, same_file};
use uslub_programs::{Program, Way};

/// Compiles `source` plainly and with the compiler on uslub, expects the same
/// object file, links it on uslub, and runs the program both ways.
fn compile_link_and_run(compiler: &Program, source: &str, flags: &[&str]) {
    let folder = tempdir().unwrap();
    let mut objects = Vec::new();
    for way in WAYS {
        let place = folder.path().join(format!("{way:?}"));
        fs::create_dir(&place).unwrap();
        fs::copy(crate::given(source), place.join(source)).unwrap();
        compiler
            .args(flags)
            .args(["-c", source, "-o", "object.o"])
            .folder(&place)
            .run(way)
            .succeeded();
        objects.push(place.join("object.o"));
    }
    assert!(
        same_file(&objects[0], &objects[1]),
        "the compiler makes the same object on uslub"
    );
    let program = link(compiler, &objects[1], flags);
    Program::at(program).same_both_ways().succeeded();
}

fn link(compiler: &Program, object: &PathBuf, flags: &[&str]) -> PathBuf {
    let program = object.with_file_name("program");
    compiler
        .args(flags)
        .arg(object)
        .arg("-o")
        .arg(&program)
        .run(Way::Uslub)
        .succeeded();
    program
}

#[test]
fn cc_compiles_a_threaded_c_program_that_hands_blocks_across_threads() {
    let Some(compiler) = Program::find("cc") else {
        return;
    };
    compile_link_and_run(&compiler, "threads.c", &["-O2", "-pthread"]);
}

#[test]
fn cxx_compiles_a_program_of_containers_exceptions_and_futures() {
    let Some(compiler) = Program::find("c++") else {
        return;
    };
    let flags = ["-std=c++17", "-O2", "-pthread"];
    compile_link_and_run(&compiler, "containers.cc", &flags);
}
