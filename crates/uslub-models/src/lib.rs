//! Models of uslub's protocols.
//!
//! | module | what is explored |
//! |---|---|
//! | `machine`, `model` (with `--cfg loom`) | the real allocator on a machine of a few CPUs, in every order of its threads |
//! | `assembly`, `explore` | the restartable sequences as they are written, with whatever may come between two instructions |
//!
//! What the models promise, and where they end, is told in `docs/testing-models.md`.

pub mod assembly;
pub mod explore;
#[cfg(loom)]
pub mod machine;
#[cfg(loom)]
pub mod memory;
#[cfg(loom)]
pub mod model;
