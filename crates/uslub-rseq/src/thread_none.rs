//! Architectures without sequences of ours: no thread has an area, and the kernel is not asked for
//! one.

/// Never compared with.
pub(crate) const SIGNATURE: u32 = 0;

/// What stands for "refused" in the only field that is read.
#[inline]
pub(crate) fn load(_: isize) -> u32 {
    -2i32 as u32
}

/// What the C library says, as no instruction is known here.
pub fn pointer() -> usize {
    // SAFETY: reads a register.
    unsafe { libc::pthread_self() as usize }
}

/// Never used.
pub(crate) fn own_offset() -> isize {
    0
}

/// The C library's symbols are of no use.
pub(crate) fn library_symbols() -> (*const isize, *const u32) {
    (core::ptr::null(), core::ptr::null())
}

/// The C library's symbol is of no use.
pub(crate) fn stack_end() -> *const *const usize {
    core::ptr::null()
}

/// Makes no call; the kernel does not know it, as it were.
///
/// # Safety
///
/// Always safe here.
pub unsafe fn call(_: libc::c_long, _: [usize; 6]) -> isize {
    -(libc::ENOSYS as isize)
}
