//! Why a measurement cannot be made.

/// Why a measurement cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The allocator lacks something that the row is about.
    #[error("{0} is not available")]
    Unavailable(String),
    /// The allocator could not be set up, or had no memory.
    #[error("no memory: {0}")]
    NoMemory(&'static str),
    /// What came back is not what was given.
    #[error("{0}")]
    Wrong(String),
    /// The system refused something.
    #[error("{0}")]
    System(String),
}
