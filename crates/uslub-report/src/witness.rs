//! The shared words by which a process asks a witness about itself.
//!
//! A process may be forbidden to ask the kernel about itself: a filter may kill it for the
//! question. Another process, the witness, may ask. The two share this page, and each waits for the
//! other by a futex.
//!
//! | `asker` | `answer` | state | next step |
//! |---|---|---|---|
//! | 0 | 0 | idle | a process stores its id in [`asker`](Page::asker) and wakes the witness |
//! | an id | 0 | asked | the witness examines the process, stores an answer and wakes |
//! | an id | for this id | answered | the process sets both words to 0 and wakes other askers |
//! | an id | for another id | late answer | the witness sets the answer to 0 |
//!
//! A process that is about to end adds [`ENDING`] to the id with which it asks, if the witness
//! [looks at ends](Page::looks_at_ends). The process waits for the answer, so the witness can look
//! at its memory for the last time.
//!
//! A process may live longer than its witness. At the witness's end, however it ends, the kernel
//! marks [`witness`](Page::witness). Then no process asks any longer.
//!
//! A process that stops waiting sets its id back to 0. A process that ends before leaves its id,
//! and after a time the witness clears both words. An answer contains the id of its process
//! ([`Verdict::answer_to`]), so no process takes the answer to another.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of the mapping.
pub const PAGE_BYTES: usize = 4096;

/// Bits of an answer that hold the id; the verdict is above them.
const ID_BITS: u32 = 30;

/// The shared words.
#[repr(C)]
pub struct Page {
    /// Id of the process that asks; 0 for none.
    pub asker: AtomicU32,
    /// The answer; 0 for none.
    pub answer: AtomicU32,
    /// Inode of the PID namespace in which ids are valid.
    pub namespace: AtomicU64,
    /// Id of the thread that answers. The kernel adds [`WITNESS_ENDED`] at its end.
    pub witness: AtomicU32,
    /// 1 if the witness wants to know that a process is about to end; otherwise 0.
    pub looks_at_ends: AtomicU32,
}

/// The bit of [`Page::asker`], and of the answer to it, that says: the process is about to end. The
/// kernel's ids have at most 22 bits.
pub const ENDING: u32 = 1 << 29;

/// The bit that the kernel sets in the word of a robust futex when its owner ends
/// (`FUTEX_OWNER_DIED`).
pub const WITNESS_ENDED: u32 = 1 << 30;

/// The result of the witness's examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All threads have the same rights, and no filter beyond those of the witness itself.
    Same = 1,
    /// Threads differ in their rights, or cannot be examined.
    Differs = 2,
    /// A thread has a filter of system calls that the witness does not have.
    Filtered = 3,
}

impl Verdict {
    /// The answer with this verdict to a process: to its id, with [`ENDING`] or without.
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

    /// Id of the process that an answer is for.
    pub fn asker(answer: u32) -> u32 {
        answer & ((1 << ID_BITS) - 1)
    }

    /// The verdict in an answer to this process; `None` if the answer is for another process or is
    /// 0.
    pub fn for_process(answer: u32, pid: u32) -> Option<Self> {
        let verdicts = [Verdict::Same, Verdict::Differs, Verdict::Filtered];
        (verdicts.into_iter()).find(|verdict| answer == verdict.answer_to(pid))
    }
}
