//! Caches (`kmem_cache`): making and sharing them, one object, many objects, and what is asked of
//! all of them.
//!
//! | file | concept |
//! |---|---|
//! | `args` | what a cache is made of |
//! | `kmem_cache` | a cache |
//! | `allocator` | all caches, and the state of all layers |
//! | `object` | one object, and many at once |
//! | `reclaim` | what is tried when memory is short |
//! | `info` | figures |
//! | `validate` | whether lists, states and counters agree |
//! | `fork` | all locks around a fork |
//! | `text` | names without memory |

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
