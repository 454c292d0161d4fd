//! System calls that the allocator can do without, and when it makes them.
//!
//! A program may install a seccomp filter, and the filter may kill the process at the first call
//! that it does not list. The allocator cannot see every filter: a program can install one by a
//! bare `syscall` instruction, and the filter may forbid the query (`prctl`) too. So a call that
//! only saves time or memory is made only where an ordinary allocator makes it too:
//!
//! | state of the process | advice (`madvise`, `mbind`) | fence (`membarrier`) |
//! |---|---|---|
//! | before `main` | yes | yes |
//! | one thread | no | not needed: no other thread runs a sequence |
//! | several threads | yes: as the C library on a thread's stack | on request |
//! | a filter was seen | no | only with one thread: not needed |
//! | the C library does not say (glibc < 2.32, musl) | no | on request |
//!
//! Requests are `malloc_trim`, and a switch of `slab_debug`.
//!
//! The helper thread may make all of these calls: it ends before the process installs a filter that
//! the allocator sees.
//!
//! Where advice is not allowed, [`Advice::replace`] gives memory back: it maps new memory over the
//! old by `mmap`, which every allocator calls. The kernel cannot always merge the new mapping with
//! its neighbours: not in the child of a fork, and not where the neighbours were advised. There
//! only ranges of a minimum length are replaced, so that the number of mappings stays below
//! [`REPLACE_PIECES_MAX`].
//!
//! Any thread may ask. The flags are written while the process has one thread, or by the thread
//! that is about to install a filter or to lock memory.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

use uslub_core::platform::PAGE_SIZE;
use uslub_rseq::Area;

use crate::policy::{REPLACE_LEAST_MAX_BYTES, REPLACE_PIECES_MAX, REPLACE_TRIES};
use crate::{Linux, sys};

/// What is known about the process.
pub(crate) struct Advice {
    /// Whether `main` has begun.
    begun: AtomicBool,
    /// Whether the process has forbidden itself some system calls.
    sandboxed: AtomicBool,
    /// Whether the process is the child of a fork.
    forked: AtomicBool,
    /// Whether the program has locked its memory (`mlockall`).
    locked: AtomicBool,
    /// Whether a limit of the process counts memory that is not in use.
    limited: AtomicBool,
    /// Not 0 there: only one thread runs. Null where the C library does not say.
    single_threaded: AtomicPtr<u8>,
    /// The helper thread, as [`thread`] names it; 0 for none.
    helper: AtomicUsize,
    /// Calls in progress by which the program requests work.
    requests: AtomicUsize,
    /// Bytes ever committed; never reduced.
    committed: AtomicUsize,
}

impl Advice {
    pub(crate) const fn new() -> Self {
        Self {
            begun: AtomicBool::new(false),
            sandboxed: AtomicBool::new(false),
            forked: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            limited: AtomicBool::new(false),
            single_threaded: AtomicPtr::new(null_mut()),
            helper: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
        }
    }

    /// Records that `main` is about to run.
    pub(crate) fn begin(&self) {
        // Relaxed: the process has one thread so far.
        self.begun.store(true, Relaxed);
    }

    /// Records whether the process forbids itself system calls; returns the previous value.
    pub(crate) fn set_sandboxed(&self, sandboxed: bool) -> bool {
        // Relaxed: the thread that installs the filter stores this before it installs it.
        self.sandboxed.swap(sandboxed, Relaxed)
    }

    pub(crate) fn is_sandboxed(&self) -> bool {
        // Relaxed: as in `set_sandboxed`.
        self.sandboxed.load(Relaxed)
    }

    /// Records that this process is the child of a fork.
    pub(crate) fn is_child_of_fork(&self) {
        // Relaxed, all: the child has one thread.
        self.forked.store(true, Relaxed);
        self.locked.store(false, Relaxed);
        self.helper.store(0, Relaxed);
    }

    /// Records whether the program's memory is locked; returns the previous value.
    pub(crate) fn set_locked(&self, locked: bool) -> bool {
        // Relaxed: the thread that locks memory stores this before it locks.
        self.locked.swap(locked, Relaxed)
    }

    fn is_locked(&self) -> bool {
        // Relaxed: as in `set_locked`.
        self.locked.load(Relaxed)
    }

    /// Records whether a limit of the process counts reserved or committed memory.
    pub(crate) fn set_limited(&self, limited: bool) {
        // Relaxed: a thread that misses it maps more than it needs.
        self.limited.store(limited, Relaxed);
    }

