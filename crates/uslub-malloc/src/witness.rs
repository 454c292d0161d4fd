//! Questions of this process to its witness, `uslub run`. The protocol is in
//! [`uslub_report::witness`].
//!
//! A question needs no system call but `futex`, so every sandbox allows it. Any thread may ask. One
//! process at a time asks, and the others wait.

use core::ptr::NonNull;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use uslub_core::platform::Platform;
use uslub_linux::{Text, sys};
use uslub_report::witness::{ENDING, PAGE_BYTES, Page, Verdict, WITNESS_ENDED};

use crate::ALLOCATOR;

/// Milliseconds between two loads of a word; a change wakes the waiter sooner.
const GLANCE_MS: u64 = 10;

/// Address of the shared words; 0 for no witness.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Finds the witness by a path; returns whether there is one. Call it before `main`.
pub(crate) fn find(path: &[u8]) -> bool {
    let mut text = Text::<256>::new();
    text.push(path);
    text.push(b"\0");
    if text.as_bytes().len() != path.len() + 1 {
        return false;
    }
    let Some(file) = sys::open(text.as_bytes(), libc::O_RDWR, 0) else {
        return false;
    };
    let page = sys::map_shared(file, PAGE_BYTES);
    sys::close(file);
    let Some(page) = page.and_then(|page| NonNull::new(page as *mut Page)) else {
        return false;
    };
    // SAFETY: a mapping of a page's length. If the file is shorter, it is not ours, and the first
    // access ends the process before `main`; the user who sets the variable may do this. Relaxed:
    // the witness wrote the word before it told anyone the path.
    let namespace = unsafe { page.as_ref() }.namespace.load(Relaxed);
    // In another PID namespace this process's id means another process.
    if namespace == 0 || sys::inode(b"/proc/self/ns/pid\0") != Some(namespace) {
        // SAFETY: mapped above, and nothing uses it.
        unsafe { sys::munmap(page.as_ptr() as usize, PAGE_BYTES) };
        return false;
    }
    // Release: publishes the mapping.
    PAGE.store(page.as_ptr() as usize, Release);
    true
}

/// In the child of a fork: returns whether there is a witness. The first process of a PID namespace
/// has none, because its id means another process for the witness. Such a process sees the parent
/// id 0: its parent is outside of the namespace.
pub(crate) fn after_fork_in_child() -> bool {
    if page().is_some() && !ALLOCATOR.platform.is_sandboxed() && sys::getppid() == 0 {
        // Relaxed: the child has one thread. The mapping stays.
        PAGE.store(0, Relaxed);
    }
    page().is_some()
}

fn page() -> Option<&'static Page> {
    // Acquire: pairs with `find`.
    let page = PAGE.load(Acquire) as *const Page;
    // SAFETY: null, or mapped for as long as the process lives.
    unsafe { page.as_ref() }
}

/// Whether there is a witness.
pub(crate) fn exists() -> bool {
    page().is_some()
}

/// Asks whether all threads have the same rights and no filter. `None` if there is no witness, if
/// it has ended, or if it does not answer within `at_most_ms` milliseconds.
pub(crate) fn ask(at_most_ms: u64) -> Option<Verdict> {
    ask_as(ALLOCATOR.platform.pid(), at_most_ms)
}

/// [`ask`] for a process that stores `asker`: its id, with [`ENDING`] or without.
fn ask_as(asker: u32, at_most_ms: u64) -> Option<Verdict> {
    let page = page()?;
    let until = ALLOCATOR.platform.now_ms() + at_most_ms;
    let is_late = || {
        // Relaxed: if not now, the next load sees it.
        let has_ended = page.witness.load(Relaxed) & WITNESS_ENDED != 0;
        has_ended || ALLOCATOR.platform.now_ms() >= until
    };
    if is_late() {
        return None;
    }
    // Release: the witness sees what this process did before.
    while let Err(other) = page.asker.compare_exchange(0, asker, Release, Relaxed) {
        if is_late() {
            return None;
        }
        sys::futex_wait_shared_for(page.asker.as_ptr(), other, GLANCE_MS);
    }
    sys::futex_wake_shared(page.asker.as_ptr());
    loop {
        // Acquire: sees what the witness saw.
        let answer = page.answer.load(Acquire);
        if let Some(verdict) = Verdict::for_process(answer, asker) {
            // Relaxed: the witness may have cleared the word already.
            _ = page.answer.compare_exchange(answer, 0, Relaxed, Relaxed);
            // Release: the next process that asks finds no answer.
            _ = page.asker.compare_exchange(asker, 0, Release, Relaxed);
            sys::futex_wake_shared(page.asker.as_ptr());
            return Some(verdict);
        }
        if is_late() {
            // Release: other processes may ask now.
            _ = page.asker.compare_exchange(asker, 0, Release, Relaxed);
            sys::futex_wake_shared(page.asker.as_ptr());
            return None;
        }
        sys::futex_wait_shared_for(page.answer.as_ptr(), answer, GLANCE_MS);
    }
}

/// Whether files may be opened, as far as is known within `at_most_ms` milliseconds. True without a
/// witness.
pub(crate) fn may_open_files(at_most_ms: u64) -> bool {
    page().is_none() || allows(ask(at_most_ms))
}

/// [`may_open_files`] at the end of the process, at which the witness may look.
pub(crate) fn may_open_files_at_end(at_most_ms: u64) -> bool {
    let Some(page) = page() else {
        return true;
    };
    let pid = ALLOCATOR.platform.pid();
    // Relaxed: written before this process knew the page.
    let ending = page.looks_at_ends.load(Relaxed) * ENDING;
    allows(ask_as(pid | ending, at_most_ms))
}

fn allows(verdict: Option<Verdict>) -> bool {
    verdict.is_some_and(|verdict| verdict != Verdict::Filtered)
}
