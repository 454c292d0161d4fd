//! Models of uslub's protocols.
//!
//! | module | what is explored |
//! |---|---|
//! | `machine`, `model` (with `--cfg loom`) | the real allocator on a machine of a few CPUs, in every order of its threads |
//!
//! What the models promise, and where they end, is told in `docs/testing-models.md`.

#[cfg(loom)]
pub mod machine;
#[cfg(loom)]
pub mod memory;
#[cfg(loom)]
pub mod model;
