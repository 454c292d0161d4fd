//! How threads meet: locks that know their owner, and the atomics below them. Knows nothing of
//! memory.
//!
//! | file | concept |
//! |---|---|
//! | `lock` | a lock that a thread, a fork or a signal handler may hold |
//! | `atomic` | the atomics: the machine's, or a model checker's |
//! | `loom_atomics`, `shuttle_atomics` | the atomics of the two model checkers |
//! | `time` | ages of truncated times |

pub mod atomic;
mod lock;
#[cfg(loom)]
pub mod loom_atomics;
#[cfg(shuttle)]
pub mod shuttle_atomics;
pub(crate) mod time;

pub use lock::*;
