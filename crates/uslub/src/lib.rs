//! Object caches: the Linux kernel's slab allocator, SLUB, for Rust programs on Linux.
//!
//! A cache hands out objects of one kind from its own slabs, through per-CPU *sheaves*. The fast
//! path is a few instructions without a lock. Caches have names, limits, counters and a line in a
//! table, so a program knows which kind of object uses its memory.
//!
//! # Which face to take
//!
//! | you want | take |
//! |---|---|
//! | the whole program on uslub, unchanged | [`Uslub`] as `#[global_allocator]` |
//! | objects of a type, owned as by a `Box` | [`Cache<T>`](Cache) and [`Object`] |
//! | a cache in a `static` | [`LazyCache`] |
//! | objects that keep their cache alive, to send or store anywhere | [`OwnedObject`] |
//! | linked structures, objects without a single owner | the raw forms of [`Cache<T>`](Cache) |
//! | objects whose size is known at run time only; other languages | [`RawCache`] |
//! | allocations that cannot fail, in a critical section | [`Cache::prefill`] |
//! | many objects at once | [`Cache::alloc_bulk`], [`Cache::free_all`] |
//! | operations that must not fail when memory runs out | [`Mempool`] |
//! | data of any size, kept apart from all other data | [`Buckets`] |
//! | collections of allocator-api2 | `&Cache`, `&Buckets` or [`Uslub`] as `Allocator` |
//! | readers without locks | [`Cache::free_rcu`], [`Builder::typesafe_by_rcu`] |
//! | a limit on a cache's memory, and a shrinker | [`Builder::limit`], [`Cache::shrinker`] |
//! | the kernel's calls by name | [`kmalloc`], [`krealloc`], [`kfree`] |
//!
//! # Contexts
//!
//! [`Gfp`] says what an allocation or a free may do, as in the kernel:
//!
//! | context | may map memory | may wait for a lock | promise |
//! |---|---|---|---|
//! | [`Gfp::KERNEL`] | yes | yes | fails only if shrinkers and empty slabs do not help |
//! | [`Gfp::NOWAIT`] | no | for a short time | no system call but a futex wait for such a lock |
//! | [`Gfp::NOSPIN`] | no | no | may be called anywhere, in signal handlers too |
//!
//! `NOWAIT` and `NOSPIN` use only memory that the process already has. `NOSPIN` needs a cache that
//! was used before. The plain calls use `KERNEL`; the others take a [`Gfp`].
//!
//! # Speed
//!
//! The fast paths are inlined into your program, so its release profile matters: `lto = "fat"`,
//! `codegen-units = 1`. On Intel processors from Skylake to Cascade Lake a jump that touches the
//! end of 32 bytes of code is slow. There `RUSTFLAGS="-C
//! llvm-args=-x86-branches-within-32B-boundaries"` saves up to a seventh of the time of a pair of
//! calls, and up to three tenths of a bulk of two. The gain depends on where the compiler places
//! the jumps.
//!
//! # Examples
//!
//! A typed cache:
//!
//! ```
//! use uslub::Cache;
//!
//! struct Connection { peer: u32, bytes: u64 }
//!
//! let connections = Cache::builder("connection").hwcache_align().limit(16 << 20).build()?;
//! let mut connection = connections.alloc(Connection { peer: 1, bytes: 0 })?;
//! connection.bytes += 1500;
//! assert_eq!((connection.peer, connections.stats().info.live_objs()), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Do all steps that can fail before the critical section:
//!
//! ```
//! let nodes = uslub::Cache::new("btree_node")?;
//! let mut aside = nodes.prefill(3)?;
//! // … take the lock; from here on nothing can fail …
//! let split = [aside.alloc([0u64; 16]), aside.alloc([0; 16]), aside.alloc([0; 16])];
//! # drop(split);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A collection whose memory has a name:
//!
//! ```
//! # #[cfg(feature = "allocator-api2")] {
//! let headers = uslub::Buckets::new("header").unwrap();
//! let mut header = allocator_api2::vec::Vec::new_in(&headers);
//! header.extend_from_slice(b"content-length: 42");
//! # }
//! ```
//!
//! A context that must not wait:
//!
//! ```
//! use uslub::{Cache, Gfp};
//!
//! let events = Cache::builder("event").frees(Gfp::NOSPIN).build()?;
//! drop(events.alloc(0u64)?);
//! // At any point from here on, say in a signal handler:
//! if let Ok(event) = events.try_alloc(42u64, Gfp::NOSPIN) {
//!     assert_eq!(*event, 42);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The whole program, and where its memory is:
//!
//! ```
//! #[global_allocator]
//! static GLOBAL: uslub::Uslub = uslub::Uslub;
//!
//! let text = "x".repeat(100);
//! println!("{}", uslub::slabinfo());
//! assert!(uslub::totals().live > text.len());
//! uslub::trim();
//! ```
//!
//! # When something is wrong
//!
//! Errors are values: [`CreateError`], [`AllocError`] (with the value that found no memory),
//! [`Leaked`]. Misuse that only `unsafe` code can commit (a double free, a foreign pointer, a write
//! to a freed object) ends the process. The message names the cache, the pointer and the reason. An
//! object that is freed to the wrong cache leaks, with a warning.
//!
//! The environment variable `USLUB_OPTIONS` sets tunables (`key=value` pairs, separated by commas).
//! A process may fork at any time. The crate starts no thread: memory goes back to the system
//! during later calls, and in [`trim`].
//!
//! # What does not work yet
//!
//! - Objects that need a drop cannot wait for a grace period.

#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-02"))]
mod allocator;
mod buckets;
mod builder;
mod cache;
mod ctor;
pub mod debug;
mod end;
#[cfg(feature = "crossbeam-epoch")]
mod epoch;
mod error;
mod global;
mod instance;
mod kmalloc;
mod lazy;
mod mempool;
mod metrics;
mod object;
mod owned;
mod prefill;
mod raw;
mod rcu;
mod shrinker;
mod stats;
mod tuning;
mod unwind;

pub use buckets::Buckets;
pub use builder::{Builder, RawBuilder};
pub use cache::Cache;
#[cfg(feature = "crossbeam-epoch")]
pub use epoch::Epoch;
pub use error::{AllocError, CreateError, Leaked};
pub use global::Uslub;
pub use instance::raw_allocator;
pub use kmalloc::{
    kfree, kfree_rcu, kfree_with, kmalloc, kmalloc_aligned, kmalloc_node, krealloc, ksize,
};
pub use lazy::LazyCache;
pub use mempool::{CacheSource, Element, FnSource, Mempool};
pub use metrics::{metrics, slab_use};
pub use object::Object;
pub use owned::OwnedObject;
pub use prefill::{Prefilled, RawPrefilled};
pub use raw::RawCache;
pub use rcu::{rcu_barrier, set_grace_period};
pub use shrinker::{Shrinker, shrinker};
pub use stats::{CacheStats, SlabInfo, SlabRow, slabinfo, totals, trim};
pub use tuning::tuning;
pub use uslub_core::Gfp;
pub use uslub_core::cache::info::{CacheInfo, SlabUse, Totals};
pub use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
pub use uslub_core::mempool::{MempoolError, Source};
pub use uslub_core::stats::StatItem;
pub use uslub_core::tunables::{SetError, TUNABLES, Tunable, Tuning};

/// The README's Rust programs run as printed.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The programs of the page about tuning run too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tuning.md")]
struct TuningPage;
