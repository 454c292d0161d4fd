//! The page layer: one reserved range of addresses, handed out in pages.
//!
//! | file | concept |
//! |---|---|
//! | `arena` | the range, and what is known of each page by arithmetic |
//! | `block` | 2 MiB of pages: which are free, which were touched |
//! | `runs` | pages that go back together |
//! | `zone` | handing out and taking back runs of pages |
//! | `decay` | giving back to the system what stays free |
//! | `check` | whether its lists agree with its blocks |
//! | `fork` | its locks around a fork |

pub mod arena;
pub mod block;
mod check;
mod decay;
mod fork;
pub mod runs;
mod want;
pub mod zone;

pub use arena::{Arena, PageIndex, PageKind};
pub use runs::Runs;
