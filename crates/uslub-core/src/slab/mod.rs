//! Slabs: pages cut into objects, their freelists, and the lists of a node.
//!
//! | file | concept |
//! |---|---|
//! | `base` | what all caches share |
//! | `nodes` | a CPU's memory node, and which objects are local to it |
//! | `cache` | the sizes and lists of a cache's slabs |
//! | `order` | the size of a slab and its number of objects |
//! | `state` | a slab's state word: freelist and number of slots in use |
//! | `freelist` | links inside free objects |
//! | `node`, `partial` | the lists of a node, their lock, and the fate of empty slabs |
//! | `empty_reserve` | how many empty slabs a node keeps for the next refill |
//! | `refill` | the slabs that a refill takes objects from |
//! | `take` | takes objects out of one slab |
//! | `fresh`, `page_batch` | new slabs, and pages taken for several of them at once |
//! | `free`, `detached` | frees objects to slabs, one state update per slab |
//! | `deferred` | objects freed in a context that may not wait |
//! | `debug` | slabs of debugged caches: checks, reports, tracks |
//! | `rcu`, `grace_slot` | slabs that wait for a grace period; the source of grace periods |
//! | `shape` | where the slots of a slab begin |
//! | `whole_slab`, `complete` | arrays that hold all objects of a slab |
//! | `address_range`, `within` | a cache's address range, and the check for objects in it |

pub mod address_range;
pub mod base;
pub(crate) mod cache;
pub mod complete;
pub mod debug;
pub mod deferred;
pub mod detached;
pub mod empty_reserve;
pub mod free;
pub mod freelist;
pub mod fresh;
pub(crate) mod grace_slot;
pub mod node;
pub mod nodes;
pub mod order;
pub mod page_batch;
pub mod partial;
pub(crate) mod rcu;
pub mod refill;
pub mod shape;
pub mod state;
pub(crate) mod take;
pub mod whole_slab;
pub(crate) mod within;

pub use base::Base;
pub use cache::SlabCache;
