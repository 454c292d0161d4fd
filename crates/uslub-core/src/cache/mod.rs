//! Caches (`kmem_cache`): creation and sharing, single objects, bulks, and operations over all
//! caches.
//!
//! | file | concept |
//! |---|---|
//! | `args` | the arguments of a cache, and the layout of its slots |
//! | `kmem_cache` | a cache |
//! | `allocator` | the list of caches, and the state of all layers |
//! | `object` | allocates and frees one object, or many at once |
//! | `reclaim` | frees memory when an allocation fails |
//! | `info` | statistics |
//! | `validate` | checks that lists, states and counters agree |
//! | `fork` | locks and state around a fork |
//! | `text` | names without heap memory |

pub mod allocator;
pub mod args;
pub mod fork;
pub mod info;
mod kmem_cache;
pub mod object;
pub mod reclaim;
pub mod text;
pub mod validate;

pub use kmem_cache::*;
