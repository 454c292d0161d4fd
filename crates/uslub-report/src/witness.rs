//! The words by which a process asks a witness about itself.
//!
//! A process may be forbidden to ask the kernel about itself: the question may end it. Another
//! process, the witness, may ask. The two share this page, and each waits for the other by a futex.
//!
//! 1. The process puts its id into [`asker`](Page::asker), which was 0, and wakes.
//! 2. The witness looks at the process, puts an [answer](Verdict::answer_to) into
//!    [`answer`](Page::answer), and wakes.
//! 3. The process takes the answer, sets both words to 0, and wakes others that want to ask.
//!
//! A process may live longer than its witness: the kernel marks [`witness`](Page::witness) when the
//! witness ends, in whatever way. Then nobody asks any longer.
//!
//! A process that waits no longer takes its id back. One that ends in between leaves its id; after
//! a while the witness clears the words. The answer names its process, so nobody takes the answer
//! of another: the witness clears an answer to a process that asks no longer.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes to map.
pub const PAGE_BYTES: usize = 4096;

/// Bits of an answer that hold the id.
const ID_BITS: u32 = 30;

/// The shared words.
#[repr(C)]
pub struct Page {
    /// The process that asks; 0 for none.
    pub asker: AtomicU32,
    /// The answer; 0 for none yet.
    pub answer: AtomicU32,
    /// The inode of the process namespace in which ids are meant.
    pub namespace: AtomicU64,
    /// The thread that answers, by its id; with [`WITNESS_ENDED`] when it has ended.
    pub witness: AtomicU32,
}

/// The bit that the kernel sets in the word of a robust futex when its owner ends
/// (`FUTEX_OWNER_DIED`).
pub const WITNESS_ENDED: u32 = 1 << 30;

/// What the witness saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All threads have the same rights, and no filter but what the witness has itself.
    Same = 1,
    /// Threads differ in their rights, or cannot be looked at.
    Differs = 2,
    /// A thread has a filter of system calls that the witness has not.
    Filtered = 3,
}

impl Verdict {
    /// The answer to a process with this verdict.
    ///
    /// ```
    /// use uslub_report::witness::Verdict;
    /// let answer = Verdict::Filtered.answer_to(4_000_000);
    /// assert_eq!(Verdict::for_process(answer, 4_000_000), Some(Verdict::Filtered));
    /// assert_eq!(Verdict::for_process(answer, 1), None);
    /// ```
    pub fn answer_to(self, pid: u32) -> u32 {
        pid | (self as u32) << ID_BITS
    }

    /// The process that an answer is for.
    pub fn asker(answer: u32) -> u32 {
        answer & ((1 << ID_BITS) - 1)
    }

    /// The verdict of an answer to this process; `None` where it is none.
    pub fn for_process(answer: u32, pid: u32) -> Option<Self> {
        let verdicts = [Verdict::Same, Verdict::Differs, Verdict::Filtered];
        (verdicts.into_iter()).find(|verdict| answer == verdict.answer_to(pid))
    }
}