    /// Whether the process pays for memory that is not in use: a limit counts it, or it is locked.
    /// Makes no system call: a filter may forbid it.
    pub(crate) fn is_limited(&self) -> bool {
        // Relaxed: as in `set_limited`.
        self.limited.load(Relaxed) || self.is_locked()
    }

    /// Records that the calling thread is the helper, or no longer is.
    pub(crate) fn set_helper(&self, is_helper: bool) {
        // Relaxed: only the helper itself compares equal.
        self.helper
            .store(if is_helper { thread() } else { 0 }, Relaxed);
    }

    fn is_helper(&self) -> bool {
        // Relaxed: as in `set_helper`.
        let helper = self.helper.load(Relaxed);
        helper != 0 && helper == thread()
    }

    /// Adds `bytes` to the bytes committed.
    pub(crate) fn note_committed(&self, bytes: usize) {
        // Relaxed: an estimate.
        self.committed.fetch_add(bytes, Relaxed);
    }

    /// Whether this thread may give the kernel advice.
    pub(crate) fn may_advise(&self) -> bool {
        // Relaxed: stored while the process had one thread.
        let begun = self.begun.load(Relaxed);
        let has_threads = self.is_single_threaded() == Some(false);
        !self.is_sandboxed() && (!begun || has_threads || self.is_helper())
    }

    /// Whether this thread may fence the others. No ordinary allocator does, so after `main` has
    /// begun only the helper and a request of the program may.
    pub(crate) fn may_fence(&self) -> bool {
        // Relaxed, both: `begun` was stored while the process had one thread; `requests` is a hint.
        let unasked = self.begun.load(Relaxed) && self.requests.load(Relaxed) == 0;
        !self.is_sandboxed() && (!unasked || self.is_helper())
    }

    /// Runs work that the program requests; it may fence.
    pub(crate) fn on_request<T>(&self, work: impl FnOnce() -> T) -> T {
        // Relaxed, both: a hint.
        self.requests.fetch_add(1, Relaxed);
        let result = work();
        self.requests.fetch_sub(1, Relaxed);
        result
    }

    /// Whether no other thread can be inside a sequence: the program has one thread, the caller.
    pub(crate) fn is_alone(&self) -> bool {
        // Relaxed: as in `may_advise`.
        let begun = self.begun.load(Relaxed);
        begun && self.is_single_threaded() == Some(true) && !self.is_helper()
    }

    /// Records where the C library says whether only one thread runs: not 0 if so.
    pub(crate) fn set_single_threaded(&self, flag: *mut u8) {
        // Relaxed: the process has one thread so far.
        self.single_threaded.store(flag, Relaxed);
    }

    /// Whether the C library says that only one thread runs; `None` where it does not say.
    fn is_single_threaded(&self) -> Option<bool> {
        // Relaxed: as in `set_single_threaded`.
        let flag = NonNull::new(self.single_threaded.load(Relaxed))?;
        // SAFETY: a byte that the C library writes when it starts a thread.
        Some(unsafe { flag.read_volatile() } != 0)
    }

    /// Minimum length, in bytes, of a range to replace where the new mapping does not merge with
    /// its neighbours.
    fn least(&self) -> usize {
        // Relaxed: an estimate.
        let share = self.committed.load(Relaxed) / REPLACE_PIECES_MAX;
        share
            .next_multiple_of(PAGE_SIZE)
            .clamp(PAGE_SIZE, REPLACE_LEAST_MAX_BYTES)
    }

    /// Gives a range's memory back by a new mapping over it; returns whether it did. `advised` says
    /// that the kernel was given advice on the neighbours.
    ///
    /// # Safety
    ///
    /// As for [`Platform::purge`](uslub_core::platform::Platform::purge).
    pub(crate) unsafe fn replace(&self, start: usize, bytes: usize, advised: bool) -> bool {
        // Relaxed, both: `forked` was stored by a thread that was alone, `locked` before the memory
        // was locked.
        let merges = !advised && !self.forked.load(Relaxed);
        // The new mapping would not be locked.
        if self.locked.load(Relaxed) || !merges && bytes < self.least() {
            return false;
        }
        // SAFETY: passed on.
        unsafe { renew(start, bytes) }
    }
}

