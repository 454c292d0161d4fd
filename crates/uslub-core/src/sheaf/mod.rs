//! Sheaves: batches of objects near a CPU, the barns behind them, and their capacity.
//!
//! Allocations and frees use a CPU's main and spare sheaf. A miss goes to the node's barn, then to
//! the slabs.
//!
//! | file | concept |
//! |---|---|
//! | `cache` | the sizes of a cache's sheaves and barns |
//! | `barn`, `barn_access` | full and empty sheaves of a node; the barn that a CPU uses |
//! | `replace` | replaces an empty or full main sheaf |
//! | `bulk` | copies objects between arrays and sheaves |
//! | `capacity` | how many objects a CPU's sheaves hold |
//! | `spill` | puts the rest of a refill into a sheaf |
//! | `evict` | makes room in a CPU's full sheaves |

pub mod barn;
mod barn_access;
mod bulk;
pub(crate) mod cache;
pub mod capacity;
pub(crate) mod evict;
pub mod replace;
pub(crate) mod spill;

pub use cache::SheafCache;
