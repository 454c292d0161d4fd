//! Objects of any size (`kmalloc`).
//!
//! | file | concept |
//! |---|---|
//! | `alloc` | allocating and freeing |
//! | `large` | where a large object comes from: the range, or a mapping of its own |
//! | `resize` | changing an object's size |
//! | `buckets` | size classes of a caller's own |

mod alloc;
pub mod buckets;
mod large;
mod resize;

pub use alloc::*;
