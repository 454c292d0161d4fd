//! Caches (`kmem_cache`): making and sharing them, one object, many objects, and what is asked of
//! all of them.
//!
//! | file | concept |
//! |---|---|
//! | `kmem_cache` | a cache |
//! | `allocator` | all caches, and the state of all layers |
//! | `cache_list` | identities and records that are free |
//! | `object` | one object, and many at once |
//! | `reclaim` | what is tried when memory is short |
//! | `room` | what is given up when the system refuses memory |
//! | `info` | figures |
//! | `validate` | whether lists, states and counters agree |
//! | `fork` | all locks around a fork |
//! | `text` | names without memory |

pub mod allocator;
mod cache_list;
pub mod fork;
pub mod info;
mod kmem_cache;
pub mod object;
pub mod reclaim;
mod room;
pub mod text;
pub mod validate;

pub(crate) use kmem_cache::CacheNode;
pub use kmem_cache::KmemCache;
