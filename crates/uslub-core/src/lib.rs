//! SLUB for user space: the core, without `std` and without an operating system.
//!
//! An [`Allocator`] is a value over a [`platform::Platform`]. It hands out objects of named caches
//! and of kmalloc's size classes. From the top down:
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
//! | [`gfp`], [`args`], [`tunables`], [`size_class`], [`grace`] | a caller's options |
//!
//! A layer uses only the layers below it.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod args;
pub mod cache;
pub mod destroy;
pub mod gfp;
pub mod grace;
pub mod kmalloc;
pub mod memory;
pub mod mempool;
pub mod misuse;
pub mod percpu;
pub mod platform;
pub mod policy;
pub mod prefill;
pub mod rcu;
pub mod sheaf;
pub mod size_class;
pub mod slab;
pub mod sync;
pub mod tunables;

pub use cache::allocator::Allocator;
pub use gfp::Gfp;
pub use percpu::stats;
