//! The system's page size: mostly 4 KiB, but 16 or 64 KiB on some kernels for aarch64.
//!
//! It is asked for once, during set-up. Then any thread may read it.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU8};

use uslub_core::platform::{PAGE_SHIFT, PAGE_SIZE, SYSTEM_PAGE_MAX};

use crate::{Linux, complain, sys};

/// log2 of the system's page size in bytes.
pub(crate) struct SystemPage(AtomicU8);

impl SystemPage {
    /// Our own page size, until the system is asked.
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(PAGE_SHIFT as u8))
    }

    /// Sets the system's page size. Returns false and changes nothing unless it is a power of two
    /// from [`PAGE_SIZE`] to [`SYSTEM_PAGE_MAX`] bytes.
    pub(crate) fn set(&self, bytes: usize) -> bool {
        let supported = bytes.is_power_of_two() && (PAGE_SIZE..=SYSTEM_PAGE_MAX).contains(&bytes);
        if supported {
            // Relaxed: no other thread uses the platform yet.
            self.0.store(bytes.trailing_zeros() as u8, Relaxed);
        }
        supported
    }

    /// Bytes of a system page.
    pub(crate) fn bytes(&self) -> usize {
        // Relaxed: stored before any other use.
        1 << self.0.load(Relaxed)
    }

    /// Whether the system's page size is ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.bytes() == PAGE_SIZE
    }
}

impl Linux {
    /// Asks the system for its page size. Returns false, and reports it once, if the size is not
    /// supported.
    pub(crate) fn ask_page_bytes(&self) -> bool {
        static SAID: AtomicBool = AtomicBool::new(false);
        let bytes = sys::page_bytes();
        let supported = self.system_page.set(bytes);
        // Relaxed: the flag orders nothing.
        if !supported && !SAID.swap(true, Relaxed) {
            complain(format_args!(
                "the system's pages have {bytes} bytes, and {PAGE_SIZE} to {SYSTEM_PAGE_MAX} are \
                 supported: there is no memory"
            ));
        }
        supported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_from_4_to_64_kib_are_supported_and_no_others() {
        let page = SystemPage::new();
        assert!(page.is_ours());
        for bytes in [4096, 8192, 16384, 32768, 65536] {
            assert!(page.set(bytes));
            assert_eq!((page.bytes(), page.is_ours()), (bytes, bytes == 4096));
        }
        for bytes in [0, 1, 2048, 12288, 131072, 262144] {
            assert!(!page.set(bytes));
            assert_eq!(page.bytes(), 65536);
        }
    }
}
