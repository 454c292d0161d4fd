//! Restartable sequences for per-CPU sheaves, a hint that only the processor can give ([`fetch`]),
//! and addresses written four at a time ([`write_at`]).
//!
//! The kernel keeps an area of memory for each thread that is registered: it writes there which CPU
//! the thread runs on, and reads there the address of a *descriptor*. If the thread is preempted,
//! moved or interrupted by a signal while it is between the descriptor's start and its commit, it
//! resumes at the descriptor's abort address. So a few instructions that end in one store act as if
//! indivisible on their CPU.
//!
//! We use the area that the C library registered (glibc ≥ 2.35), or one of our own where there is
//! none, and never write anything of it but the descriptor's address. Each sequence here
//!
//! 1. sees that the thread is registered, and publishes its descriptor,
//! 2. reads the CPU (or concurrency id) and finds the CPU's region through the table,
//! 3. looks at one word of the region and computes its new value,
//! 4. commits by storing that word, and nothing after it.
//!
//! An abort ends the operation with "not done": the caller takes its slow path, so a
//! debugger that steps through aborts once and not for ever. A remote stop swaps a
//! table entry and calls [`fence`]: any sequence that read the old entry has then committed or
//! aborted.
//!
//! | function | reads | commits |
//! |---|---|---|
//! | [`pop`] | top, object at the top | top - 8 |
//! | [`push`] | top; writes the object behind it (not yet part of the sheaf) | top + 8 |
//! | [`pop_many`] | top, capacity, the n newest objects | top - 8 n |
//! | [`push_many`] | top; writes n objects behind it | top + 8 n |
//! | [`push_many_within`] | the same, and whether all lie between two addresses | top + 8 n |
//! | [`exchange`] | the word | the new word |

#![no_std]

// The three things that differ between architectures.
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    path = "none.rs"
)]
mod sequences;
#[cfg_attr(target_arch = "x86_64", path = "thread_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "thread_aarch64.rs")]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    path = "thread_none.rs"
)]
mod thread;
#[cfg_attr(target_arch = "x86_64", path = "wide_x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "wide_none.rs")]
mod wide;

mod area;
pub mod initial;
mod membarrier;
mod own;

pub use sequences::{add, exchange, fetch, offers, pop, pop_many, push, push_many};

/// Where a line that this CPU has only read, and that another one will write to, is worth a write
/// that changes nothing: it is had from here sooner then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offers {
    /// Arrays of pointers, eight in a line.
    pub arrays: bool,
    /// Objects, of a line each.
    pub objects: bool,
}

pub use area::{Area, Index};
pub use membarrier::fence;
pub use thread::{call, pointer as thread_pointer};
pub use wide::{move_wide, push_many_within, write_at};

/// Bytes of a sheaf's window; a top is full when the word behind it begins another.
pub const SHEAF_BYTES: usize = 4096;
