//! Huge pages, where the system has them at hand.
//!
//! The first touch of one clears 2 MiB, in a quarter of the time that 512 small pages take, where
//! that memory is at hand. In a virtual machine that gives its free memory back to the host (free
//! page reporting, a balloon) it often is not: what has been free for a while, in large pieces, is
//! what huge pages are made of, and the host must find each page of it anew. There one takes five
//! times as long as small pages do, most of which were used shortly before.
//!
//! So the first touch of each is timed, and after a dear one the next few are not asked for. Asking
//! is done once for all that is reserved, as it costs as much as a page or two; those that are left
//! out are excepted, all of a pause at once.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};

use uslub_core::platform::PAGE_SIZE;

use crate::sys;

/// Bytes of a huge page, with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Nanoseconds that small pages of as many bytes take, about.
const DEAR_NS: u64 = 1_000_000;
/// Huge pages that are not asked for after a dear one: few, as among those at hand there is one in
/// a hundred or two, by itself.
const FIRST_PAUSE: u32 = 1;
/// How many times as many are not after one that is dear again.
const LONGER: u32 = 8;
/// At most: what the dear one cost too much is then a tenth of what their memory costs by small
/// pages.
const LONGEST_PAUSE: u32 = 32;
/// Whether huge pages are worth asking for.
pub(crate) struct HugePages {
    /// How many not to ask for from now on.
    pause: AtomicU32,
    /// How many after the next dear one.
    next_pause: AtomicU32,
    /// Where the range begins that the system was asked to give huge pages.
    advised_from: AtomicUsize,
    /// Where it ends.
    advised: AtomicUsize,
    /// Where the last part of it ends that is excepted.
    excepted: AtomicUsize,
}

impl HugePages {
    /// They are.
    pub(crate) const fn new() -> Self {
        Self {
            pause: AtomicU32::new(0),
            next_pause: AtomicU32::new(FIRST_PAUSE),
            advised_from: AtomicUsize::new(usize::MAX),
            advised: AtomicUsize::new(0),
            excepted: AtomicUsize::new(0),
        }
    }

    /// Gives a range its memory by huge pages, if they are worth asking for, and asks for them for
    /// `ahead` bytes behind it; returns whether it has.
    ///
    /// # Safety
    ///
    /// The range is committed, all zero and nobody else's yet; what lies ahead is reserved and not
    /// in use.
    pub(crate) unsafe fn back(&self, start: NonNull<u8>, bytes: usize, ahead: usize) -> bool {
        let address = start.as_ptr() as usize;
        // Relaxed: one thread at a time grows a reservation; of several, one may get huge pages
        // that another does not want.
        let advised = self.advised.load(Relaxed);
        if !self.next() {
            // Relaxed: as above.
            let pause = self.pause.load(Relaxed) as usize;
            // SAFETY: passed on.
            unsafe { self.except(start, bytes * (1 + pause)) };
            return false;
        }
        if address >= advised {
            let length = bytes + ahead;
            // SAFETY: as above.
            if !unsafe { sys::madvise(address, length, libc::MADV_HUGEPAGE) } {
                return false;
            }
            // Relaxed, both: as above.
            self.advised.store(address + length, Relaxed);
            self.advised_from.fetch_min(address, Relaxed);
        }
        // SAFETY: by the caller's promise.
        unsafe { self.touch(start) };
        true
    }

    /// Asks for huge pages for all of a range that is reserved, and grows from its start; those of
    /// them that are not wanted are [excepted](Self::back_unadvised) later.
    ///
    /// # Safety
    ///
    /// The range is reserved and nobody's yet.
    pub(crate) unsafe fn prepare(&self, start: usize, bytes: usize) {
        // SAFETY: by the caller's promise; it only says how memory is to come.
        if unsafe { sys::madvise(start, bytes, libc::MADV_HUGEPAGE) } {
            // Relaxed, both: one thread so far.
            self.advised.store(start + bytes, Relaxed);
            self.advised_from.store(start, Relaxed);
        }
    }

    /// Whether an address lies where the system was asked for huge pages.
    pub(crate) fn is_advised(&self, address: usize) -> bool {
        // Relaxed, both: a hint.
        (self.advised_from.load(Relaxed)..self.advised.load(Relaxed)).contains(&address)
    }

    /// As [`back`](Self::back), where no advice may be given: what was asked for [in
    /// advance](Self::prepare) comes so, and a new mapping takes the place of what is not wanted.
    ///
    /// # Safety
    ///
    /// As for [`back`](Self::back).
    pub(crate) unsafe fn back_unadvised(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let address = start.as_ptr() as usize;
        let wanted = self.next();
        // Relaxed: as in `back`.
        if !self.is_advised(address) || address < self.excepted.load(Relaxed) {
            return false;
        }
        if wanted {
            // SAFETY: by the caller's promise.
            unsafe { self.touch(start) };
        } else {
            // A failure leaves the range as it is: nothing was unmapped, or it is mapped again.
            // SAFETY: by the caller's promise.
            unsafe { crate::advice::renew(address, bytes) };
        }
        wanted
    }

