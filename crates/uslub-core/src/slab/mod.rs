//! Slabs: pages cut into objects, their freelists, and the lists of a node.
//!
//! | file | concept |
//! |---|---|
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
//! | `whole_slab`, `complete` | arrays that hold all objects of a slab |
//! | `address_range`, `within` | a cache's address range, and the check for objects in it |

pub mod address_range;
pub mod complete;
pub mod deferred;
pub mod detached;
pub mod empty_reserve;
pub mod free;
pub mod freelist;
pub mod fresh;
pub mod node;
pub mod order;
pub mod page_batch;
pub mod partial;
pub mod refill;
pub mod state;
pub(crate) mod take;
pub mod whole_slab;
pub(crate) mod within;
