//! Architectures on which nothing of ours is wider than two words.

use crate::Area;

/// Copies have one width here: nothing to choose, and false.
pub fn move_wide(_wide: bool) -> bool {
    false
}

/// Never does it: `None`.
///
/// # Safety
///
/// None is needed.
pub unsafe fn push_many_within<const COUNT: usize>(
    _: &Area,
    _: *mut u8,
    _: usize,
    _: &[*mut u8],
    _: (usize, usize),
) -> Option<bool> {
    None
}

/// Never does it: false.
pub fn write_at(_base: *mut u8, _offsets: &[u32], _out: &mut [*mut u8]) -> bool {
    false
}
