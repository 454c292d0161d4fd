//! Ranges that the kernel refused to unmap.
//!
//! Unmapping the middle of a mapping makes two of one. The kernel refuses this if the process has
//! as many mappings as it may have. The allocator then gives the range's pages back and remembers
//! the range in its own first bytes. It unmaps the range later, when the process has fewer
//! mappings. What the program sealed (`mseal`) can never be unmapped, and is forgotten.
//!
//! | place of a range | changed by |
//! |---|---|
//! | stack `added` | any thread adds; the busy thread takes all |
//! | queue from `head` to `tail` | the busy thread |
//!
//! One thread at a time is busy: it moves the stack's ranges to the queue and tries the ranges at
//! the queue's head. A range that is refused again goes to the tail, so that each range is tried:
//! the ends of a mapping can always be unmapped.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use crate::policy::{REFUSED_AGAIN_MAX, REFUSED_TRIES};
use crate::sys;

/// The error of a refusal that no later try ends: the program sealed the range.
const FOREVER: isize = -(libc::EPERM as isize);

/// The first bytes of a remembered range.
struct Node {
    /// Address of the next range; 0 for none.
    next: usize,
    bytes: usize,
}

/// The remembered ranges.
pub(crate) struct Refused {
    added: AtomicUsize,
    /// Addresses of the queue's first and last range; changed by the thread that set `busy`.
    head: AtomicUsize,
    tail: AtomicUsize,
    busy: AtomicBool,
}

impl Refused {
    /// No ranges.
    pub(crate) const fn new() -> Self {
        Self {
            added: AtomicUsize::new(0),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
        }
    }

    /// Unmaps a range, now or later. `may_advise` says whether its pages may go back first.
    /// # Safety
    ///
    /// As for [`add`](Self::add).
    pub(crate) unsafe fn unmap(&self, start: usize, bytes: usize, may_advise: bool) {
        // SAFETY: passed on. After a refusal (too many mappings) the pages go back now, and the
        // range later.
        unsafe {
            let error = sys::try_munmap(start, bytes);
            if error == 0 {
                self.retry();
                return;
            }
            if may_advise {
                sys::madvise(start, bytes, libc::MADV_DONTNEED);
            }
            if error != FOREVER {
                self.add(start, bytes);
            }
        }
    }

