//! Reads memory of this process that may not be mapped: by `process_vm_readv`, which fails there.
//!
//! Any thread may call, in a signal handler too.

use crate::sys;

/// Reads eight bytes of this process; `None` where nothing readable is mapped.
pub(crate) fn probe(address: usize) -> Option<[u8; 8]> {
    let mut bytes = [0u8; 8];
    copy(address, &mut bytes).then_some(bytes)
}

/// Reads bytes of this process; false where some are not readable.
pub(crate) fn copy(address: usize, into: &mut [u8]) -> bool {
    let local = [into.as_mut_ptr() as usize, into.len()];
    let remote = [address, into.len()];
    // SAFETY: the kernel checks the remote range, and writes the local one.
    let n = unsafe {
        sys::call(
            libc::SYS_process_vm_readv,
            [
                sys::getpid() as usize,
                local.as_ptr() as usize,
                1,
                remote.as_ptr() as usize,
                1,
                0,
            ],
        )
    };
    n == into.len() as isize
}
