//! Objects of any size (`kmalloc`).
//!
//! | file | concept |
//! |---|---|
//! | `size_class` | the sizes |
//! | `alloc` | allocating and freeing |
//! | `resize` | changing an object's size |
//! | `buckets` | size classes of a caller's own |

mod alloc;
pub mod buckets;
mod resize;
pub mod size_class;

pub use alloc::*;
