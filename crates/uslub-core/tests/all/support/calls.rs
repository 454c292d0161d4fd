//! How often the platform was called.

/// Calls that the platform got, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reservations.
    pub reserve: usize,
    /// Commitments.
    pub commit: usize,
    /// Purges.
    pub purge: usize,
    /// Mappings.
    pub map: usize,
    /// Mappings beside another one.
    pub map_at: usize,
    /// Unmappings.
    pub unmap: usize,
    /// Resized mappings.
    pub remap: usize,
}

impl Calls {
    /// Calls that asked for memory.
    pub fn asking(&self) -> usize {
        self.reserve + self.commit + self.map + self.remap
    }
}
