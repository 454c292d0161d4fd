//! Pages: takes memory from the system, hands it out in runs of pages, gives it back.
//!
//! Three sources: the arena (one reserved address range, handed out in pages), one mapping per
//! object that is too large for the arena, and separate mappings for the allocator's own records.
//! The layer knows no cache. Its callers are the slab layer and `kmalloc`.
//!
//! | file | concept |
//! |---|---|
//! | `arena` | the address range; finds a page's cache and descriptor by arithmetic |
//! | `descriptor` | what begins at a page: a slab, a large object, a run |
//! | `range` | how much of the range is reserved, and when |
//! | `absent` | free blocks that are unmapped, address space included |
//! | `block` | 2 MiB of pages: which are free, which are dirty |
//! | `page_runs` | a batch of runs to free together |
//! | `want` | a request for pages |
//! | `zone` | finds, claims and frees runs of pages |
//! | `growth` | adds blocks |
//! | `request` | allocates runs, and adds a block if needed |
//! | `several` | runs longer than a block |
//! | `decay` | gives free dirty pages back to the system |
//! | `mapped` | objects with a mapping of their own |
//! | `mapping_cache` | mappings of freed objects |
//! | `metadata` | the allocator's own records: sheaf windows, scratch memory |
//! | `validate` | checks the zone's lists against its blocks |

mod absent;
pub mod arena;
pub mod block;
mod decay;
pub mod descriptor;
mod growth;
pub mod mapped;
mod mapping_cache;
pub mod metadata;
pub mod page_runs;
mod range;
mod request;
pub mod several;
mod validate;
mod want;
pub mod zone;

pub use arena::{Arena, PageIndex};
pub use descriptor::{Descriptor, PageKind};
pub use page_runs::Runs;
