//! Reads the heap of a process that runs on uslub, from outside.
//!
//! All of uslub's records are found by arithmetic, so a reader that can read bytes at an address
//! knows everything: which objects are live, which wait in which CPU's sheaf, which slots are free.
//! The process is not stopped, runs no code for it, and needs no preparation.
//!
//! ```text
//!   memory.rs      read(address): of a process (process.rs) or a core file (core_file.rs)
//!      │
//!   root.rs        the ELF note: allocator, layout table (layout.rs, fields.rs)
//!      │
//!   heap.rs        caches, words of CPUs; sheaves.rs; pages.rs walks the pages
//!      │
//!   snapshot.rs    figures of all caches        bridge.rs   where the resident memory is
//!   slots.rs       state of every slot          explain.rs  what an address is
//!   fullness.rs    how full slabs are
//! ```
//!
//! | file | concept |
//! |---|---|
//! | `memory` | the memory that is read |
//! | `process`, `core_file` | a running process; a core file |
//! | `proc_text` | the kernel's text files about a process |
//! | `root`, `layout`, `fields` | where the allocator is, and where its fields are |
//! | `heap`, `sheaves`, `pages`, `blocks` | the structures of one allocator |
//! | `snapshot` | a look at all caches |
//! | `bridge` | the way from the resident memory to the live objects |
//! | `slots`, `explain` | the state of each slot; what an address is |
//! | `quarantine` | freed objects of the hardened mode that wait |
//! | `fullness` | how full the slabs are; sheaves of one cache |
//! | `counters` | calls of each cache, by CPU slot; events of the slow paths |
//! | `holders` | who points to an object |
//! | `error` | why a heap could not be read |
//!
//! Nothing that is read is trusted: every walk is bounded, and damage shows as damage.
//!
//! ```
//! use uslub_inspect::{Heap, Process, root};
//!
//! let process = Process::open(std::process::id() as i32)?;
//! // This program does not run on uslub, and the error says so.
//! let error = root::find(&process).unwrap_err();
//! assert!(error.to_string().starts_with("not on uslub"));
//! # Ok::<(), uslub_inspect::Error>(())
//! ```

#![forbid(unsafe_code)]
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod blocks;
pub mod bridge;
pub mod core_file;
pub mod counters;
pub mod error;
pub mod explain;
mod fields;
pub mod fullness;
pub mod heap;
pub mod holders;
pub mod layout;
pub mod memory;
pub mod pages;
pub mod proc_text;
pub mod process;
mod quarantine;
pub mod root;
pub mod sheaves;
pub mod slots;
pub mod snapshot;

pub use bridge::Bridge;
pub use core_file::CoreFile;
pub use error::Error;
pub use heap::Heap;
pub use memory::Memory;
pub use process::Process;
pub use snapshot::{Depth, Snapshot};
