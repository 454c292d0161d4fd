//! Caches (`kmem_cache`): creation and sharing, single objects, bulks, and operations over all
//! caches.
//!
//! | file | concept |
//! |---|---|
//! | `kmem_cache` | a cache |
//! | `allocator` | the list of caches, and the state of all layers |
//! | `cache_list` | free identities and records |
//! | `object` | allocates and frees one object |
//! | `bulk` | allocates and frees many objects at once |
//! | `shrink` | gives cached objects and empty slabs back |
//! | `reclaim` | frees memory when an allocation fails |
//! | `room` | gives unused memory back when the system refuses a request |
//! | `info` | statistics |
//! | `validate` | checks that lists, states and counters agree |
//! | `fork` | locks and state around a fork |
//! | `text` | names without heap memory |

pub mod allocator;
pub mod bulk;
mod cache_list;
pub mod fork;
pub mod info;
mod kmem_cache;
pub mod object;
pub mod reclaim;
mod room;
pub mod shrink;
pub mod text;
pub mod validate;

pub(crate) use kmem_cache::CacheNode;
pub use kmem_cache::KmemCache;
