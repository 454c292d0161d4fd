//! The release library's own sequences, aborted at every instruction by the real kernel.
//!
//! A program runs on the preloaded library under the tracer of `uslub-linux`'s tests. `malloc` and
//! `free` must be aborted at each of their instructions; of the copies of the operations that the
//! compiler has put into slow functions those that the program reaches are aborted too, and the
//! table says how far. The program verifies each block, and at its end the allocator's own rules.
//!
//! `USLUB_ABORTS=N`: aborts at each instruction; 3 otherwise.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

#[path = "../../../uslub-linux/tests/aborts/tracer.rs"]
#[allow(dead_code)]
mod tracer;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use object::{Object, ObjectSection, ObjectSymbol};
use tracer::{DESCRIPTOR_BYTES, Event, Sequence, Tracee};
use uslub_tests::subject::{plain, subject};
use uslub_tests::tools::{alone, number, say_skipped};
use uslub_tests::{Way, program};

/// Rounds of the program in which an instruction of `malloc` and `free` must be reached, for each
/// abort asked for.
const ROUNDS: u64 = 40;

/// Where the library is in a traced process.
fn base(pid: u32, library: &Path) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let library = library.canonicalize().expect("the library");
    maps.lines()
        .filter(|line| line.ends_with(&*library.to_string_lossy()))
        .map(|line| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap())
        .min()
        .expect("the library is loaded")
}

/// The library's functions by their last addresses, and where its descriptors are.
struct Library {
    functions: BTreeMap<u64, (u64, String)>,
    descriptors: Vec<u64>,
}

impl Library {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the library");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let section = file.section_by_name("__rseq_cs").expect("descriptors");
        let (start, size) = (section.address(), section.size());
        let functions = file
            .symbols()
            .filter(|symbol| symbol.size() > 0 && symbol.is_definition())
            .map(|symbol| {
                let name = symbol.name().unwrap_or("?").to_owned();
                let last = symbol.address() + symbol.size() - 1;
                (last, (symbol.address(), name))
            })
            .collect();
        Self {
            functions,
            descriptors: (start..start + size)
                .step_by(DESCRIPTOR_BYTES as usize)
                .collect(),
        }
    }

    /// The function that an address is in, without the hash behind its name.
    fn function(&self, address: u64) -> &str {
        match self.functions.range(address..).next() {
            Some((_, (start, name))) if *start <= address => {
                let end = name.rfind("17h").unwrap_or(name.len());
                // The last part of the path, whose length stands before it.
                let last = name[..end].rsplit(|c: char| c.is_ascii_digit()).next();
                last.unwrap_or(name)
            }
            _ => "?",
        }
    }
}

/// The program, stopped before its first round, with the library loaded.
fn start(way: Way, rounds: u64) -> Option<Tracee> {
    let mut command = Command::new(program("aborted")?);
    way.apply(&mut command);
    command
        .args([rounds.to_string(), "1".to_owned()])
        .stdout(Stdio::null());
    // SAFETY: asks to be traced, which allocates nothing.
    unsafe {
        command.pre_exec(|| {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize);
            Ok(())
        });
    }
    #[expect(clippy::zombie_processes, reason = "the tracer waits for it")]
    let child = command.spawn().expect("the program starts");
    let mut tracee = Tracee::of(child.id() as libc::pid_t);
    assert_eq!(tracee.run(), Event::Pause, "before its first round");
    Some(tracee)
}

#[test]
fn malloc_and_free_aborted_at_each_instruction_lose_nothing() {
    lose_nothing(Way::PRELOADED, ["malloc", "free"]);
}

#[test]
fn those_for_the_cpus_number_aborted_at_each_instruction_lose_nothing() {
    lose_nothing(Way::BY_NUMBER, ["malloc_by_number", "free_by_number"]);
}

/// Aborts what the program reaches, and at each instruction the functions that are named.
fn lose_nothing(way: Way, functions: [&str; 2]) {
    let _alone = alone();
    if plain() || !Path::new("/proc/self/mem").exists() {
        return;
    }
    let generations = number("USLUB_ABORTS", 3);
    let Some(mut tracee) = start(way, generations * ROUNDS + 1) else {
        return;
    };
    let path = &subject().library;
    let library = Library::read(path);
    let base = base(tracee.pid() as u32, path);
    let mut names = Vec::new();
    for descriptor in &library.descriptors {
        let sequence = Sequence::read(tracee.memory(), base + descriptor);
        names.push(library.function(sequence.start - base).to_owned());
        tracee.watch(sequence);
    }
    if names.is_empty() {
        say_skipped("the library has no sequences");
    }
    for _ in 0..generations {
        tracee.arm_all();
        for _ in 0..ROUNDS {
            assert_eq!(tracee.run(), Event::Pause, "the program found a fault");
        }
        tracee.disarm_all();
    }
    assert_eq!(tracee.run(), Event::End(0), "the program found a fault");

    println!("function                                 instructions  aborted at each");
    let mut reached = 0;
    for (name, aborted) in names.iter().zip(&tracee.aborted) {
        if aborted.iter().any(|&n| n > 0) {
            reached += 1;
            let each: Vec<String> = aborted.iter().map(u32::to_string).collect();
            println!("{name:40} {:12}  {}", aborted.len(), each.join(" "));
        }
    }
    println!("{reached} of {} sequences were reached", names.len());
    for name in functions {
        let number = names.iter().position(|of| of == name);
        let number = number.unwrap_or_else(|| panic!("{name} has no sequence"));
        let aborted = &tracee.aborted[number];
        assert!(aborted.len() > 5, "{name}");
        for (instruction, &n) in aborted.iter().enumerate() {
            let n = u64::from(n);
            assert_eq!(
                n, generations,
                "{name}: aborts at instruction {instruction}"
            );
        }
    }
}
