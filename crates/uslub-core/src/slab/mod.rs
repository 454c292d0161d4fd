//! Objects in pages: slabs, their freelists, and the lists of a node.
//!
//! | file | concept |
//! |---|---|
//! | `order` | how many objects a slab has, and how large it is |
//! | `state` | the word that says what a slab's objects are: freelist, in use, frozen |
//! | `freelist` | links inside of free objects |
//! | `node`, `partial` | the lists of a node: their locks, and what becomes of empty slabs |
//! | `empty_reserve` | how many empty slabs wait for the next refill |
//! | `refill` | which slabs objects are taken from |
//! | `take` | taking objects out of one slab |
//! | `fresh`, `page_batch` | new slabs, and pages taken for several of them |
//! | `free`, `detached` | giving objects back, one update a slab |
//! | `deferred` | objects set aside where a free may not wait |
//! | `whole_slab`, `complete` | arrays that hold all objects of a slab |
//! | `address_range`, `within` | the addresses of a cache's slabs, and whether objects lie there |

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
