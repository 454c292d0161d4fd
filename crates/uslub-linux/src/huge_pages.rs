//! Huge pages, where the system has them at hand.
//!
//! The first touch of one clears 2 MiB, in a quarter of the time that 512 small pages take, where that memory is at hand. In a virtual
//! machine that gives its free memory back to the host (free page reporting, a balloon) it often is not: what has been free for a while, in
//! large pieces, is what huge pages are made of, and the host must find each page of it anew. There one takes five times as long as small
//! pages do, most of which were used shortly before.
//!
//! So the first touch of each is timed, and after a dear one the next few are not asked for.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::sys;

/// Bytes of a huge page, with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Nanoseconds that small pages of as many bytes take, about.
const DEAR_NS: u64 = 1_000_000;
/// Huge pages that are not asked for after a dear one, and twice as many after each that follows it: one may have been the host's doing.
const FIRST_PAUSE: u32 = 4;
/// At most: what the dear one cost too much is then a tenth of what their memory costs by small pages.
const LONGEST_PAUSE: u32 = 32;

/// Whether huge pages are worth asking for.
pub(crate) struct HugePages {
    /// How many not to ask for from now on.
    pause: AtomicU32,
    /// How many after the next dear one.
    next_pause: AtomicU32,
}

impl HugePages {
    /// They are.
    pub(crate) const fn new() -> Self {
        Self {
            pause: AtomicU32::new(0),
            next_pause: AtomicU32::new(FIRST_PAUSE),
        }
    }

    /// Whether to ask for the next one.
    pub(crate) fn next(&self) -> bool {
        // Relaxed: a hint, like all here; of two threads at the same time one may count for both.
        let pause = self.pause.load(Relaxed);
        self.pause.store(pause.saturating_sub(1), Relaxed);
        pause == 0
    }

    /// Touches a huge page for the first time, and sees how long it takes.
    ///
    /// # Safety
    ///
    /// The page is committed, all zero, and nobody else's yet.
    pub(crate) unsafe fn touch(&self, start: NonNull<u8>) {
        let now_ns = || sys::nanoseconds(libc::CLOCK_MONOTONIC);
        let before = now_ns();
        // SAFETY: by the caller's promise; a zero leaves it as it is.
        unsafe { start.write_volatile(0) };
        self.note(now_ns().saturating_sub(before));
    }

    fn note(&self, took_ns: u64) {
        let mut next_pause = FIRST_PAUSE;
        if took_ns > DEAR_NS {
            // Relaxed: as above.
            let pause = self.next_pause.load(Relaxed);
            // Relaxed: as above.
            self.pause.store(pause, Relaxed);
            next_pause = (2 * pause).min(LONGEST_PAUSE);
        }
        // Relaxed: as above.
        self.next_pause.store(next_pause, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_dear_one_some_are_left_out() {
        let pages = HugePages::new();
        assert!(pages.next() && pages.next());
        pages.note(DEAR_NS);
        assert!(pages.next(), "no dearer than small ones");
        let pause = || {
            pages.note(DEAR_NS + 1);
            let left_out = (0..100).take_while(|_| !pages.next()).count();
            assert!(pages.next(), "and then they are tried again");
            left_out
        };
        assert_eq!(
            [pause(), pause(), pause(), pause(), pause()],
            [4, 8, 16, 32, 32]
        );
        pages.note(DEAR_NS);
        assert_eq!(pause(), 4, "the last one was not dear");
    }

    #[test]
    fn a_touch_leaves_zeros() {
        let mut page = 0;
        // SAFETY: a byte of ours.
        unsafe { HugePages::new().touch(NonNull::from(&mut page)) };
        assert_eq!(page, 0);
    }
}
