//! SLUB for user space: the core, without `std` and without an operating system.
//!
//! An [`Allocator`] is a value over a [`platform::Platform`]. It hands out objects of named caches
//! and of kmalloc's size classes.
//!
//! ```text
//!  kmalloc/, cache/     objects of a size, or of a cache
//!     │
//!  CPU     percpu/      for each cache the words main and spare, each a sheaf's top
//!     │ main empty ▲ main full
//!  sheaf   percpu/      an array of free objects; sheaf/ replaces and refills it
//!     │ empty      ▲ full
//!  barn    sheaf/       full and empty sheaves of a cache and memory node
//!     │ refill     ▲ flush
//!  slab    slab/        2^order pages cut into slots
//!     │ new slab   ▲ empty slab
//!  page    memory/      runs of 4 KiB pages in blocks of 2 MiB
//!     │ commit     ▲ purge
//!  system  platform.rs  address space, CPUs, clock, messages
//! ```
//!
//! From the top down:
//!
//! | layer | contents |
//! |---|---|
//! | [`mempool`], [`prefill`], [`rcu`], [`destroy`] | guarantees built on caches |
//! | [`kmalloc`] | objects of any size |
//! | [`cache`] | caches: single objects, bulks, and operations over all caches |
//! | [`sheaf`] | batches of objects near a CPU |
//! | [`slab`] | pages cut into objects |
//! | [`memory`] | pages from the system, and back |
//! | [`percpu`] | words per CPU and cache |
//! | [`sync`] | locks and atomics |
//! | [`misuse`] | what is reported about wrong calls |
//! | [`platform`] | the system below: what it must do |
//! | [`policy`] | every threshold of the layers above |
//! | [`debug`] | `slab_debug`: its text, flags and layout of a slot |
//! | [`gfp`], [`args`], [`tunables`], [`size_class`], [`grace`] | a caller's options |
//! | [`groups`] | which CPUs share barns |
//! | [`layout`], [`root`] | what a reader in another process needs |
//!
//! A layer uses only the layers below it; [`slab::base`] says how types enforce this.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod args;
pub mod cache;
pub mod debug;
pub mod destroy;
pub mod gfp;
pub mod grace;
pub mod groups;
pub mod kmalloc;
pub mod layout;
pub mod memory;
pub mod mempool;
pub mod misuse;
pub mod percpu;
pub mod platform;
pub mod policy;
pub mod prefill;
pub mod rcu;
pub mod root;
pub mod sheaf;
pub mod size_class;
pub mod slab;
pub mod sync;
pub mod tunables;

pub use cache::allocator::Allocator;
pub use gfp::Gfp;
pub use percpu::stats;
