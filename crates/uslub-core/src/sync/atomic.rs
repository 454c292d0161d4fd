//! Atomics: the machine's, or a model checker's.
//!
//! | build | atomics | a model tries |
//! |---|---|---|
//! | default | the machine's | – |
//! | `--cfg loom` | loom's | every order of threads, and every value that a load may see |
//! | `--cfg shuttle` | the machine's, with a scheduler call before each operation | random orders |
//!
//! No atomic type covers links in free objects, words of sheaves, and values under locks. The code
//! announces accesses to them by [`reads`] and [`writes`], which do nothing in a default build.
//! loom's model fails if two threads access such memory without an ordering between them.

#[cfg(loom)]
pub use crate::sync::loom_atomics::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, is_active,
    reads, spin_loop, writes,
};

#[cfg(shuttle)]
pub use crate::sync::shuttle_atomics::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, is_active,
    reads, spin_loop, writes,
};

#[cfg(not(any(loom, shuttle)))]
pub use machine::*;

#[cfg(not(any(loom, shuttle)))]
mod machine {
    pub use core::hint::spin_loop;
    pub use core::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    };

    /// Announces that the caller reads `bytes` bytes from `start` on.
    #[inline(always)]
    pub fn reads<T>(_start: *const T, _bytes: usize) {}

    /// Announces that the caller writes `bytes` bytes from `start` on.
    #[inline(always)]
    pub fn writes<T>(_start: *const T, _bytes: usize) {}
}
