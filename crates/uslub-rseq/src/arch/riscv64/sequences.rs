//! riscv64 has no sequences of ours: per-CPU slots are behind locks. [`Area::adopt`] and
//! [`Area::register_own`] return `None` there, so nothing here is called except [`prefetch_write`]
//! and [`line_handoff`].

use crate::{Area, LineHandoff};

/// Does nothing.
pub fn prefetch_write(_: *const u8) {}

/// No handoff is known to pay off.
pub fn line_handoff() -> LineHandoff {
    LineHandoff::default()
}

/// Never called.
///
/// # Safety
///
/// As on other architectures.
pub unsafe fn pop<const COUNT: usize>(_: &Area, _: *mut u8, _: usize) -> *mut u8 {
    core::ptr::null_mut()
}

/// Never called.
///
/// # Safety
///
/// As on other architectures.
pub unsafe fn push<const COUNT: usize>(_: &Area, _: *mut u8, _: usize, _: *mut u8) -> bool {
    false
}

/// Never called.
///
/// # Safety
///
/// As on other architectures.
pub unsafe fn exchange(_: &Area, _: *mut u8, _: usize, _: usize, _: usize) -> bool {
    false
}

/// Never called.
///
/// # Safety
///
/// As on other architectures.
pub unsafe fn add(_: &Area, _: *mut u8, _: usize, _: usize, _: *mut u8) -> bool {
    false
}

/// Never called.
///
/// # Safety
///
/// As on other architectures.
pub unsafe fn pop_many<const COUNT: usize, const CAPACITY: usize>(
    _: &Area,
    _: *mut u8,
    _: usize,
    _: &mut [*mut u8],
) -> bool {
    false
}

/// Never called.
///
/// # Safety
///
/// As on other architectures.
pub unsafe fn push_many<const COUNT: usize>(_: &Area, _: *mut u8, _: usize, _: &[*mut u8]) -> bool {
    false
}
