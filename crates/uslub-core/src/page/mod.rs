//! The page layer: one reserved range of addresses, handed out in pages.
//!
//! | file | concept |
//! |---|---|
//! | `arena` | the range, and what is known of each page by arithmetic |
//! | `block` | 2 MiB of pages: which are free, which were touched |
//! | `zone` | handing out and taking back runs of pages; decay |

pub mod arena;
pub mod block;
pub mod zone;

pub use arena::{Arena, PageIndex, PageKind};
