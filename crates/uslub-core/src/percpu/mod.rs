//! Per-CPU words: each CPU has a few words for each cache, which hold its sheaves. Mechanism only,
//! no policy.
//!
//! | file | concept |
//! |---|---|
//! | `region` | the words and counters of one CPU |
//! | `ahead` | regions mapped before their CPU needs them |
//! | `closed` | size classes that have no sheaves for a while |
//! | `table` | which region each CPU uses; stops CPUs |
//! | `sheaf` | a window of addresses, and the word that says how full it is |
//! | `sheaf_list` | lists of sheaves |
//! | `slot` | the states of a word |
//! | `try_lock` | word operations under a lock bit, without restartable sequences |
//! | `stats` | counters of the slow paths |

mod ahead;
pub(crate) mod closed;
mod region;
pub mod sheaf;
pub mod sheaf_list;
pub mod slot;
pub mod stats;
mod table;
pub mod try_lock;

pub use region::*;
pub use table::*;
