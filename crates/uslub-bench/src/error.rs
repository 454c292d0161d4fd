//! The error of every measurement in this crate.

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The allocator lacks the feature that the row measures.
    #[error("{0} is not available")]
    Unavailable(String),
    /// The allocator could not be initialised, or is out of memory.
    #[error("no memory: {0}")]
    NoMemory(&'static str),
    /// The results contradict the workload, for example because an object was lost.
    #[error("{0}")]
    Wrong(String),
    /// The system refused a call.
    #[error("{0}")]
    System(String),
}
