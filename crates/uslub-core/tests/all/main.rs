//! Tests of the core, in one program. The folders are those of the sources; `guarantees` holds what
//! takes all layers together.
//!
//! `cargo test -p uslub-core --test all slab::detached` runs one file.
//!
//! All tests share one process, and run at the same time. A test that depends on state of the
//! process, as a count of all threads is, belongs in a program of its own, next to this folder.
//! `support::torment` installs a signal handler, but stops only threads that registered with it.

mod support;

mod cache;
mod guarantees;
mod kmalloc;
mod memory;
mod percpu;
mod sheaf;
mod slab;
mod sync;
