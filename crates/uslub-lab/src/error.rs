//! What stops an experiment.

/// A failure, with a reason for the user.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An option has a wrong value.
    #[error("{0}")]
    Wrong(String),
    /// A file cannot be used.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    /// The system refuses memory.
    #[error("the system refuses {0} MiB of address space")]
    NoMemory(usize),
    /// The allocator or the simulation is broken.
    #[error("the simulation failed: {0}")]
    Broken(String),
}
