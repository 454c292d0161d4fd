//! Pages from the system, and back.
//!
//! One reserved range of addresses is handed out in pages; what is larger than the range allows is
//! mapped by itself; our own records lie in pages of their own. Knows no cache.
//!
//! | file | concept |
//! |---|---|
//! | `arena` | the range, and what is known of each page by arithmetic |
//! | `descriptor` | what is known of a page with which something begins |
//! | `range` | how much of it is reserved, and when |
//! | `absent` | blocks of free pages that go back with their addresses |
//! | `block` | 2 MiB of pages: which are free, which were touched |
//! | `page_runs` | pages that go back together |
//! | `want` | what a request asks for |
//! | `zone` | the free runs of pages: finding, claiming and taking back |
//! | `request` | handing out runs, and adding a block for it |
//! | `stash` | runs that come back where nothing may be waited for |
//! | `several` | runs longer than a block |
//! | `decay` | giving back to the system what stays free |
//! | `mapped` | mappings of their own, and those that are kept for the next |
//! | `metadata` | our own records: windows of sheaves, scratch memory |
//! | `validate` | whether the zone's lists agree with its blocks |
//! | `fork` | the zone's locks around a fork |

mod absent;
pub mod arena;
pub mod block;
mod decay;
pub mod descriptor;
mod fork;
pub mod mapped;
pub mod metadata;
pub mod page_runs;
mod range;
mod request;
pub mod several;
mod stash;
mod validate;
mod want;
pub mod zone;

pub use arena::{Arena, PageIndex};
pub use descriptor::{Descriptor, PageKind};
pub use page_runs::Runs;
