//! Decisions that an experiment may replace.
//!
//! The allocator computes a value, and passes it through [`choose`](crate::sync::atomic::choose).
//! In a default build `choose` returns the value, and the compiler sees nothing of it. In a build
//! with `--cfg timed` a simulator may return another value. Callers: `slab` and `sheaf`.

/// A decision, with the facts that it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// How many of the `rest` objects left over from a refill may go to a sheaf of `capacity`
    /// objects: `rest`, or 0 to give them back to their slab. The allocator's: `rest`. Asked only
    /// with `sheaf_spill=1`.
    Spill {
        /// Objects left over.
        rest: usize,
        /// Objects that a sheaf holds.
        capacity: usize,
    },
    /// How many objects a refill of an empty sheaf of `capacity` objects takes at least. The
    /// allocator's: `capacity`.
    Refill {
        /// Objects that the sheaf holds.
        capacity: usize,
    },
    /// Whether a slab that has just become empty is kept: 1, or 0 to give it back. The allocator's:
    /// by `min_partial`, if the cache has no reserve.
    KeepEmpty {
        /// Partial slabs of the node, empty ones included.
        partial: usize,
    },
}
