//! The system's page size: 4 KiB mostly, 16 or 64 KiB on some kernels for aarch64.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU8};

use uslub_core::platform::{PAGE_SHIFT, PAGE_SIZE, SYSTEM_PAGE_MAX};

use crate::{Linux, complain, sys};

/// log2 of the bytes of a page of the system.
pub(crate) struct SystemPage(AtomicU8);

impl SystemPage {
    /// Our own page size, until the system was asked.
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(PAGE_SHIFT as u8))
    }

    /// Says how long the system's pages are. False, and nothing changes, where they are no power of
    /// two from [`PAGE_SIZE`] to [`SYSTEM_PAGE_MAX`].
    pub(crate) fn set(&self, bytes: usize) -> bool {
        let supported = bytes.is_power_of_two() && (PAGE_SIZE..=SYSTEM_PAGE_MAX).contains(&bytes);
        if supported {
            // Relaxed: nobody else uses the platform yet.
            self.0.store(bytes.trailing_zeros() as u8, Relaxed);
        }
        supported
    }

    /// Bytes of a page of the system.
    pub(crate) fn bytes(&self) -> usize {
        // Relaxed: set before anyone uses the platform.
        1 << self.0.load(Relaxed)
    }

    /// Whether the system's pages are as long as ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.bytes() == PAGE_SIZE
    }
}

impl Linux {
    /// Asks the system how long its pages are; false where such are not supported, which is said
    /// once.
    pub(crate) fn ask_page_bytes(&self) -> bool {
        static SAID: AtomicBool = AtomicBool::new(false);
        let bytes = sys::page_bytes();
        let supported = self.system_page.set(bytes);
        // Relaxed: orders nothing.
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
