//! What the release build's fast paths are made of, instruction by instruction.
//!
//! `malloc` and `free` are written by hand: every way through them that does not jump to a slow
//! function is followed to its return, and none may have a lock, a call, a division, or more
//! instructions than stated here. The caches' functions are the compiler's: there the way through
//! the sequence's commit is looked for that has none of these, and its length is bounded too. A
//! limit that must grow is a decision, not an accident: say why where it stands.

//! The library may be of another architecture than the test: `USLUB_LIBRARY` names it, and
//! `.ci/aarch64` does so.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod code;

use code::{Function, Library, Slow};
use object::Architecture;
use uslub_tests::release;
use uslub_tests::subject::subject;

/// Instructions of `malloc` from its first to its return, both counted. The least that is known:
/// bound 3, class 3, area and registration 3, descriptor 2, index and region 2, pop 6, counter 1,
/// the mark is erased 1, return 1.
const MALLOC_MOST: usize = 22;
/// The same of `free`: bound 6, page's cache 2, does a slot begin here 5, is it marked 3, area and
/// registration 3, descriptor 2, index and region 2, push 6, counter and return 2, and two that do
/// nothing but keep a jump off the end of 32 bytes of code.
const FREE_MOST: usize = 33;
/// The same of what frees an object of a known class, for `realloc`: the class 1, bound 3, the rest
/// as above, without the look for the slot: 24 when this was written.
const FREE_OF_MOST: usize = 24;
/// The same for aarch64, where no instruction adds to memory, a load takes one instruction more for
/// each number in its address that does not fit, and no operand lies in memory. `malloc`: table 2,
/// bound 3, class 3, area and registration 4, descriptor 3, index and region 3, pop 5, counter 3,
/// the mark is erased 1, return 1.
const MALLOC_MOST_AARCH64: usize = 28;
/// `free`: bound 7, page's cache 2, does a slot begin here 6, is it marked 5, area and registration
/// 5, descriptor 3, index and region 3, push 7, counter 3, return 1.
const FREE_MOST_AARCH64: usize = 42;
const MALLOC: [usize; 2] = [MALLOC_MOST, MALLOC_MOST_AARCH64];
const FREE: [usize; 2] = [FREE_MOST, FREE_MOST_AARCH64];
/// `free_of`: the class 1, bound 3, the rest as above.
const FREE_OF_MOST_AARCH64: usize = 31;
// No architecture may be far behind: at most 1.3 times the instructions of x86-64.
const _: () = assert!(10 * MALLOC_MOST_AARCH64 <= 13 * MALLOC_MOST);
const _: () = assert!(10 * FREE_MOST_AARCH64 <= 13 * FREE_MOST);
const _: () = assert!(10 * FREE_OF_MOST_AARCH64 <= 13 * FREE_OF_MOST);

/// The same of `Allocator::alloc` as the library for C has it: what `malloc` does, and the look
/// whether sequences may run, and the flags. 39 when this was written; the rest is the compiler's
/// freedom.
const CACHE_ALLOC_MOST: usize = 48;
/// The same of `uslub_cache_free`, which looks up the page's cache, the slot and the mark besides.
/// 56 when this was written.
const CACHE_FREE_MOST: usize = 70;

/// Every way of a function from its entry to its return. The numbers are those of x86-64 and
/// aarch64.
fn all_ways_are_fast(name: &str, most: [usize; 2]) {
    let library = Library::read(&subject().library);
    let most = match library.architecture {
        Architecture::X86_64 => most[0],
        _ => most[1],
    };
    // Compilers write names in two ways: with a hash behind, or without.
    let of_a_path = format!("4fast{}{name}", name.len());
    let hashed = format!("{of_a_path}17h");
    let function = library.function(|symbol| {
        symbol == name || symbol.ends_with(&of_a_path) || symbol.contains(&hashed)
    });
    let function = function.unwrap_or_else(|| panic!("{name} is missing"));
    let ways = function.all_ways();
    println!("{name}: {} to {} instructions", ways.shortest, ways.longest);
    for (instruction, slow) in &ways.slow {
        println!("{name}: {instruction}: {slow:?}");
    }
    assert!(ways.slow.is_empty(), "{name}: {:?}", ways.slow);
    assert_eq!(library.sequences_in(&function), 1, "{name}: sequences");
    assert!(
        ways.longest <= most,
        "{name}: {} instructions to the return, more than {most}",
        ways.longest
    );
}

