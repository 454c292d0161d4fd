//! Line handoff: writes that change nothing, before memory goes to another CPU.
//!
//! On some processors a cache line comes sooner from the core that wrote it last than from a core
//! that read it last. There the allocator writes a word of each line before another CPU writes to
//! the line. [`LineHandoff::probe`] asks the processor which handoffs pay off; before it, a handoff
//! does nothing. The caller must own the memory that it hands off.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::LINE;

/// Which handoffs pay off on this processor; none before [`probe`](Self::probe).
pub(crate) struct LineHandoff {
    arrays: AtomicBool,
    objects: AtomicBool,
}

impl LineHandoff {
    pub(crate) const fn new() -> Self {
        Self {
            arrays: AtomicBool::new(false),
            objects: AtomicBool::new(false),
        }
    }

    /// Asks the processor which handoffs pay off.
    pub(crate) fn probe(&self) {
        let gains = uslub_rseq::line_handoff();
        // Relaxed, both: hints.
        self.arrays.store(gains.arrays, Relaxed);
        self.objects.store(gains.objects, Relaxed);
    }

    /// Writes to the first word of each object.
    ///
    /// # Safety
    ///
    /// As for [`Platform::handoff_objects`](uslub_core::platform::Platform::handoff_objects).
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
    pub(crate) fn lines(&self, array: &mut [*mut u8]) {
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
