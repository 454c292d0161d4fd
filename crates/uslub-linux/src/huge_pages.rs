//! Huge pages (2 MiB), and whether the next one is worth asking for.
//!
//! The first touch of a huge page clears 2 MiB. If the memory is present, this takes a quarter of
//! the time of 512 small pages. In a virtual machine that gives free memory back to the host (free
//! page reporting, a balloon), the memory often is not present. The kernel makes huge pages of
//! large pieces that have been free for a while, and the host must supply each of their pages anew.
//! There a huge page takes five times as long as small pages, most of which were used shortly
//! before.
//!
//! So the first touch of each huge page is timed, against the threshold [`HUGE_PAGE_SLOW_NS`]:
//!
//! | first touch | effect |
//! |---|---|
//! | fast | the next huge page is asked for; the next pause is [`HUGE_PAGE_PAUSE_FIRST`] |
//! | slow | a pause: the next [`HUGE_PAGE_PAUSE_FIRST`] huge pages are not asked for |
//! | slow again after a pause | the next pause is [`HUGE_PAGE_PAUSE_FACTOR`] times as long |
//!
//! The kernel is advised once for the whole reservation, because a call costs as much as a page or
//! two. The blocks of a pause are excepted from the advice, all of them in one call.
//!
//! One thread at a time grows a reservation and calls this module. Several reservations share the
//! counters, which are hints.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};

use uslub_core::platform::PAGE_SIZE;

use crate::policy::{
    HUGE_PAGE_PAUSE_FACTOR, HUGE_PAGE_PAUSE_FIRST, HUGE_PAGE_PAUSE_MAX, HUGE_PAGE_SLOW_NS,
};
use crate::sys;

/// Bytes of a huge page, with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Whether huge pages are worth asking for.
pub(crate) struct HugePages {
    /// Huge pages not to ask for from now on.
    pause: AtomicU32,
    /// Length of the pause after the next slow first touch.
    next_pause: AtomicU32,
    /// Start address of the range that the kernel was asked to back by huge pages.
    advised_from: AtomicUsize,
    /// End address of this range.
    advised: AtomicUsize,
    /// End address of the last part of this range that was excepted.
    excepted: AtomicUsize,
}

impl HugePages {
    /// No advice given, no pause.
    pub(crate) const fn new() -> Self {
        Self {
            pause: AtomicU32::new(0),
            next_pause: AtomicU32::new(HUGE_PAGE_PAUSE_FIRST),
            advised_from: AtomicUsize::new(usize::MAX),
            advised: AtomicUsize::new(0),
            excepted: AtomicUsize::new(0),
        }
    }

