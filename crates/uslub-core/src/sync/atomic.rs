//! Atomics: the machine's, or those of a model.
//!
//! Built with `--cfg loom`, the types here belong to a model checker, which tries every order of
//! threads and every value that a load may see. Built with `--cfg shuttle`, they are the machine's,
//! and a scheduler is called before each operation. Memory that no atomic type covers (links in
//! free objects, words of sheaves, what a lock guards) is announced by [`reads`] and
//! [`writes`], which are nothing at all otherwise; loom's model fails when two threads come
//! to it and no ordering lies between them.

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

/// Rounds of spinning before a thread that wants a lock sleeps.
pub const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 100 };

#[cfg(not(any(loom, shuttle)))]
mod machine {
    pub use core::hint::spin_loop;
    pub use core::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    };

    /// Says that the caller reads `bytes` bytes from `start` on.
    #[inline(always)]
    pub fn reads<T>(_start: *const T, _bytes: usize) {}

    /// Says that the caller writes `bytes` bytes from `start` on.
    #[inline(always)]
    pub fn writes<T>(_start: *const T, _bytes: usize) {}
}
