//! Restartable sequences for per-CPU sheaves. Also prefetches ([`prefetch_write`]), and addresses
//! written four at a time ([`write_at`]).
//!
//! The kernel keeps an *area* of memory for each registered thread. It writes there which CPU the
//! thread runs on, and reads there the address of a *descriptor*. If the thread is preempted, moved
//! or interrupted by a signal between the descriptor's start and its commit, it resumes at the
//! descriptor's abort address. So a few instructions that end in one store are indivisible on their
//! CPU.
//!
//! The area is the C library's (glibc ≥ 2.35), or one of our own if the C library registered none.
//! The only word that we write in it is the descriptor's address. Each sequence here
//!
//! 1. checks that the thread is registered, and publishes its descriptor,
//! 2. reads the CPU (or concurrency id) and finds the CPU's region through the table,
//! 3. reads one word of the region and computes its new value,
//! 4. commits by storing that word, as its last instruction.
//!
//! The counter of the operation is added to after the commit, outside of the sequence. Steps 1, 2
//! and 4 are written once for each architecture: the macro `sequence` of `protocol.rs`.
//!
//! An aborted operation returns "not done" and is not repeated: the caller takes its slow path. So
//! a debugger that single-steps aborts a sequence once, not for ever. A remote stop replaces a
//! table entry and calls [`fence`]: every sequence that read the old entry has then committed or
//! aborted.
//!
//! | function | reads | commits |
//! |---|---|---|
//! | [`pop`] | top, object at the top | top - 8 |
//! | [`push`] | top; writes the object behind it (not yet part of the sheaf) | top + 8 |
//! | [`pop_many`] | top, capacity, the n newest objects | top - 8 n |
//! | [`push_many`] | top; writes n objects behind it | top + 8 n |
//! | [`push_many_checked`] | the same, and whether all lie between two addresses | top + 8 n |
//! | [`exchange`] | the word | the new word |

#![no_std]

#[cfg(feature = "own-libc")]
extern crate libc_own as libc;

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
compile_error!(
    "uslub runs on Linux on x86-64, aarch64 and riscv64; see docs/porting.md for others"
);

// A folder an architecture, with the same modules in each. Where there are sequences,
// `protocol.rs` is a part of `sequences.rs`.
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64/sequences.rs"]
mod sequences;
#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64/sequences.rs"]
mod sequences;
#[cfg(target_arch = "riscv64")]
#[path = "arch/riscv64/sequences.rs"]
mod sequences;
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64/thread.rs"]
mod thread;
#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64/thread.rs"]
mod thread;
#[cfg(target_arch = "riscv64")]
#[path = "arch/riscv64/thread.rs"]
mod thread;
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64/wide.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "arch/portable/wide.rs")]
mod wide;

mod area;
pub mod initial;
mod membarrier;
mod own;

pub use sequences::{add, exchange, line_handoff, pop, pop_many, prefetch_write, push, push_many};

/// Where a handoff pays off: a write that changes nothing, to a line that this CPU has only read
/// and that another CPU will write next. The other CPU then gets the line sooner.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineHandoff {
    /// For arrays of pointers, eight in a cache line.
    pub arrays: bool,
    /// For objects, one cache line each.
    pub objects: bool,
}

pub use area::{Area, Index};
pub use membarrier::fence;
pub use thread::{call, pointer as thread_pointer};
pub use wide::{move_wide, push_many_checked, write_at};

/// Bytes of a sheaf's window. A sheaf is full if the word behind its top begins another window.
pub const SHEAF_BYTES: usize = 4096;
