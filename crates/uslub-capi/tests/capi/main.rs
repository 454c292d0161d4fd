//! The library for C and C++, as it is installed: what it shows, what it refuses, what it survives.

mod built;
mod checkers;
mod dialects;
mod header;
mod install;
mod modes;

use std::path::Path;

use built::{Linked, all_holds, outcome, program};
use uslub_tests::tools::tool;

const SIGABRT: i32 = 6;

#[test]
fn the_c_example_runs() {
    for linked in [Linked::Dynamic, Linked::Static] {
        if let Some(program) = program("examples/c/requests.c", linked, &[]) {
            outcome(&program, &[]).wrote("64 requests of 104 bytes are in use");
        }
    }
}

#[test]
fn the_kernel_style_example_holds() {
    all_holds("examples/kernel-style/selftest.c", Linked::Dynamic);
}

#[test]
fn the_cxx_example_holds() {
    all_holds("examples/cpp/nodes.cc", Linked::Dynamic);
}

#[test]
fn bad_input_is_refused_with_errno_and_a_message() {
    all_holds("crates/uslub-capi/tests/c/refused.c", Linked::Static);
    let Some(program) = program("crates/uslub-capi/tests/c/refused.c", Linked::Dynamic, &[]) else {
        return;
    };
    let said = outcome(&program, &[]).succeeded().stderr;
    for message in [
        "uslub_cache_create: the name is null",
        "cache '': a cache's name has 1 to 31 bytes",
        "cache 'size 0': an object has 1 to 65536 bytes",
        "cache 'align 24': an alignment is a power of two",
        "cache 'limit 100': a limit is at least one slab",
        "cache 'two constructors': two constructors",
        "cache 'constructed': zeroed objects were asked for, but it has a constructor",
        "it belongs to cache 'apples' and is not freed",
        "is still in use",
        "cache 'apples': destroyed with 1 objects in use; it and its memory are kept",
        "are more than an array can hold",
        "uslub_cache_alloc_bulk: the array of 5 objects is null",
        "cache 'sheaves': a sheaf of 0 objects",
        "uslub_mempool_create: a function is missing",
        "cache 'made': no pool of objects with a constructor",
        "mempool: a pool's elements are not zeroed",
        "uslub_kmalloc_aligned: 24 is no power of two",
        "there are 2047 caches already",
        "cache 'tuning': tunable 'look_ahead' takes 0 to 8, not 9",
        "cache 'tuning name': unknown tunable 'colour'; known are slab_min_order,",
        "cache 'tuning process': tunable 'decay_ms' is the whole allocator's",
        "cache 'tuning form': 'sheaf_spill' is not of the form KEY=VALUE",
    ] {
        assert!(said.contains(message), "'{message}' is missing:\n{said}");
    }
}

#[test]
fn a_bug_of_the_caller_ends_the_process_with_a_message() {
    let Some(program) = program("crates/uslub-capi/tests/c/misuse.c", Linked::Dynamic, &[]) else {
        return;
    };
    for (case, message) in [
        ("destroyed_twice", "cache 'misused': destroyed already"),
        (
            "alloc_after_destroy",
            "cache 'misused': allocation after its end",
        ),
        ("bulk_after_destroy", "uslub_cache_alloc_bulk after its end"),
        ("prefill_after_destroy", "uslub_cache_prefill after its end"),
        ("free_after_destroy", "cache 'misused': free of"),
        ("free_foreign", "not allocated here (a foreign pointer)"),
        ("kfree_foreign", "not allocated here (a foreign pointer)"),
        ("krealloc_foreign", "not allocated here (a foreign pointer)"),
        ("free_twice", "double free"),
        ("free_interior", "not the start of an object"),
        ("null_cache", "uslub_cache_alloc: the cache is null"),
        ("null_cache_free", "uslub_cache_free: the cache is null"),
        ("null_sheaf", "uslub_cache_alloc_from: the sheaf is null"),
        ("null_pool", "uslub_mempool_alloc: the pool is null"),
        ("null_buckets", "uslub_buckets_alloc: the set is null"),
        ("no_grace_period", "no grace period was set"),
        ("panics", "cache 'needed': an object has 1 to 65536 bytes"),
        (
            "panics_without_name",
            "a cache that must be created was not",
        ),
    ] {
        let outcome = outcome(&program, &[case]);
        assert!(
            outcome.ended_by(SIGABRT) && outcome.stderr.contains(message),
            "{case}, which should say '{message}': {}",
            outcome.describe()
        );
    }
}

