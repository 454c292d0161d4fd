//! The page layer: one reserved range of addresses, handed out in pages.
//!
//! | file | concept |
//! |---|---|
//! | `arena` | the range, and what is known of each page by arithmetic |
//! | `range` | how much of it is reserved, and when |
//! | `absent` | blocks of free pages that go back with their addresses |
//! | `block` | 2 MiB of pages: which are free, which were touched |
//! | `runs` | pages that go back together |
//! | `zone` | handing out and taking back runs of pages |
//! | `stash` | runs that come back where nothing may be waited for |
//! | `several` | runs longer than a block |
//! | `decay` | giving back to the system what stays free |
//! | `check` | whether its lists agree with its blocks |
//! | `fork` | its locks around a fork |

mod absent;
pub mod arena;
pub mod block;
mod check;
mod decay;
mod fork;
mod range;
pub mod runs;
pub mod several;
mod stash;
mod want;
pub mod zone;

pub use arena::{Arena, PageIndex, PageKind};
pub use runs::Runs;
