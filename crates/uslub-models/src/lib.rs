//! Models of uslub's protocols, for the tests of this crate.
//!
//! | module | explores |
//! |---|---|
//! | `machine`, `memory`, `model` | the real allocator on a machine of a few CPUs |
//! | `orders` (with `--cfg loom`) | every order of the model's threads, within bounds |
//! | `schedules` (with `--cfg shuttle`) | random orders: longer runs of more threads |
//! | `assembly`, `explore` | the parsed restartable sequences, with every interruption |
//! | `fast_aarch64`, `fast_state`, `fast_explore` | the same of `malloc` and `free` for aarch64 |
//! | `search` | what both explorations share: threads and events |
//!
//! `docs/testing-models.md` states the guarantees of the models and their limits.

pub mod assembly;
pub mod explore;
pub mod fast_aarch64;
pub mod fast_explore;
mod fast_state;
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
mod search;

#[cfg(loom)]
use orders as checker;
#[cfg(shuttle)]
use schedules as checker;