    /// Backs a range by a huge page, unless a pause is on; returns whether it did. If the range was
    /// not advised yet, asks for huge pages for it and for the `ahead` bytes behind it.
    ///
    /// # Safety
    ///
    /// The range is committed, all zero, and used by no one yet. The `ahead` bytes behind it are
    /// reserved and not in use.
    pub(crate) unsafe fn request(&self, start: NonNull<u8>, bytes: usize, ahead: usize) -> bool {
        let address = start.as_ptr() as usize;
        // Relaxed: one thread at a time grows a reservation. With several reservations, one may get
        // huge pages that another does not want.
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

    /// Asks for huge pages for the whole of a reserved range that grows from its start. Unwanted
    /// ones are [excepted](Self::request_unadvised) later.
    ///
    /// # Safety
    ///
    /// The range is reserved and used by no one yet.
    pub(crate) unsafe fn prepare(&self, start: usize, bytes: usize) {
        // SAFETY: by the caller's promise; the advice changes no contents.
        if unsafe { sys::madvise(start, bytes, libc::MADV_HUGEPAGE) } {
            // Relaxed, both: the process has one thread so far.
            self.advised.store(start + bytes, Relaxed);
            self.advised_from.store(start, Relaxed);
        }
    }

    /// Whether the kernel was asked to back this address by a huge page.
    pub(crate) fn is_advised(&self, address: usize) -> bool {
        // Relaxed, both: a hint.
        (self.advised_from.load(Relaxed)..self.advised.load(Relaxed)).contains(&address)
    }

    /// As [`request`](Self::request), where advice is not allowed: what was asked for [in
    /// advance](Self::prepare) comes as huge pages, and a new mapping replaces an unwanted one.
    ///
    /// # Safety
    ///
    /// As for [`request`](Self::request).
    pub(crate) unsafe fn request_unadvised(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let address = start.as_ptr() as usize;
        let wanted = self.next();
        // Relaxed: as in `request`.
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

    /// Excepts a range from the advice to use huge pages; returns whether it was a part of the
    /// advised range.
    ///
    /// # Safety
    ///
    /// As for [`request`](Self::request).
    pub(crate) unsafe fn except(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let address = start.as_ptr() as usize;
        // Relaxed, both: as in `request`.
        let (advised, excepted) = (self.advised.load(Relaxed), self.excepted.load(Relaxed));
        if address >= advised || address < excepted {
            return false;
        }
        let length = bytes.min(advised - address);
        // SAFETY: by the caller's promise; the advice changes no contents.
        unsafe { sys::madvise(address, length, libc::MADV_NOHUGEPAGE) };
        // Relaxed: as above.
        self.excepted.store(address + length, Relaxed);
        true
    }

    /// As [`except`](Self::except), where advice is not allowed: a new mapping replaces the range.
    ///
    /// # Safety
    ///
    /// As for [`request`](Self::request).
    pub(crate) unsafe fn except_unadvised(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let address = start.as_ptr() as usize;
        // Relaxed: as in `request`.
        let is_part = self.is_advised(address) && address >= self.excepted.load(Relaxed);
        // A failure leaves the range as it is.
        // SAFETY: by the caller's promise.
        is_part && unsafe { crate::advice::renew(address, bytes) }
    }

    /// Whether to ask for the huge page that is needed now; counts a pause down.
    fn next(&self) -> bool {
        // Relaxed, both: hints, like all fields here. Two calls at the same time may count as one.
        let pause = self.pause.load(Relaxed);
        self.pause.store(pause.saturating_sub(1), Relaxed);
        pause == 0
    }

    /// Touches a huge page for the first time, and notes how long this takes.
    ///
    /// # Safety
    ///
    /// The page is committed, all zero, and used by no one yet.
    unsafe fn touch(&self, start: NonNull<u8>) {
        let before = now_ns();
        // SAFETY: by the caller's promise; the byte is zero before and after.
        unsafe { start.write_volatile(0) };
        self.note(now_ns().saturating_sub(before));
    }

    fn note(&self, took_ns: u64) {
        let mut next_pause = HUGE_PAGE_PAUSE_FIRST;
        if took_ns > HUGE_PAGE_SLOW_NS {
            // Relaxed: as in `next`.
            let pause = self.next_pause.load(Relaxed);
            // Relaxed: as in `next`.
            self.pause.store(pause, Relaxed);
            next_pause = (HUGE_PAGE_PAUSE_FACTOR * pause).min(HUGE_PAGE_PAUSE_MAX);
        }
        // Relaxed: as in `next`.
        self.next_pause.store(next_pause, Relaxed);
    }
}

/// Splits the huge pages of a range. Without the split the kernel would hold a huge page of which a
/// part was given back as a whole until memory is short. It would also charge all of it to the
/// memory cgroup, though the part is not resident any longer.
pub(crate) fn split_huge_pages(start: usize, bytes: usize) {
    for page in (start..start + bytes).step_by(HUGE_PAGE_BYTES) {
        // The advice splits a huge page, because it covers only a part of it. The contents stay.
        // SAFETY: the range is committed; a refusal changes nothing.
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
    fn after_a_slow_one_some_are_left_out() {
        let pages = HugePages::new();
        assert!(pages.next() && pages.next());
        pages.note(HUGE_PAGE_SLOW_NS);
        assert!(pages.next(), "as fast as base pages");
        let pause = || {
            pages.note(HUGE_PAGE_SLOW_NS + 1);
            let left_out = (0..100).take_while(|_| !pages.next()).count();
            assert!(pages.next(), "and then they are tried again");
            left_out
        };
        assert_eq!(
            [pause(), pause(), pause(), pause(), pause()],
            [1, 8, 32, 32, 32]
        );
        pages.note(HUGE_PAGE_SLOW_NS);
        assert_eq!(pause(), 1, "the last one was fast");
    }

    #[test]
    fn a_touch_leaves_zeros() {
        let mut page = 0;
        // SAFETY: a byte of ours.
        unsafe { HugePages::new().touch(NonNull::from(&mut page)) };
        assert_eq!(page, 0);
    }

    /// The advice in force at an address: true for huge pages, false for none, `None` for the
    /// default.
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
            unsafe { pages.request(block, HUGE_PAGE_BYTES, ahead) }
        };
        let advice = || (0..BLOCKS).map(|n| advice_at(start + n * HUGE_PAGE_BYTES));
        assert!(back(0));
        assert!(advice().all(|a| a == Some(true)));
        // Relaxed: no other thread. The first touch above may have been slow.
        pages.pause.store(0, Relaxed);
        pages.note(HUGE_PAGE_SLOW_NS);
        pages.note(HUGE_PAGE_SLOW_NS + 1);
        pages.note(HUGE_PAGE_SLOW_NS + 1);
        assert!((1..9).all(|n| !back(n)));
        assert!(
            advice()
                .enumerate()
                .all(|(n, a)| a == Some(!(1..9).contains(&n)))
        );
        assert!(back(9));
        // SAFETY: ours, and not used again.
        unsafe { sys::munmap(mapping, bytes) };
    }
}