impl Linux {
    /// The id that the kernel gave this process when it began.
    pub fn pid(&self) -> u32 {
        // Relaxed: stored while the process had one thread.
        self.pid.load(Relaxed)
    }

    /// Records that the process forbids itself system calls: from now on the allocator makes only
    /// calls that an ordinary allocator makes.
    pub fn enter_sandbox(&self) {
        self.advice.set_sandboxed(true);
    }

    /// Records that the process could not install the filter that
    /// [`enter_sandbox`](Self::enter_sandbox) announced.
    pub fn leave_sandbox(&self) {
        self.advice.set_sandboxed(false);
    }

    /// Whether [`enter_sandbox`](Self::enter_sandbox) was called.
    pub fn is_sandboxed(&self) -> bool {
        self.advice.is_sandboxed()
    }

    /// Records where the C library says whether only one thread runs: a byte that is not 0 if so.
    /// Without it the allocator assumes that there may be others, and that a filter may forbid
    /// advice. Call it before `main`.
    ///
    /// # Safety
    ///
    /// The byte is never unmapped.
    pub unsafe fn single_threaded_is_at(&self, flag: NonNull<u8>) {
        self.advice.set_single_threaded(flag.as_ptr());
    }

    /// Records that `main` begins: from now on the program may install a filter unseen.
    pub fn program_begins(&self) {
        self.advice.begin();
    }

    /// Records that the calling thread is the helper, of which the program does not know, or no
    /// longer is.
    pub fn is_helper(&self, is_helper: bool) {
        self.advice.set_helper(is_helper);
    }

    /// Runs work that the program requests and that may fence other CPUs.
    pub fn on_request<T>(&self, work: impl FnOnce() -> T) -> T {
        self.advice.on_request(work)
    }

    /// Records whether the program has locked its memory: then no new mapping may replace a locked
    /// one. Returns the previous value.
    pub fn memory_is_locked(&self, locked: bool) -> bool {
        self.advice.set_locked(locked)
    }

    /// Records that the program limits its memory: from now on little is mapped ahead of use. A
    /// limit that the program sets past the C library is not seen.
    pub fn memory_is_limited(&self) {
        self.advice.set_limited(true);
    }

    /// Asks the kernel for huge pages for a reserved range that will grow from its start. Call it
    /// before `main`, because it is advice.
    pub fn will_grow(&self, start: NonNull<u8>, bytes: usize) {
        if !self.system_page.is_ours() {
            return;
        }
        // SAFETY: reserved, and nobody uses it.
        unsafe { self.huge_pages.prepare(start.as_ptr() as usize, bytes) };
    }

    /// Registers this thread's area, unless a filter could kill the process for the call. Returns
    /// whether the area is registered.
    pub(crate) fn register(&self, area: Area) -> bool {
        area.is_registered_here() || !self.is_sandboxed() && area.register_here()
    }
}

/// Maps new memory over a range; returns whether it did. After a failure the range is unchanged.
///
/// # Safety
///
/// As for [`Advice::replace`].
pub(crate) unsafe fn renew(start: usize, bytes: usize) -> bool {
    // SAFETY: passed on.
    unsafe { sys::replace(start, bytes, READ_WRITE) || fill(start, bytes) }
}