    /// Excepts a range from what the system was asked to give huge pages; returns whether it was a
    /// part of that.
    ///
    /// # Safety
    ///
    /// As for [`back`](Self::back).
    pub(crate) unsafe fn except(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let address = start.as_ptr() as usize;
        // Relaxed, both: as in `back`.
        let (advised, excepted) = (self.advised.load(Relaxed), self.excepted.load(Relaxed));
        if address >= advised || address < excepted {
            return false;
        }
        let length = bytes.min(advised - address);
        // SAFETY: by the caller's promise; it only says how memory is to come.
        unsafe { sys::madvise(address, length, libc::MADV_NOHUGEPAGE) };
        // Relaxed: as above.
        self.excepted.store(address + length, Relaxed);
        true
    }

    /// As [`except`](Self::except), where no advice may be given: a new mapping takes the range's
    /// place.
    ///
    /// # Safety
    ///
    /// As for [`back`](Self::back).
    pub(crate) unsafe fn except_unadvised(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let address = start.as_ptr() as usize;
        // Relaxed: as in `back`.
        let is_part = self.is_advised(address) && address >= self.excepted.load(Relaxed);
        // A failure leaves the range as it is.
        // SAFETY: by the caller's promise.
        is_part && unsafe { crate::advice::renew(address, bytes) }
    }

    /// Whether to ask for the next one, which is needed now.
    fn next(&self) -> bool {
        // Relaxed, both: a hint, like all here; of two threads at the same time one may count for
        // both.
        let pause = self.pause.load(Relaxed);
        self.pause.store(pause.saturating_sub(1), Relaxed);
        pause == 0
    }

    /// Touches a huge page for the first time, and sees how long it takes.
    ///
    /// # Safety
    ///
    /// The page is committed, all zero, and nobody else's yet.
    unsafe fn touch(&self, start: NonNull<u8>) {
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
            next_pause = (LONGER * pause).min(LONGEST_PAUSE);
        }
        // Relaxed: as above.
        self.next_pause.store(next_pause, Relaxed);
    }
}

/// Splits the huge pages of a range. One of which a part is given back would else be held, and
/// charged to the memory cgroup, as a whole until memory is short, though it is resident no more.
pub(crate) fn split_huge_pages(start: usize, bytes: usize) {
    for page in (start..start + bytes).step_by(HUGE_PAGE_BYTES) {
        // That a part of a huge page is cold splits it; what is in it stays.
        // SAFETY: the range is committed; a refusal leaves all as it is.
        unsafe { sys::madvise(page, PAGE_SIZE, libc::MADV_COLD) };
    }
}

pub(crate) fn now_ns() -> u64 {
    crate::clock::nanoseconds(libc::CLOCK_MONOTONIC)
}

#[cfg(test)]
mod tests {
    extern crate std;

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
            [1, 8, 32, 32, 32]
        );
        pages.note(DEAR_NS);
        assert_eq!(pause(), 1, "the last one was not dear");
    }

    #[test]
    fn a_touch_leaves_zeros() {
        let mut page = 0;
        // SAFETY: a byte of ours.
        unsafe { HugePages::new().touch(NonNull::from(&mut page)) };
        assert_eq!(page, 0);
    }

    /// What the system is to do for the mapping of an address: gives it huge pages, does not, or as
    /// it thinks best.
    fn advice_at(address: usize) -> Option<bool> {
        let mut here = false;
        for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let hex = |digits| usize::from_str_radix(digits, 16).ok();
            if let Some((from, to)) = range.and_then(|(a, b)| Some((hex(a)?, hex(b)?))) {
                here = (from..to).contains(&address);
            } else if here && line.starts_with("VmFlags:") {
                let has = |flag| line.split(' ').any(|one| one == flag);
                return has("hg").then_some(true).or(has("nh").then_some(false));
            }
        }
        panic!("{address:#x} is not mapped")
    }

    #[test]
    fn all_that_is_reserved_is_asked_for_at_once_and_a_pause_left_out_at_once() {
        const BLOCKS: usize = 10;
        let bytes = (BLOCKS + 1) * HUGE_PAGE_BYTES;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = sys::mmap(0, bytes, writable, libc::MAP_NORESERVE).unwrap();
        let start = mapping.next_multiple_of(HUGE_PAGE_BYTES);
        let pages = HugePages::new();
        let back = |n: usize| {
            let block = NonNull::new((start + n * HUGE_PAGE_BYTES) as *mut u8).unwrap();
            let ahead = (BLOCKS - 1 - n) * HUGE_PAGE_BYTES;
            // SAFETY: mapped, zero and ours.
            unsafe { pages.back(block, HUGE_PAGE_BYTES, ahead) }
        };
        let advice = || (0..BLOCKS).map(|n| advice_at(start + n * HUGE_PAGE_BYTES));
        assert!(back(0));
        assert!(advice().all(|a| a == Some(true)));
        // Relaxed: no other thread; however long that took.
        pages.pause.store(0, Relaxed);
        pages.note(DEAR_NS);
        pages.note(DEAR_NS + 1);
        pages.note(DEAR_NS + 1);
        assert!((1..9).all(|n| !back(n)));
        assert!(
            advice()
                .enumerate()
                .all(|(n, a)| a == Some(!(1..9).contains(&n)))
        );
        assert!(back(9));
        // SAFETY: ours, and used no more.
        unsafe { sys::munmap(mapping, bytes) };
    }
}
