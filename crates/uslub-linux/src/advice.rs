//! What the allocator may ask of the kernel without need.
//!
//! A program may forbid itself system calls by a filter, and the filter may end the program at
//! the first call that it does not know. The allocator cannot see every filter: a program may
//! install one by the bare instruction, and the question (`prctl`) may be forbidden itself. So a
//! call that only saves time or memory is made where an ordinary allocator makes it too:
//!
//! | the process | advice (`madvise`, `mbind`) | fence (`membarrier`) |
//! |---|---|---|
//! | before `main` | yes | yes |
//! | has one thread | no | not needed: no other thread runs a sequence |
//! | has several threads | yes: the C library gives each thread's stack back by `madvise` | on request (`malloc_trim`) |
//! | has installed a filter that was seen | no | only with one thread: not needed |
//!
//! The helper thread may do all of it: it ends before a filter that is seen.
//!
//! Without advice, memory goes back by [`replace`]: a new mapping over the old one, which is the
//! call that every allocator makes. A new mapping cannot always merge with its neighbours: in the
//! child of a fork, and where the neighbours were advised. There only ranges above a least size
//! are replaced, so that the number of mappings stays below [`MOST_PIECES`].

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use uslub_core::platform::PAGE_SIZE;
use uslub_rseq::Area;

use crate::{Linux, sys};

/// Pieces of the memory in use that may be mappings of their own: a fourth of the kernel's limit,
/// as the memory between two pieces is a mapping too.
const MOST_PIECES: usize = 16 << 10;
/// Bytes of the largest piece that must be replaceable: a block, which is empty now and then.
const LARGEST_LEAST: usize = 2 << 20;
/// Times that a hole is filled before the process ends.
const TRIES: u32 = 1000;

/// What is known of the process.
pub(crate) struct Advice {
    /// Whether the program has begun.
    begun: AtomicBool,
    /// Whether the process has forbidden itself some system calls.
    sandboxed: AtomicBool,
    /// Whether the process is the child of a fork.
    forked: AtomicBool,
    /// Whether the program has locked its memory.
    locked: AtomicBool,
    /// The helper, as [`thread`] names it; 0 where there is none.
    helper: AtomicUsize,
    /// Calls under way by which the program asks for work.
    requests: AtomicUsize,
    /// Bytes that were ever committed.
    committed: AtomicUsize,
}

impl Advice {
    pub(crate) const fn new() -> Self {
        Self {
            begun: AtomicBool::new(false),
            sandboxed: AtomicBool::new(false),
            forked: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            helper: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
        }
    }

    /// Says that `main` is about to run.
    pub(crate) fn begin(&self) {
        // Relaxed: one thread so far.
        self.begun.store(true, Relaxed);
    }

    /// Says whether the process forbids itself system calls; returns what was said before.
    pub(crate) fn set_sandboxed(&self, sandboxed: bool) -> bool {
        // Relaxed: called by the thread that forbids, before it does.
        self.sandboxed.swap(sandboxed, Relaxed)
    }

    pub(crate) fn is_sandboxed(&self) -> bool {
        // Relaxed: as above.
        self.sandboxed.load(Relaxed)
    }

    /// Says that this process is the child of a fork.
    pub(crate) fn is_child_of_fork(&self) {
        // Relaxed, all: the child has one thread.
        self.forked.store(true, Relaxed);
        self.locked.store(false, Relaxed);
        self.helper.store(0, Relaxed);
    }

    /// Says whether the program's memory is locked; returns what was said before.
    pub(crate) fn set_locked(&self, locked: bool) -> bool {
        // Relaxed: the thread that locks says so before.
        self.locked.swap(locked, Relaxed)
    }

    /// Says that the calling thread is the helper, or that it is not any longer.
    pub(crate) fn set_helper(&self, is_helper: bool) {
        // Relaxed: only the helper itself compares equal.
        self.helper
            .store(if is_helper { thread() } else { 0 }, Relaxed);
    }

    fn is_helper(&self) -> bool {
        // Relaxed: as above.
        let helper = self.helper.load(Relaxed);
        helper != 0 && helper == thread()
    }

    /// Says that `bytes` more are in use.
    pub(crate) fn note_committed(&self, bytes: usize) {
        // Relaxed: a figure.
        self.committed.fetch_add(bytes, Relaxed);
    }