/// A page that is known to be mapped and writable: it shows whether a filter refuses `mprotect`.
#[repr(align(4096))]
struct Known(#[allow(dead_code)] core::cell::UnsafeCell<[u8; PAGE_SIZE]>);

// SAFETY: nobody reads or writes it.
unsafe impl Sync for Known {}

static KNOWN: Known = Known(core::cell::UnsafeCell::new([0; PAGE_SIZE]));

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Fills the hole that a failed mapping over a range may leave: some kernels (before 6.12) unmap
/// the old mapping first, and may fail then. Returns whether the range is new memory now. Otherwise
/// the range is unchanged.
///
/// # Safety
///
/// As for [`Advice::replace`].
#[cold]
unsafe fn fill(start: usize, bytes: usize) -> bool {
    // SAFETY: this is the range's own protection already.
    let error = unsafe { sys::try_mprotect(start, bytes, READ_WRITE) };
    // Another error than of a part that is not mapped: the program sealed the range (`mseal`).
    if error != -(libc::ENOMEM as isize) {
        return false;
    }
    // If this fails too, a filter refuses both calls, and nothing was unmapped. SAFETY: the page is
    // writable, and stays so.
    if !unsafe { sys::mprotect((&raw const KNOWN) as usize, PAGE_SIZE, READ_WRITE) } {
        return false;
    }
    for _ in 0..REPLACE_TRIES {
        // `PROT_NONE` needs addresses but no memory, so this fails more rarely than the mapping
        // before. SAFETY: nothing of value is in the range.
        let filled = unsafe {
            sys::replace(start, bytes, libc::PROT_NONE) && sys::mprotect(start, bytes, READ_WRITE)
        };
        if filled {
            return true;
        }
        sys::futex_wait_for(&0, 0, 1);
    }
    lost(start, bytes)
}

/// Ends the process: other code would otherwise be given these addresses.
#[cold]
#[inline(never)]
fn lost(start: usize, bytes: usize) -> ! {
    crate::complain(format_args!(
        "the kernel took {bytes} bytes at {start:#x} and gives none back"
    ));
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// The running thread's pointer.
fn thread() -> usize {
    uslub_rseq::thread_pointer()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn mapping(bytes: usize) -> usize {
        sys::mmap(0, bytes, READ_WRITE, libc::MAP_NORESERVE).unwrap()
    }

    #[test]
    fn what_is_replaced_reads_zero_and_what_lies_around_it_stays() {
        let start = mapping(3 * PAGE_SIZE);
        let words = [0, 1, 2].map(|page| (start + page * PAGE_SIZE) as *mut u64);
        // SAFETY: mapped, and ours.
        unsafe {
            words.iter().for_each(|word| word.write(7));
            assert!(Advice::new().replace(start + PAGE_SIZE, PAGE_SIZE, false));
            assert_eq!(words.map(|word| word.read()), [7, 0, 7]);
            words[1].write(8);
            sys::munmap(start, 3 * PAGE_SIZE);
        }
    }

    #[test]
    fn small_ranges_stay_where_mappings_do_not_merge() {
        let advice = Advice::new();
        advice.note_committed(2 * REPLACE_PIECES_MAX * PAGE_SIZE);
        let start = mapping(3 * PAGE_SIZE);
        // SAFETY: mapped, and ours.
        unsafe {
            assert!(!advice.replace(start, PAGE_SIZE, true));
            assert!(advice.replace(start, 2 * PAGE_SIZE, true));
            assert!(advice.replace(start, PAGE_SIZE, false));
            advice.is_child_of_fork();
            assert!(!advice.replace(start, PAGE_SIZE, false));
            advice.note_committed(usize::MAX / 2);
            assert_eq!(advice.least(), REPLACE_LEAST_MAX_BYTES);
            sys::munmap(start, 3 * PAGE_SIZE);
        }
    }

    #[test]
    fn locked_memory_is_not_replaced() {
        let advice = Advice::new();
        let start = mapping(PAGE_SIZE);
        advice.set_locked(true);
        // SAFETY: mapped, and ours.
        unsafe {
            assert!(!advice.replace(start, PAGE_SIZE, false));
            sys::munmap(start, PAGE_SIZE);
        }
    }

    #[test]
    fn a_hole_is_filled() {
        // SAFETY: the child has one thread, so nobody takes the hole's addresses; it only makes
        // system calls, in memory of its own.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let start = mapping(3 * PAGE_SIZE);
                let whole = !fill(start, 3 * PAGE_SIZE);
                sys::munmap(start + PAGE_SIZE, PAGE_SIZE);
                let filled = fill(start, 3 * PAGE_SIZE);
                ((start + PAGE_SIZE) as *mut u64).write(1);
                libc::_exit(if whole && filled { 7 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
    }

    #[test]
    fn advice_is_for_what_may_not_be_sandboxed() {
        let advice = Advice::new();
        assert!(advice.may_advise(), "before main");
        advice.begin();
        assert!(!advice.may_advise(), "the C library does not say");
        assert!(!advice.is_alone(), "the C library does not say");
        let mut flag = 1;
        advice.set_single_threaded(&raw mut flag);
        assert!(!advice.may_advise() && advice.is_alone(), "one thread");
        // SAFETY: the byte above.
        unsafe { (&raw mut flag).write_volatile(0) };
        assert!(advice.may_advise() && !advice.is_alone(), "two threads");
        assert!(!advice.set_sandboxed(true));
        assert!(!advice.may_advise());
        assert!(advice.set_sandboxed(false));
        advice.set_helper(true);
        assert!(advice.may_advise() && !advice.is_alone());
    }
}
