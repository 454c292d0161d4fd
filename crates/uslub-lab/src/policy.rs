//! A policy of a user's own: replaces decisions of the allocator.
//!
//! [`Choice`] lists the decisions, each with the facts that it rests on. The simulator asks the
//! policy each time, with the allocator's own answer.

pub use uslub_core_timed::sync::choice::Choice;

/// A policy. `examples/policy.rs` is one.
///
/// ```
/// use uslub_lab::{Choice, Policy};
///
/// /// Keeps every empty slab.
/// struct Hoarder;
///
/// impl Policy for Hoarder {
///     fn choose(&mut self, choice: Choice, ours: usize) -> usize {
///         match choice {
///             Choice::KeepEmpty { .. } => 1,
///             _ => ours,
///         }
///     }
/// }
/// ```
pub trait Policy {
    /// The answer to a decision; `ours` is the allocator's.
    fn choose(&mut self, choice: Choice, ours: usize) -> usize;
}
