//! kmalloc: objects of any size, without a cache of the caller's own.
//!
//! | file | concept |
//! |---|---|
//! | `alloc` | allocates, frees, and tells sizes |
//! | `class` | the caches of the size classes |
//! | `large` | chooses the source of a large object: arena or mapping |
//! | `resize` | changes an object's size |
//! | `sized_free` | compares the size that a free is told with the object |
//! | `hardened` | the mode that sees every misuse which software can see |
//! | `guard` | some objects get a page of their own between closed pages |
//! | `switch` | debugs size classes of a running process |
//! | `buckets` | a caller's own set of size classes |

mod alloc;
pub mod buckets;
mod class;
mod guard;
mod hardened;
mod large;
mod resize;
mod sized_free;
mod switch;

pub use alloc::*;
pub use switch::SwitchError;
