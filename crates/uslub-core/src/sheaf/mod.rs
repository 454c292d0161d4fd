//! Batches of objects near a CPU: main and spare, barns, and how large they are.
//!
//! | file | concept |
//! |---|---|
//! | `barn`, `barn_access` | full and empty sheaves of a node, and which barn a CPU uses |
//! | `replace` | what follows when main is empty or full |
//! | `bulk` | objects copied out of sheaves and into them |
//! | `capacity` | how many objects a CPU's sheaves hold |
//! | `spill` | what a refill leaves over |
//! | `drain` | flushing the sheaves of other CPUs, and of barns |

pub mod barn;
mod barn_access;
mod bulk;
pub mod capacity;
pub mod drain;
pub mod replace;
pub(crate) mod spill;
