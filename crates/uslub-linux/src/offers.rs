//! Writes that change nothing, for the CPU that writes to the same line next.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::LINE;

/// What of it the processor gains by; nothing until it was asked.
pub(crate) struct Offers {
    arrays: AtomicBool,
    objects: AtomicBool,
}

impl Offers {
    pub(crate) const fn new() -> Self {
        Self {
            arrays: AtomicBool::new(false),
            objects: AtomicBool::new(false),
        }
    }

    /// Asks the processor.
    pub(crate) fn probe(&self) {
        let offers = uslub_rseq::offers();
        // Relaxed, both: hints.
        self.arrays.store(offers.arrays, Relaxed);
        self.objects.store(offers.objects, Relaxed);
    }

    /// Writes to the first word of each object.
    ///
    /// # Safety
    ///
    /// As for [`Platform::offer`](uslub_core::platform::Platform::offer).
    #[inline]
    pub(crate) unsafe fn objects(&self, objects: &[*mut u8]) {
        // Relaxed: a hint.
        if self.objects.load(Relaxed) {
            for object in objects {
                let word = object.cast::<u64>();
                // SAFETY: the caller's, and aligned.
                unsafe { word.write_volatile(word.read_volatile()) };
            }
        }
    }

    /// Writes to each line of an array.
    #[inline]
    pub(crate) fn array(&self, array: &mut [*mut u8]) {
        // Relaxed: a hint.
        if self.arrays.load(Relaxed) {
            for line in array.chunks_mut(LINE) {
                let word = &raw mut line[0];
                // SAFETY: borrowed.
                unsafe { word.write_volatile(word.read_volatile()) };
            }
        }
    }
}
