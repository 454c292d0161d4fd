//! Offers: writes that change nothing, before a handoff of memory to another CPU.
//!
//! On some processors a cache line comes sooner from the core that wrote it last than from a core
//! that read it last. There the allocator writes a word of each line before another CPU writes to
//! the line. [`Offers::probe`] asks the processor which offers pay off; before it, an offer does
//! nothing. The caller must own the memory that it offers.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::LINE;

/// Which offers pay off on this processor; none before [`probe`](Self::probe).
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

    /// Asks the processor which offers pay off.
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
                // SAFETY: the object is the caller's, and aligned.
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
                // SAFETY: borrowed mutably.
                unsafe { word.write_volatile(word.read_volatile()) };
            }
        }
    }
}
