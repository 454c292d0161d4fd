//! Synchronisation: locks that know their owner, the atomics below them, and times. Knows nothing
//! of memory.
//!
//! | file | concept |
//! |---|---|
//! | `lock` | a lock that a thread, a fork or a signal handler may hold |
//! | `defer_stack` | a lock-free stack of work for the lock's next holder |
//! | `atomic` | the atomics: the machine's, or a model checker's |
//! | `loom_atomics`, `shuttle_atomics` | the atomics of the two model checkers |
//! | `timed_atomics` | the atomics of a simulator of time |
//! | `stepped` | the macro that makes the types of `shuttle_atomics` and `timed_atomics` |
//! | `choice` | decisions that an experiment may replace |
//! | `time` | comparisons and ages of times |

pub mod atomic;
pub mod choice;
mod defer_stack;
mod lock;
#[cfg(loom)]
pub mod loom_atomics;
#[cfg(shuttle)]
pub mod shuttle_atomics;
#[cfg(any(shuttle, timed))]
mod stepped;
pub(crate) mod time;
#[cfg(timed)]
pub mod timed_atomics;

pub(crate) use defer_stack::DeferStack;
pub use lock::*;
