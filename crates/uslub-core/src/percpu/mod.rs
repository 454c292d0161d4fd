//! One word a CPU and cache: where each CPU keeps its sheaves, and what a sheaf is. No policy.
//!
//! | file | concept |
//! |---|---|
//! | `table` | regions of words, one a CPU, and how one is stopped |
//! | `sheaf` | a window of addresses, and the word that says how full it is |
//! | `try_lock` | words changed under a lock bit, where there are no sequences |
//! | `stats` | the counters of the slow paths |
//! | `nodes` | which memory node a CPU works on, and which objects are near |

pub mod nodes;
pub mod sheaf;
pub mod stats;
mod table;
pub mod try_lock;

pub use table::*;
