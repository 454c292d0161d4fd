//! SLUB for user space: the core, without `std` and without an operating system.
//!
//! An [`Allocator`] is a value over a [`platform::Platform`]. It hands out objects
//! of named caches and of kmalloc's size classes. From the top down:
//!
//! | layer | what it is |
//! |---|---|
//! | [`mempool`], [`prefill`], [`rcu`], [`destroy`] | guarantees built on caches |
//! | [`kmalloc`] | objects of any size |
//! | [`cache`] | caches: one object, many objects, and what is asked of all of them |
//! | [`sheaf`] | batches of objects near a CPU |
//! | [`slab`] | objects in pages |
//! | [`memory`] | pages from the system, and back |
//! | [`percpu`] | one word a CPU and cache |
//! | [`sync`] | how threads meet |
//! | [`platform`] | the world below: what a system must do |
//! | [`gfp`], [`args`], [`tunables`], [`size_class`], [`grace`] | what a caller may ask for |
//!
//! A layer uses only what stands below it.

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
pub mod percpu;
pub mod platform;
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