#[test]
fn the_use_of_a_slab_is_told() {
    all_holds("crates/uslub-capi/tests/c/slab_use.c", Linked::Dynamic);
}

#[test]
fn a_cache_behaves_as_its_tuning_says() {
    all_holds("crates/uslub-capi/tests/c/tuning.c", Linked::Dynamic);
}

#[test]
fn objects_of_c_are_guarded_too() {
    let file = "crates/uslub-capi/tests/c/guarded.c";
    let Some(program) = program(file, Linked::Dynamic, &[]) else {
        return;
    };
    let mut command = std::process::Command::new(&program);
    let done = command.env("USLUB_OPTIONS", "guard=1000,guard_recover=1");
    let output = done.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for message in [
        "BUG: guard: use-after-free write in guarded",
        "size=40, cache=herbs",
        "BUG: guard: double free in guarded",
        "BUG: guard: free of a pointer to no object in guarded",
        "freed by thread ",
    ] {
        assert!(said.contains(message), "'{message}' is missing:\n{said}");
    }
}

#[test]
fn debugged_caches_find_what_the_kernels_self_tests_find() {
    let file = "crates/uslub-capi/tests/c/debugged.c";
    let Some(program) = program(file, Linked::Dynamic, &[]) else {
        return;
    };
    let mut command = std::process::Command::new(&program);
    let done = command.env("USLUB_OPTIONS", "slab_debug_fatal=0,slab_debug=P,others");
    let output = done.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for message in [
        "[Right Redzone overwritten]",
        "[Poison overwritten]",
        "[kmalloc Redzone overwritten]",
        "Freechain corrupt",
        "Objects remaining on __kmem_cache_shutdown()",
        "Object already free",
        "FIX found: Object at 0x",
        "TRACE found alloc 0x",
        "Allocated in ",
        "Freed in ",
    ] {
        assert!(said.contains(message), "'{message}' is missing:\n{said}");
    }
    let traces = String::from_utf8_lossy(&output.stdout);
    assert!(traces.contains(" slab found start 0x"), "{traces}");
}

#[test]
fn threads_and_forks_leave_all_structures_whole() {
    all_holds("crates/uslub-capi/tests/c/threads.c", Linked::Dynamic);
}

#[test]
fn signal_handlers_may_allocate_and_free_without_waiting() {
    all_holds("crates/uslub-capi/tests/c/handlers.c", Linked::Dynamic);
}

#[test]
fn the_table_has_the_columns_of_slabinfo() {
    let Some(program) = program("crates/uslub-capi/tests/c/table.c", Linked::Dynamic, &[]) else {
        return;
    };
    let said = outcome(&program, &[]).succeeded().stdout;
    assert!(said.starts_with("alloc_fastpath 1\n"), "{said}");
    let table = &said[said.find("slabinfo - version: 2.1\n").expect("a header")..];
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(rows.iter().all(|row| row.len() == 16), "{table}");
    assert!(rows.iter().any(|row| row[0] == "kmalloc-112"), "{table}");
    let ours = rows
        .iter()
        .find(|row| row[0] == "a_name_with_blanks")
        .expect("our cache");
    assert_eq!(&ours[3..6], ["104", "39", "1"], "{table}");
}

#[test]
fn readers_see_whole_objects_with_liburcu() {
    let places = [
        "/usr/include/x86_64-linux-gnu/urcu.h",
        "/usr/include/aarch64-linux-gnu/urcu.h",
        "/usr/include/urcu.h",
    ];
    let there = places.iter().find(|file| Path::new(file).is_file());
    if tool(there.unwrap_or(&places[2])).is_none() {
        return;
    }
    if let Some(program) = program("examples/c/rcu.c", Linked::Dynamic, &["-lurcu"]) {
        outcome(&program, &[]).wrote(", 0 of them torn;");
    }
}

#[test]
fn a_cold_cpu_serves_calls_that_may_not_ask_the_system_from_sheaves() {
    let Some(program) = program("crates/uslub-capi/tests/c/cold.c", Linked::Dynamic, &[]) else {
        return;
    };
    for context in ["nowait", "nospin", "mempool"] {
        for first_calls_on in ["0", "1"] {
            outcome(&program, &[context, first_calls_on]).wrote("of the objects from slabs");
        }
    }
}
