//! Models of uslub's protocols, for the tests of this crate.
//!
//! | module | explores |
//! |---|---|
//! | `machine`, `memory`, `model` | the real allocator on a machine of a few CPUs |
//! | `orders` (with `--cfg loom`) | every order of the model's threads, within bounds |
//! | `schedules` (with `--cfg shuttle`) | random orders: longer runs of more threads |
//! | `assembly`, `explore` | the parsed restartable sequences, with every interruption |
//!
//! `docs/testing-models.md` states the guarantees of the models and their limits.

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
