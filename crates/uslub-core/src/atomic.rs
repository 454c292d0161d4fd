//! Atomics: the machine's, or those of a model.
//!
//! Built with `--cfg loom`, the types here belong to a model checker, which tries every order of
//! threads and every value that a load may see. Memory that no atomic type covers (links in
//! free objects, words of sheaves, what a lock guards) is announced by [`reads`] and
//! [`writes`], which are nothing at all otherwise; the model fails when two threads come
//! to it and no ordering lies between them.

#[cfg(loom)]
pub use crate::modelled::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, reads,
    spin_loop, writes,
};

#[cfg(not(loom))]
pub use core::hint::spin_loop;
#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};

/// Rounds of spinning before a thread that wants a lock sleeps.
pub const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// Says that the caller reads `bytes` bytes from `start` on.
#[cfg(not(loom))]
#[inline(always)]
pub fn reads<T>(_start: *const T, _bytes: usize) {}

/// Says that the caller writes `bytes` bytes from `start` on.
#[cfg(not(loom))]
#[inline(always)]
pub fn writes<T>(_start: *const T, _bytes: usize) {}
