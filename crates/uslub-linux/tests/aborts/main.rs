//! Forced aborts at every instruction of every restartable sequence, by the real kernel.
//!
//! ```text
//!  sequences   each operation of uslub-rseq alone, on one sheaf
//!  allocator   the same sequences inside an allocator that works
//!  world       (of uslub-rseq) the sheaf, and what each operation must do
//!  tracer      stops a process inside a sequence, and demands the abort
//!  tracer/     code and registers, by the architecture
//!  table       what was aborted where
//! ```
//!
//! `USLUB_ABORTS=N`: aborts at each instruction; 3 otherwise.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod allocator;
mod sequences;
mod table;
mod tracer;
#[path = "../../../uslub-rseq/tests/operations/world.rs"]
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};

use uslub_rseq::Area;

/// This thread's area; `None`, and a line that says so, where the kernel has no restartable
/// sequences.
fn area() -> Option<Area> {
    let area = Area::adopt().or_else(Area::register_own);
    if area.is_none() {
        let required = std::env::var_os("USLUB_REQUIRE_PROGRAMS").is_some_and(|v| v == "1");
        assert!(!required, "the kernel has no restartable sequences for us");
        eprintln!("skipped: the kernel has no restartable sequences for us");
    }
    area
}

fn number(variable: &str, otherwise: u32) -> u32 {
    std::env::var(variable).map_or(otherwise, |n| n.parse().expect("a number"))
}

/// Held by each test: a fork takes no lock of another test with it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
