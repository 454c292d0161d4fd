//! SLUB for user space: the core, without `std` and without an operating system.
//!
//! An [`Allocator`] is a value over a [`platform::Platform`]. It hands out objects
//! of named caches and of kmalloc's size classes. From the top down:
//!
//! | layer | files |
//! |---|---|
//! | reserves | `mempool` |
//! | objects of any size | `kmalloc`, `resize`, `classes`, `huge`, `buckets` |
//! | caches | `cache`, `args`, `bulk`, `prefill`, `rcu`, `destroy`, `info`, `stats` |
//! | batches of objects | `sheaves`, `flush`, `reclaim`; `numa`, `capacity`, `capacity`, `sheaf`, `percpu`, `locked`, `barn` |
//! | slabs | `refill`, `take`, `fresh`, `free`, `partial`, `deferred`; `node`, `reserve`, `slab`, `freelist`, `order` |
//! | pages | `page` |
//! | the world below | `platform`; `forks`; `sync`, `gfp`, `grace`, `tunables`, `meta`, `text`, `time`, `atomic` |
//!
//! A layer uses only what stands below it.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod ahead;
pub mod allocator;
pub mod args;
pub mod atomic;
pub mod barn;
pub mod buckets;
pub mod bulk;
pub mod cache;
pub mod capacity;
pub mod classes;
pub mod complete;
pub mod deferred;
pub mod destroy;
pub mod detached;
pub mod flush;
pub mod forks;
pub mod free;
pub mod freelist;
pub mod fresh;
pub mod gfp;
pub mod grace;
pub mod huge;
pub mod info;
pub mod kmalloc;
mod large;
pub mod locked;
pub mod mempool;
pub mod meta;
#[cfg(loom)]
pub mod modelled;
pub mod node;
pub mod numa;
pub mod order;
pub mod page;
pub mod partial;
pub mod percpu;
pub mod platform;
mod pour;
pub mod prefill;
pub mod rcu;
pub mod reclaim;
pub mod refill;
pub mod reserve;
mod resize;
mod room;
#[cfg(shuttle)]
pub mod scheduled;
pub mod sheaf;
pub mod sheaves;
pub mod slab;
mod span;
pub mod spill;
pub mod stats;
pub mod sync;
mod take;
pub mod text;
mod time;
pub mod tunables;
pub mod validate;
mod visit;
pub mod whole;
mod within;

pub use allocator::Allocator;
pub use gfp::Gfp;
