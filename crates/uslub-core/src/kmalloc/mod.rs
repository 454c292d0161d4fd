//! kmalloc: objects of any size, without a cache of the caller's own.
//!
//! | file | concept |
//! |---|---|
//! | `size_class` | the sizes of kmalloc's caches |
//! | `alloc` | allocates, frees, and tells sizes |
//! | `resize` | changes an object's size |
//! | `buckets` | a caller's own set of size classes |

mod alloc;
pub mod buckets;
mod resize;
pub mod size_class;

pub use alloc::*;