    /// Whether this thread may give the kernel advice.
    pub(crate) fn may_advise(&self) -> bool {
        // Relaxed: set before there are threads.
        let begun = self.begun.load(Relaxed);
        !self.is_sandboxed() && (!begun || !is_single_threaded() || self.is_helper())
    }

    /// Whether this thread may fence the others: no ordinary allocator does that.
    pub(crate) fn may_fence(&self) -> bool {
        // Relaxed, both: set before there are threads; a hint.
        let unasked = self.begun.load(Relaxed) && self.requests.load(Relaxed) == 0;
        !self.is_sandboxed() && (!unasked || self.is_helper())
    }

    /// Does work that the program asks for.
    pub(crate) fn on_request<T>(&self, work: impl FnOnce() -> T) -> T {
        // Relaxed, both: a hint.
        self.requests.fetch_add(1, Relaxed);
        let result = work();
        self.requests.fetch_sub(1, Relaxed);
        result
    }

    /// Whether no other thread can be inside a sequence: the program has one thread, which is
    /// this one.
    pub(crate) fn is_alone(&self) -> bool {
        // Relaxed: as above.
        self.begun.load(Relaxed) && is_single_threaded() && !self.is_helper()
    }

    /// Least bytes to replace where a new mapping does not merge with its neighbours.
    fn least(&self) -> usize {
        // Relaxed: a figure.
        let share = self.committed.load(Relaxed) / MOST_PIECES;
        share
            .next_multiple_of(PAGE_SIZE)
            .clamp(PAGE_SIZE, LARGEST_LEAST)
    }

    /// Gives a range's memory back by a new mapping over it; returns whether that was done. The
    /// neighbours are `advised` where the kernel was told something about them.
    ///
    /// # Safety
    ///
    /// As for [`Platform::purge`](uslub_core::platform::Platform::purge).
    pub(crate) unsafe fn replace(&self, start: usize, bytes: usize, advised: bool) -> bool {
        // Relaxed, both: set by a thread that was alone, or before the memory was locked.
        let merges = !advised && !self.forked.load(Relaxed);
        // A new mapping would not be locked.
        if self.locked.load(Relaxed) || !merges && bytes < self.least() {
            return false;
        }
        // SAFETY: passed on.
        unsafe { renew(start, bytes) }
    }
}

impl Linux {
    /// This process's id, as the kernel told it when the process began.
    pub fn pid(&self) -> u32 {
        // Relaxed: written while there was one thread.
        self.pid.load(Relaxed)
    }

    /// Says that the process forbids itself system calls: from now on we make none that an
    /// ordinary allocator would not make.
    pub fn enter_sandbox(&self) {
        self.advice.set_sandboxed(true);
    }

    /// Says that the process could not forbid itself what it said before.
    pub fn leave_sandbox(&self) {
        self.advice.set_sandboxed(false);
    }

    /// Whether [`enter_sandbox`](Self::enter_sandbox) was called.
    pub fn is_sandboxed(&self) -> bool {
        self.advice.is_sandboxed()
    }

    /// Says that the program begins: from now on it may forbid itself system calls unseen.
    pub fn program_begins(&self) {
        self.advice.begin();
    }

    /// Says that the calling thread is the helper, which the program does not know, or is not any
    /// longer.
    pub fn is_helper(&self, is_helper: bool) {
        self.advice.set_helper(is_helper);
    }

    /// Does work that the program asks for, and that may fence other CPUs.
    pub fn on_request<T>(&self, work: impl FnOnce() -> T) -> T {
        self.advice.on_request(work)
    }

    /// Says whether the program has locked its memory: then no new mapping may take its place.
    /// Returns what was said before.
    pub fn memory_is_locked(&self, locked: bool) -> bool {
        self.advice.set_locked(locked)
    }

    /// Asks for huge pages for a reserved range that will grow from its start. Before the program
    /// begins, as it is advice.
    pub fn will_grow(&self, start: NonNull<u8>, bytes: usize) {
        if !self.system_page.is_ours() {
            return;
        }
        // SAFETY: reserved, and nobody uses it.
        unsafe { self.huge_pages.prepare(start.as_ptr() as usize, bytes) };
    }

    /// Registers this thread, unless that could end the process.
    pub(crate) fn register(&self, area: Area) -> bool {
        area.is_registered_here() || !self.is_sandboxed() && area.register_here()
    }
}

