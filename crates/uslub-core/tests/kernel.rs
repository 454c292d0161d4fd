//! The core in a kernel: the example's own files, run here.
//!
//! This is a program of its own: the example's files name each other from the root of the crate.

#[path = "../examples/kernel/demo.rs"]
mod demo;
#[path = "../examples/kernel/platform.rs"]
mod platform;

/// The lines of a round: all of the arena becomes objects, and all of them come back.
const ROUND: [&str; 6] = [
    "filled 65536 inodes, then null",
    "# name active total objsize slabs",
    "inode 65536 65536 256",
    "freed all in batches of 64",
    "# name active total objsize slabs",
    "inode 0 0 256",
];

#[test]
fn a_kernel_uses_all_of_its_memory_and_uses_it_again() {
    let mut said = String::new();
    demo::run(&mut said).unwrap();
    // One blank between words.
    let lines: Vec<_> = said
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let mut expected = vec!["memory 24 MiB, of which 16 MiB for objects"];
    for round in ["round 1", "round 2"] {
        expected.push(round);
        expected.extend(ROUND);
    }
    expected.push("handler got an inode while every lock was held");
    expected.push("other 107 pages from kmalloc");
    expected.push("in use");
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        // The number of slabs, at the end of a line, is the allocator's affair.
        assert!(line.starts_with(expected), "{line:?} is not {expected:?}");
    }
    assert!(said.ends_with("; 0 warnings\n"), "{said}");
}
