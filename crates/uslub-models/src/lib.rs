//! Models of uslub's protocols.
//!
//! | module | what is explored |
//! |---|---|
//! | `machine`, `memory`, `model` | the real allocator on a machine of a few CPUs |
//! | `orders` (with `--cfg loom`) | every order of its threads, within bounds |
//! | `schedules` (with `--cfg shuttle`) | longer runs of more threads, in orders by chance |
//! | `assembly`, `explore` | the restartable sequences as they are written, with whatever may come between two instructions |
//!
//! What the models promise, and where they end, is told in `docs/testing-models.md`.

pub mod assembly;
pub mod explore;
#[cfg(any(loom, shuttle))]
pub mod machine;
#[cfg(any(loom, shuttle))]
pub mod memory;
#[cfg(any(loom, shuttle))]
pub mod model;
#[cfg(loom)]
pub mod orders;
#[cfg(shuttle)]
pub mod schedules;

#[cfg(loom)]
use orders as checker;
#[cfg(shuttle)]
use schedules as checker;