/// Puts new memory in the place of a range; returns whether that was done, and otherwise the range
/// is as it was.
///
/// # Safety
///
/// As for [`Advice::replace`].
pub(crate) unsafe fn renew(start: usize, bytes: usize) -> bool {
    // SAFETY: passed on.
    unsafe { sys::replace(start, bytes, READ_WRITE) || fill(start, bytes) }
}

/// A page of which it is known that it is there.
#[repr(align(4096))]
struct Known(#[allow(dead_code)] core::cell::UnsafeCell<[u8; PAGE_SIZE]>);

// SAFETY: nobody reads or writes it.
unsafe impl Sync for Known {}

static KNOWN: Known = Known(core::cell::UnsafeCell::new([0; PAGE_SIZE]));

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// After a mapping over a range has failed: some kernels (before 6.12) unmap the old one first,
/// and may fail then. Returns whether the range is new memory; otherwise it is as it was.
///
/// # Safety
///
/// As for [`Advice::replace`].
#[cold]
unsafe fn fill(start: usize, bytes: usize) -> bool {
    // SAFETY: as the range is; refused where a part of it is not mapped.
    if unsafe { sys::mprotect(start, bytes, READ_WRITE) } {
        return false;
    }
    // A filter may refuse both calls; then nothing was unmapped.
    // SAFETY: the page is writable, and stays so.
    if !unsafe { sys::mprotect((&raw const KNOWN) as usize, PAGE_SIZE, READ_WRITE) } {
        return false;
    }
    for _ in 0..TRIES {
        // Addresses need no memory: this fails more rarely than memory does.
        // SAFETY: nothing of value is in the range.
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

/// Ends the process: others would be given these addresses.
#[cold]
#[inline(never)]
fn lost(start: usize, bytes: usize) -> ! {
    crate::complain(format_args!(
        "the kernel took {bytes} bytes at {start:#x} and gives none back"
    ));
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// The running thread.
fn thread() -> usize {
    uslub_rseq::thread_pointer()
}

/// Whether the C library has started no thread that still runs; yes where it does not say.
pub(crate) fn is_single_threaded() -> bool {
    let flag = single_threaded_flag();
    // SAFETY: null, or a byte of the C library's, which it writes when it starts a thread.
    flag.is_null() || unsafe { flag.read_volatile() } != 0
}

/// The address of the C library's `__libc_single_threaded`; null where it has none.
#[cfg(target_arch = "x86_64")]
fn single_threaded_flag() -> *const u8 {
    let flag: *const u8;
    // SAFETY: reads an entry of the global offset table; a weak symbol, so 0 when absent.
    unsafe {
        core::arch::asm!(
            ".weak __libc_single_threaded",
            "mov {flag}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            flag = out(reg) flag,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    flag
}

/// The address of the C library's `__libc_single_threaded`; null where it has none.
#[cfg(target_arch = "aarch64")]
fn single_threaded_flag() -> *const u8 {
    let flag: *const u8;
    // SAFETY: as on x86-64.
    unsafe {
        core::arch::asm!(
            ".weak __libc_single_threaded",
            "adrp {flag}, :got:__libc_single_threaded",
            "ldr {flag}, [{flag}, :got_lo12:__libc_single_threaded]",
            flag = out(reg) flag,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    flag
}

/// Not asked on other architectures.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn single_threaded_flag() -> *const u8 {
    core::ptr::null()
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
        advice.note_committed(2 * MOST_PIECES * PAGE_SIZE);
        let start = mapping(3 * PAGE_SIZE);
        // SAFETY: mapped, and ours.
        unsafe {
            assert!(!advice.replace(start, PAGE_SIZE, true));
            assert!(advice.replace(start, 2 * PAGE_SIZE, true));
            assert!(advice.replace(start, PAGE_SIZE, false));
            advice.is_child_of_fork();
            assert!(!advice.replace(start, PAGE_SIZE, false));
            advice.note_committed(usize::MAX / 2);
            assert_eq!(advice.least(), LARGEST_LEAST);
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
        assert_eq!(advice.may_advise(), !is_single_threaded());
        assert!(!advice.set_sandboxed(true));
        assert!(!advice.may_advise());
        assert!(advice.set_sandboxed(false));
        advice.set_helper(true);
        assert!(advice.may_advise() && !advice.is_alone());
    }
}
