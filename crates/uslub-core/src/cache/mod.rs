//! Caches (`kmem_cache`): creation and sharing, single objects, bulks, and operations over all
//! caches.
//!
//! | file | concept |
//! |---|---|
//! | `kmem_cache` | a cache |
//! | `allocator` | the list of caches |
//! | `cache_list` | free identities and records |
//! | `object` | allocates and frees one object |
//! | `mark` | what a free sees of double frees and of wrong pointers |
//! | `quarantine` | freed objects that wait, of the hardened mode |
//! | `bulk` | allocates and frees many objects at once |
//! | `debug` | debugged caches: their flags, sizes and traces |
//! | `guard` | guarded objects: sizes, frees, resizes |
//! | `drain` | takes and flushes the sheaves of other CPUs |
//! | `shrink` | gives cached objects and empty slabs back |
//! | `reclaim` | frees memory when an allocation fails |
//! | `info` | statistics |
//! | `validate` | checks that lists, states and counters agree |
//! | `shrinker` | functions that free memory when it is short |
//! | `fork`, `forks` | locks around a fork; the forks that run |
//! | `text` | names without heap memory |

pub mod allocator;
pub mod bulk;
pub(crate) mod cache_list;
pub mod debug;
pub mod drain;
pub mod fork;
pub(crate) mod forks;
mod guard;
pub mod info;
mod kmem_cache;
pub mod mark;
pub mod object;
pub(crate) mod quarantine;
pub mod reclaim;
pub mod shrink;
pub mod shrinker;
pub mod text;
pub mod validate;

pub use kmem_cache::KmemCache;
