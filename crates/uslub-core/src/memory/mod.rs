//! Pages from the system, and back.
//!
//! One reserved range of addresses is handed out in pages; what is larger than the range allows is
//! mapped by itself; our own records lie in pages of their own. Knows no cache.
//!
//! | file | concept |
//! |---|---|
//! | `arena` | the range, and what is known of each page by arithmetic |
//! | `range` | how much of it is reserved, and when |
//! | `absent` | blocks of free pages that go back with their addresses |
//! | `block` | 2 MiB of pages: which are free, which were touched |
//! | `page_runs` | pages that go back together |
//! | `want` | what a request asks for |
//! | `zone` | handing out and taking back runs of pages |
//! | `stash` | runs that come back where nothing may be waited for |
//! | `several` | runs longer than a block |
//! | `decay` | giving back to the system what stays free |
//! | `large` | where a large object comes from: the range, or a mapping of its own |
//! | `mapped` | mappings of their own, and those that are kept for the next |
//! | `metadata` | our own records: windows of sheaves, scratch memory |
//! | `room` | what is given up when the system refuses memory |
//! | `validate` | whether the zone's lists agree with its blocks |
//! | `fork` | the zone's locks around a fork |

mod absent;
pub mod arena;
pub mod block;
mod decay;
mod fork;
pub(crate) mod large;
pub mod mapped;
pub mod metadata;
pub mod page_runs;
mod range;
mod room;
pub mod several;
mod stash;
mod validate;
mod want;
pub mod zone;

pub use arena::{Arena, PageIndex, PageKind};
pub use page_runs::Runs;
