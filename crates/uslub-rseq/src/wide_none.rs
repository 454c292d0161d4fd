//! Architectures on which nothing of ours is wider than two words.

/// Copies have one width here: nothing to choose, and false.
pub fn move_wide(_wide: bool) -> bool {
    false
}

/// Never does it: `None`.
pub fn bits_of(_addresses: &[*mut u8]) -> Option<(usize, usize)> {
    None
}
