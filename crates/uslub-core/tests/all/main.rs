//! Tests of the core, in one program. The folders are those of the sources; `guarantees` holds what
//! takes all layers together.
//!
//! `cargo test -p uslub-core --test all slab::detached` runs one file.
//!
//! All tests share one process, and run at the same time. So a test may not depend on what is the
//! process's own: signal handlers, limits, counts of all threads. Tests that do are programs of
//! their own beside this folder.

mod support;

mod cache;
mod guarantees;
mod kmalloc;
mod memory;
mod percpu;
mod sheaf;
mod slab;
mod sync;
