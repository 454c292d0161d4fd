//! The registers that a step up the stack needs.

/// Program counter, stack pointer and frame pointer at one place of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) pc: usize,
    pub(crate) sp: usize,
    pub(crate) fp: usize,
}
