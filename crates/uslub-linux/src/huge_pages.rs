//! Huge pages, where the system has them at hand.
//!
//! The first touch of one clears 2 MiB, in a quarter of the time that 512 small pages take, where that memory is at hand. In a virtual
//! machine that gives its free memory back to the host (free page reporting, a balloon) it often is not: what has been free for a while, in
//! large pieces, is what huge pages are made of, and the host must find each page of it anew. There one takes five times as long as small
//! pages do, most of which were used shortly before.
//!
//! So the first touch of each is timed, and after a dear one the next few are not asked for.
//!
//! While a program has little memory, more is asked for as huge pages only if it came to need it quickly, so that clearing it is a good part
//! of what the program does: to others a page of 2 MiB that they do not fill, or a dear one, is more than they could gain.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::sys;

/// Bytes of a huge page, with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Nanoseconds that small pages of as many bytes take, about.
const DEAR_NS: u64 = 1_000_000;
/// Huge pages that are not asked for after a dear one, and twice as many after each that follows it: one may have been the host's doing.
const FIRST_PAUSE: u32 = 4;
/// At most: what the dear one cost too much is then a tenth of what their memory costs by small pages.
const LONGEST_PAUSE: u32 = 32;
/// Huge pages that might be asked for while the program has little memory: 24 MiB.
const EARLY: u32 = 12;
/// Nanoseconds since the last block within which another was needed quickly: three times what clearing it by small pages takes.
const QUICK_NS: u64 = 2_000_000;

/// Whether huge pages are worth asking for.
pub(crate) struct HugePages {
    /// How many not to ask for from now on.
    pause: AtomicU32,
    /// How many after the next dear one.
    next_pause: AtomicU32,
    /// How many might have been asked for so far.
    blocks: AtomicU32,
    /// When the last of them was needed, in nanoseconds.
    needed_ns: AtomicU64,
}

impl HugePages {
    /// They are.
    pub(crate) const fn new() -> Self {
        Self {
            pause: AtomicU32::new(0),
            next_pause: AtomicU32::new(FIRST_PAUSE),
            blocks: AtomicU32::new(0),
            needed_ns: AtomicU64::new(0),
        }
    }

    /// Whether to ask for the next one, which is needed now.
    pub(crate) fn next(&self) -> bool {
        self.next_at(now_ns())
    }

    fn next_at(&self, now_ns: u64) -> bool {
        // Relaxed: a hint, like all here; of two threads at the same time one may count for both.
        let before = self.needed_ns.swap(now_ns, Relaxed);
        // Relaxed: as above.
        let blocks = self.blocks.load(Relaxed);
        if blocks < EARLY {
            // Relaxed: as above.
            self.blocks.store(blocks + 1, Relaxed);
            if now_ns.saturating_sub(before) > QUICK_NS {
                return false;
            }
        }
        // Relaxed, both: as above.
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

fn now_ns() -> u64 {
    sys::nanoseconds(libc::CLOCK_MONOTONIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a program that has much memory already.
    fn late() -> HugePages {
        let pages = HugePages::new();
        (0..EARLY).for_each(|_| _ = pages.next());
        pages
    }

    #[test]
    fn early_ones_are_asked_for_where_they_are_needed_quickly() {
        let pages = HugePages::new();
        let mut now = 1 << 40;
        let mut next_after = |ns| {
            now += ns;
            pages.next_at(now)
        };
        assert!(!next_after(0), "nobody knows how quickly the first came");
        assert!(next_after(QUICK_NS) && !next_after(QUICK_NS + 1) && next_after(1));
        let asked = (4..EARLY).filter(|_| next_after(QUICK_NS + 1)).count();
        assert_eq!(asked, 0);
        assert!(next_after(QUICK_NS + 1), "no longer early");
    }

    #[test]
    fn after_a_dear_one_some_are_left_out() {
        let pages = late();
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
