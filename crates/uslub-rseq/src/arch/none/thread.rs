//! Architectures without sequences of ours: no thread has an area, and the kernel is never asked
//! for one.

/// Never compared with anything.
pub(crate) const SIGNATURE: u32 = 0;

/// The value "refused", in the only field that is read.
#[inline]
pub(crate) fn load(_: isize) -> u32 {
    -2i32 as u32
}

/// The C library's answer, because no instruction for it is known here.
pub fn pointer() -> usize {
    // SAFETY: the call has no conditions.
    unsafe { libc::pthread_self() as usize }
}

/// Never used.
pub(crate) fn own_offset() -> isize {
    0
}

/// The C library's symbols are not used.
pub(crate) fn library_symbols() -> (*const isize, *const u32) {
    (core::ptr::null(), core::ptr::null())
}

/// The C library's symbol is not used.
pub(crate) fn stack_end() -> *const *const usize {
    core::ptr::null()
}

/// Makes no call: returns "not implemented".
pub unsafe fn call(_: libc::c_long, _: [usize; 6]) -> isize {
    -(libc::ENOSYS as isize)
}
