//! Atomics: the machine's, or a model checker's.
//!
//! | build | atomics | a model tries |
//! |---|---|---|
//! | default | the machine's | – |
//! | `--cfg loom` | loom's | every order of threads, and every value that a load may see |
//! | `--cfg shuttle` | the machine's, with a scheduler call before each operation | random orders |
//! | `--cfg timed` | the machine's, with a simulator call before each operation | – |
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

#[cfg(timed)]
pub use crate::sync::timed_atomics::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, choose, enter,
    is_promised, left, reads, spin_loop, writes,
};

#[cfg(not(any(loom, shuttle, timed)))]
pub use machine::*;

#[cfg(not(timed))]
pub use untimed::*;

/// What only a simulator of time asks for.
#[cfg(not(timed))]
mod untimed {
    use super::AtomicU32;
    use crate::sync::choice::Choice;

    /// Waits in the queue of a lock, if a simulator keeps one.
    #[inline(always)]
    pub fn enter<T>(_lock: &AtomicU32) {}

    /// Whether a CPU waits for this lock and will get it next.
    #[inline(always)]
    pub fn is_promised(_lock: &AtomicU32) -> bool {
        false
    }

    /// Says that the caller has released a lock.
    #[inline(always)]
    pub fn left(_lock: &AtomicU32) {}

    /// A decision of the allocator.
    #[inline(always)]
    pub fn choose(_choice: Choice, ours: usize) -> usize {
        ours
    }
}

#[cfg(not(any(loom, shuttle, timed)))]
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
