//! Architectures without registers of 32 bytes: callers use their plain loops.

use crate::Area;

/// Copies have one width here, so there is nothing to choose. Returns false.
pub fn move_wide(_wide: bool) -> bool {
    false
}

/// Returns `None`: this architecture has no such sequence.
///
/// # Safety
///
/// None is needed.
pub unsafe fn push_many_checked<const COUNT: usize>(
    _: &Area,
    _: *mut u8,
    _: usize,
    _: &[*mut u8],
    _: (usize, usize),
) -> Option<bool> {
    None
}

/// Does nothing and returns false.
pub fn write_at(_base: *mut u8, _offsets: &[u32], _out: &mut [*mut u8]) -> bool {
    false
}