/// The shortest way through a sequence's commit, in the exported function or where the compiler has
/// not put it there, in the one that it calls.
fn a_way_is_fast(library: &Library, exported: &str, called: &str, most: usize) {
    let functions = [
        library.function(|symbol| symbol == exported),
        library.function(|symbol| symbol.contains(called)),
    ];
    let mut functions = functions.into_iter().flatten();
    let function = functions
        .find(|function| library.sequences_in(function) > 0)
        .unwrap_or_else(|| panic!("{exported}: no sequence there, nor in {called}"));
    let shortest = library
        .commits_in(&function)
        .filter_map(|commit| function.shortest_way_through(commit))
        .min();
    println!("{exported}: {shortest:?} instructions");
    let shortest = shortest.unwrap_or_else(|| {
        panic!("{exported}: no way through a sequence without a lock, a call or a division")
    });
    assert!(
        shortest <= most,
        "{exported}: {shortest} instructions to the return, more than {most}"
    );
}

#[test]
fn malloc_is_one_sequence_without_lock_call_or_division() {
    all_ways_are_fast("malloc", MALLOC);
}

#[test]
fn free_is_one_sequence_without_lock_call_or_division() {
    all_ways_are_fast("free", FREE);
}

#[test]
fn the_free_of_a_known_class_is_one_sequence_without_lock_call_or_division() {
    all_ways_are_fast("free_of", [FREE_OF_MOST, FREE_OF_MOST_AARCH64]);
}

#[test]
fn those_for_the_cpus_number_are_as_short() {
    for (name, most) in [("malloc", MALLOC), ("free", FREE)] {
        all_ways_are_fast(&format!("{name}_by_number"), most);
    }
}

#[test]
fn a_cache_allocates_and_frees_without_lock_call_or_division() {
    // On aarch64 an exclusive pair counts.
    if cfg!(target_arch = "aarch64") {
        return;
    }
    let library = Library::read(&release::library("uslub-capi", "libuslub_capi.so"));
    a_way_is_fast(
        &library,
        "uslub_cache_alloc",
        "uslub_core..allocator..Allocator$LT$P$GT$$GT$5alloc17h",
        CACHE_ALLOC_MOST,
    );
    a_way_is_fast(
        &library,
        "uslub_cache_free",
        "uslub_core..allocator..Allocator$LT$P$GT$$GT$9free_with17h",
        CACHE_FREE_MOST,
    );
}

/// The walk itself sees what it must: a function that certainly calls, locks and loops.
#[test]
fn slow_instructions_are_seen() {
    let library = Library::read(&subject().library);
    let function = library.function(|symbol| symbol == "calloc");
    let seen = function.expect("calloc").all_ways().slow;
    assert!(
        seen.iter().any(|(_, slow)| *slow == Slow::Call),
        "calloc calls nothing? {seen:?}"
    );
    // lock inc qword [rax]; div rcx; xchg [rax], rcx; syscall; jmp rax; jmp to itself.
    for (bytes, slow) in [
        (&[0xf0, 0x48, 0xff, 0x00, 0xc3][..], Slow::Lock),
        (&[0x48, 0xf7, 0xf1, 0xc3], Slow::Division),
        (&[0x48, 0x87, 0x08, 0xc3], Slow::Lock),
        (&[0x0f, 0x05, 0xc3], Slow::Call),
        (&[0xff, 0xe0, 0xc3], Slow::Unknown),
        (&[0x75, 0xfe, 0xc3], Slow::Loop),
    ] {
        let ways = Function::of(Architecture::X86_64, 0x1000, bytes).all_ways();
        assert!(ways.slow.iter().any(|(_, seen)| *seen == slow), "{slow:?}");
    }
}
