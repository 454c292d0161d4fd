//! Reads memory of this process that may not be mapped: by `process_vm_readv`, which fails there.
//!
//! Where memory will stay mapped, a cheaper call asks only whether it can be read:
//! `rt_sigprocmask` reads a set before it refuses an action that does not exist. Fewer filters of
//! system calls forbid it. Any thread may call, in a signal handler too.

use crate::{sys, watch};

/// An action that does not exist: `rt_sigprocmask` refuses it and changes nothing.
const NO_CHANGE: usize = usize::MAX;

/// Whether eight bytes of this process can be read now.
pub(crate) fn is_readable(address: usize) -> bool {
    if watch::is_on_valgrind() {
        // It would check whether the bytes were written.
        return probe(address).is_some();
    }
    let set = [NO_CHANGE, address, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel checks the address, and changes nothing.
    let error = unsafe { sys::call(libc::SYS_rt_sigprocmask, set) };
    error == -(libc::EINVAL as isize)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mapped_can_be_read() {
        let word = 0u64;
        let mapped = sys::mmap(0, 2 << 16, libc::PROT_READ, 0).unwrap();
        assert!(is_readable(&raw const word as usize));
        assert!(is_readable(
            only_what_is_mapped_can_be_read as *const () as usize
        ));
        assert!(is_readable(mapped + (1 << 16) - 8));
        // SAFETY: ours, and not used.
        unsafe { libc::mprotect((mapped + (1 << 16)) as *mut _, 1 << 16, libc::PROT_NONE) };
        for closed in [
            0,
            8,
            mapped + (1 << 16),
            mapped + (1 << 16) - 4,
            usize::MAX - 7,
        ] {
            assert!(
                !is_readable(closed) && probe(closed).is_none(),
                "{closed:#x}"
            );
        }
    }

    #[test]
    fn signals_stay_as_they_are() {
        let mask = || {
            let mut mask = 0u64;
            let set = [0, 0, &raw mut mask as usize, 8, 0, 0];
            // SAFETY: the kernel writes eight bytes.
            unsafe { sys::call(libc::SYS_rt_sigprocmask, set) };
            mask
        };
        let (before, all) = (mask(), u64::MAX);
        assert!(is_readable(&raw const all as usize));
        assert_eq!(mask(), before);
    }
}