    /// Remembers a range.
    ///
    /// # Safety
    ///
    /// The range is mapped, writable, aligned to pages, and used by no one from now on.
    unsafe fn add(&self, start: usize, bytes: usize) {
        let node = start as *mut Node;
        // Relaxed: the compare-and-swap confirms it.
        let mut head = self.added.load(Relaxed);
        loop {
            // SAFETY: by the caller's promise.
            unsafe { node.write(Node { next: head, bytes }) };
            // Release: publishes the node to the thread that takes it.
            match self
                .added
                .compare_exchange_weak(head, start, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Tries to unmap a few of the remembered ranges, if there are any.
    #[inline]
    pub(crate) fn retry(&self) {
        // Relaxed, both: a hint.
        if self.added.load(Relaxed) | self.head.load(Relaxed) != 0 {
            self.retry_some();
        }
    }

    #[cold]
    fn retry_some(&self) {
        // Acquire: pairs with the end of the previous turn.
        if self.busy.swap(true, Acquire) {
            return;
        }
        // Acquire: pairs with `add`, which wrote the nodes.
        let mut added = self.added.swap(0, Acquire);
        while added != 0 {
            // SAFETY: a remembered range, which only this thread has now.
            let next = unsafe { (*(added as *const Node)).next };
            self.append(added);
            added = next;
        }
        let mut refusals = 0;
        for _ in 0..REFUSED_TRIES {
            // Relaxed: only the busy thread changes it.
            let start = self.head.load(Relaxed);
            if start == 0 || refusals == REFUSED_AGAIN_MAX {
                break;
            }
            // SAFETY: as above.
            let Node { next, bytes } = unsafe { (start as *const Node).read() };
            // Relaxed: as above.
            self.head.store(next, Relaxed);
            // SAFETY: used by no one.
            let error = unsafe { sys::try_munmap(start, bytes) };
            if error != 0 && error != FOREVER {
                self.append(start);
                refusals += 1;
            }
        }
        // Release: pairs with the swap at the start of a turn.
        self.busy.store(false, Release);
    }

    /// Puts a range at the tail of the queue. Only the busy thread may call it.
    fn append(&self, start: usize) {
        // SAFETY: a remembered range, which only this thread has now.
        unsafe { (*(start as *mut Node)).next = 0 };
        // Relaxed, all: only the busy thread changes them.
        if self.head.load(Relaxed) == 0 {
            self.head.store(start, Relaxed);
        } else {
            // SAFETY: as above, the last of the queue.
            unsafe { (*(self.tail.load(Relaxed) as *mut Node)).next = start };
        }
        // Relaxed: as above.
        self.tail.store(start, Relaxed);
    }

    /// Ends a turn in the child of a fork, which does not have the busy thread.
    pub(crate) fn is_child_of_fork(&self) {
        // Relaxed: the child has one thread.
        if self.busy.swap(false, Relaxed) {
            // The queue may be half changed. Its ranges stay mapped in the child.
            self.head.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::ptr::null_mut;

    use super::*;

    const NAME: &core::ffi::CStr = c"uslub-refused";

    /// Maps a named file: the name tells its ranges from mappings that other threads make in their
    /// place.
    fn map_named(bytes: usize) -> usize {
        // SAFETY: a name, no flags.
        let file = unsafe { libc::memfd_create(NAME.as_ptr(), 0) };
        // SAFETY: the new file, and a mapping of it anywhere.
        unsafe {
            assert_eq!(libc::ftruncate(file, bytes as libc::off_t), 0);
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(null_mut(), bytes, writable, libc::MAP_SHARED, file, 0);
            assert_ne!(start, libc::MAP_FAILED);
            libc::close(file);
            start as usize
        }
    }

    /// Number of mappings of the named file.
    fn nr_named() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let name = NAME.to_str().unwrap();
        maps.lines().filter(|line| line.contains(name)).count()
    }

    #[test]
    fn what_is_sealed_is_forgotten() {
        const MSEAL: libc::c_long = 462;
        let refused = Refused::new();
        let start = sys::mmap(0, 1 << 16, libc::PROT_READ | libc::PROT_WRITE, 0).unwrap();
        // SAFETY: ours, and nobody uses it.
        unsafe {
            (start as *mut u64).write(7);
            if sys::call(MSEAL, [start, 1 << 16, 0, 0, 0, 0]) != 0 {
                return std::eprintln!("skipped: this kernel has no mseal");
            }
            refused.unmap(start, 1 << 16, true);
            // Relaxed: no other thread.
            assert_eq!(refused.head.load(Relaxed) | refused.added.load(Relaxed), 0);
            assert_eq!((start as *const u64).read(), 0, "the page went back");
            refused.add(start, 1 << 16);
        }
        refused.retry();
        // Relaxed: as above.
        assert_eq!(refused.head.load(Relaxed) | refused.added.load(Relaxed), 0);
    }

    #[test]
    fn what_was_refused_is_unmapped_later_all_of_it() {
        const PAGES: usize = 3 * REFUSED_TRIES;
        let bytes = 1 << 16;
        let start = map_named(PAGES * bytes);
        assert_eq!(nr_named(), 1);
        let refused = Refused::new();
        refused.retry();
        for n in 0..PAGES {
            // SAFETY: ours, and nobody uses it.
            unsafe { refused.add(start + n * bytes, bytes) };
        }
        for _ in 0..PAGES / REFUSED_TRIES {
            // Relaxed, here and below: no other thread.
            assert!(refused.head.load(Relaxed) != 0 || refused.added.load(Relaxed) != 0);
            refused.retry();
        }
        // Relaxed: as above.
        assert_eq!(refused.head.load(Relaxed), 0);
        assert_eq!(nr_named(), 0);
    }
}
