//! Processes that this one becomes: forks, and the end of the process.
//!
//! | birth of a child | handlers |
//! |---|---|
//! | `fork` | [`prepare`], then [`parent`] or [`child`]: `pthread_atfork` handlers |
//! | `_Fork` | [`before_raw_fork`], [`after_raw_fork`], called by our wrapper |
//! | `syscall(SYS_fork, …)`, `syscall(SYS_clone, …)` | the same two functions |
//! | the bare instruction | none; the child notices on its first slow path: [`notice`] |
//!
//! | [`MARK`] | state of this process |
//! |---|---|
//! | 0 | a child that has not noticed its birth |
//! | [`BUSY`] | one thread runs [`begin_child`]; others wait |
//! | [`KNOWN`] | the allocator may be used |
//!
//! Lock order: the handlers of other libraries, the C library's list of streams, then our locks.
//! The library is initialised first (`-z initfirst`), so its handlers are the outermost: our locks
//! are taken after all other handlers have run, and are free before others run again. If another
//! library is first, its handlers may allocate while our locks are held.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use libc::{c_char, c_int, pid_t};
use uslub_core::platform::{PAGE_SIZE, Platform};
use uslub_linux::{Linux, sys};

use crate::gate::FRONT;
use crate::next::{self, Next, call_next};
use crate::{ALLOCATOR, helper, once, report, set_errno};

/// This process is known.
const KNOWN: u32 = 1;
/// A thread runs [`begin_child`].
const BUSY: u32 = 2;

/// The mark of a process without a page that the kernel empties.
static ALWAYS_KNOWN: AtomicU32 = AtomicU32::new(KNOWN);
/// A word that is 0 in a child that does not know that it is one.
///
/// It lies in a page that the kernel empties in a child (`MADV_WIPEONFORK`). A child that shares
/// its parent's memory sees the parent's word, as it should. Kernels before 4.14 have no such
/// pages: there a fork by the bare instruction goes unnoticed.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const ALWAYS_KNOWN).cast_mut());

/// Makes the page of [`MARK`]. The set-up calls it.
pub(crate) fn watch() {
    const WIPE_ON_FORK: c_int = 18;
    if ALLOCATOR.platform.is_sandboxed() {
        return;
    }
    let Some(page) = ALLOCATOR.platform.map(PAGE_SIZE) else {
        return;
    };
    // SAFETY: a page of ours.
    unsafe {
        if sys::madvise(page.as_ptr() as usize, PAGE_SIZE, WIPE_ON_FORK) {
            let mark = page.cast::<AtomicU32>();
            // Relaxed: published by the next store.
            mark.as_ref().store(KNOWN, Relaxed);
            // Release: publishes the word.
            MARK.store(mark.as_ptr(), Release);
        } else {
            ALLOCATOR.platform.unmap(page, PAGE_SIZE);
        }
    }
}

#[inline]
fn mark() -> &'static AtomicU32 {
    // Acquire: pairs with `watch`. SAFETY: the page is never unmapped.
    unsafe { &*MARK.load(Acquire) }
}

/// Notices that this process is a child born without our handlers. Slow paths call it.
#[inline]
pub(crate) fn notice() {
    // Acquire: pairs with the end of `begin_child`.
    if mark().load(Acquire) != KNOWN {
        noticed();
    }
}

#[cold]
fn noticed() {
    let signals = Blocked::all();
    // AcqRel: one thread runs `begin_child`; others see what it did.
    if (mark().compare_exchange(0, BUSY, AcqRel, Acquire)).is_ok() {
        // Without a report file: an allocation has too little stack to make one.
        begin_child(Birth::Unnoticed);
        return;
    }
    drop(signals);
    // Acquire: as in `notice`. A signal handler never waits here for its own thread, because that
    // thread blocks signals.
    while mark().load(Acquire) == BUSY {
        sys::futex_wait_for(mark().as_ptr(), BUSY, 1);
    }
}

/// How a child was born.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Birth {
    /// Its parent had taken the locks.
    Prepared,
    /// Its parent had not taken the locks.
    Unnoticed,
}

/// Blocks this thread's signals until the value is dropped.
struct Blocked(u64);

impl Blocked {
    fn set(mask: &u64, old: *mut u64) {
        let (how, mask) = (libc::SIG_SETMASK as usize, &raw const *mask as usize);
        // SAFETY: only reads and writes the sets.
        unsafe { sys::call(libc::SYS_rt_sigprocmask, [how, mask, old as usize, 8, 0, 0]) };
    }

    fn all() -> Self {
        let mut before = 0;
        Self::set(&u64::MAX, &raw mut before);
        Self(before)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        Self::set(&self.0, core::ptr::null_mut());
    }
}

/// Prepares the allocator for a child of which this is the only thread; all signals are blocked.
/// Returns whether the parent had a report file.
fn begin_child(birth: Birth) -> bool {
    ALLOCATOR.platform.is_child_of_fork();
    // SAFETY: the child's only thread. The parent of a prepared child took the locks.
    unsafe {
        match birth {
            Birth::Prepared => ALLOCATOR.reset_after_fork(),
            Birth::Unnoticed => ALLOCATOR.reset_after_raw_fork(),
        }
    }
    helper::after_fork_in_child();
    let had_file = report::after_fork_in_child();
    let mut known = KNOWN;
    if ALLOCATOR.is_torn() {
        if ALLOCATOR.is_interrupted() {
            // A signal handler forked, and the code that it interrupted may continue here. The next
            // slow path tries again.
            known = 0;
        } else {
            start_over();
        }
    }
    FRONT.open();
    // Release: publishes all of the above.
    mark().store(known, Release);
    had_file
}

/// As [`begin_child`], in a child whose parent took the locks.
fn begin_prepared_child() {
    if begin_child(Birth::Prepared) {
        report::make_file_in_child();
    }
}

/// Abandons the parent's structures, which are half changed, and starts with new ones.
#[cold]
#[inline(never)]
fn start_over() {
    FRONT.close();
    // A child that noticed late may have threads by now, but only in fast paths.
    ALLOCATOR.platform.fence();
    // SAFETY: users of this allocator have size classes only, and no other thread is in a slow
    // path.
    if unsafe { ALLOCATOR.start_over() } {
        ALLOCATOR.zone.begin(&ALLOCATOR.platform);
    }
}

/// The lock of the C library's list of streams. The C library's `fork` takes it after all handlers.
///
/// A thread that holds it may allocate (`getline` under `fflush(NULL)`), so it must be taken before
/// our locks. A process with one thread needs neither, and there the C library does not take its
/// own.
struct Streams {
    lock: Next,
    unlock: Next,
    reset: Next,
    single: Next,
    /// Upper half: the tag of the thread that took the lock for forks. Lower half: one bit for each
    /// fork depth at which it took the lock. Written under the lock.
    taken: AtomicU64,
}

static STREAMS: Streams = Streams {
    lock: Next::new(c"_IO_list_lock"),
    unlock: Next::new(c"_IO_list_unlock"),
    reset: Next::new(c"_IO_list_resetlock"),
    single: Next::new(c"__libc_single_threaded"),
    taken: AtomicU64::new(0),
};

impl Streams {
    /// Looks up all functions, because a fork must not.
    fn find(&self) {
        for name in [&self.lock, &self.unlock, &self.reset] {
            name.get();
        }
        if let Some(flag) = self.single.get() {
            // SAFETY: a byte of the C library, which is never unloaded.
            unsafe { ALLOCATOR.platform.single_threaded_is_at(flag.cast()) };
        }
    }

    fn call(name: &Next) {
        if let Some(function) = name.get() {
            // SAFETY: a function of the C library without arguments and result.
            unsafe { core::mem::transmute::<NonNull<c_void>, extern "C" fn()>(function)() };
        }
    }

    fn me() -> u64 {
        u64::from(Linux::lock_tag()) << 32
    }

    /// The value of `taken`, if this thread wrote it.
    fn mine(&self) -> Option<u64> {
        // Relaxed: this thread's tag is there only while this thread holds the lock.
        let taken = self.taken.load(Relaxed);
        (taken >> 32 == Self::me() >> 32).then_some(taken)
    }

    /// Takes the lock, if it exists and the process has several threads. Returns whether it did.
    fn take(&self) -> bool {
        let functions = [&self.lock, &self.unlock, &self.reset];
        let Some(single) = self.single.get() else {
            return false;
        };
        // SAFETY: a byte of the C library, which it changes when a thread is made.
        let is_single = unsafe { single.cast::<c_char>().read_volatile() } != 0;
        if is_single || functions.iter().any(|function| function.get().is_none()) {
            return false;
        }
        Self::call(&self.lock);
        true
    }

    /// Records that the lock was taken for the fork at this depth.
    fn note(&self, depth: u32) {
        let mine = self.mine().unwrap_or(Self::me());
        // Relaxed: under the lock.
        self.taken.store(mine | 1 << depth.min(31), Relaxed);
    }

    /// Removes the record for the fork at this depth; returns whether there was one.
    fn forget(&self, depth: u32) -> bool {
        let bit = 1 << depth.min(31);
        let Some(mine) = self.mine().filter(|mine| mine & bit != 0) else {
            return false;
        };
        let left = mine & !bit;
        // Relaxed: under the lock.
        (self.taken).store(if left as u32 == 0 { 0 } else { left }, Relaxed);
        true
    }
}

extern "C" fn prepare() {
    if once::is_done() {
        notice();
        let taken = STREAMS.take();
        ALLOCATOR.lock_for_fork();
        if taken {
            STREAMS.note(ALLOCATOR.fork_depth());
        }
    }
}

extern "C" fn parent() {
    if once::is_done() {
        let taken = STREAMS.forget(ALLOCATOR.fork_depth());
        // SAFETY: `prepare` took the locks on this thread.
        unsafe { ALLOCATOR.unlock_after_fork() };
        if taken {
            Streams::call(&STREAMS.unlock);
        }
    }
}

extern "C" fn child() {
    if once::is_done() {
        let signals = Blocked::all();
        let taken = STREAMS.forget(ALLOCATOR.fork_depth());
        begin_prepared_child();
        drop(signals);
        if taken {
            // The C library does the same if it took the lock too.
            Streams::call(&STREAMS.reset);
        }
    }
}

#[cfg(not(target_env = "musl"))]
unsafe extern "C" {
    /// Registers a handler of `quick_exit`; glibc has `at_quick_exit` for static linking only.
    fn __cxa_at_quick_exit(handler: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

// A program of another C library, which inherits the preload, lacks the function: then its address
// is null.
#[cfg(target_env = "musl")]
core::arch::global_asm!(".weak at_quick_exit");

#[cfg(target_env = "musl")]
unsafe extern "C" {
    /// Registers a handler of `quick_exit`, which it calls with no argument.
    fn at_quick_exit(handler: extern "C" fn(*mut c_void)) -> c_int;
}

/// Runs after the program's own handlers of `quick_exit`, as those are registered later. It does
/// not read its argument.
extern "C" fn quick_exit_ends(_: *mut c_void) {
    report::write();
}

/// Registers the handlers of forks and of `quick_exit`, which runs no destructors and calls the C
/// library's own `_exit`.
pub(crate) fn register() {
    // SAFETY: the library is never unloaded, so the functions live as long as the process.
    unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
        #[cfg(not(target_env = "musl"))]
        __cxa_at_quick_exit(quick_exit_ends, core::ptr::null_mut());
        #[cfg(target_env = "musl")]
        if !core::hint::black_box(at_quick_exit as *const c_void).is_null() {
            at_quick_exit(quick_exit_ends);
        }
    }
}

/// The next definitions of `_exit` and `_Exit`.
static EXIT: [Next; 2] = [Next::new(c"_exit"), Next::new(c"_Exit")];

/// Looks up the next definitions.
pub(crate) fn resolve_next() {
    next::resolve(&EXIT.each_ref());
    next::resolve(&[&NEXT_FORK]);
    STREAMS.find();
}

/// Takes the locks before a system call that makes a process with its own memory.
pub(crate) fn before_raw_fork() {
    if once::is_done() {
        notice();
        ALLOCATOR.lock_for_fork();
    }
}

/// Ends what [`before_raw_fork`] began, in both processes. `result` is the system call's result.
pub(crate) fn after_raw_fork(result: isize) {
    if !once::is_done() {
        return;
    }
    if result == 0 {
        let _signals = Blocked::all();
        begin_prepared_child();
    } else {
        // SAFETY: `before_raw_fork` took the locks on this thread.
        unsafe { ALLOCATOR.unlock_after_fork() };
    }
}

static NEXT_FORK: Next = Next::new(c"_Fork");

/// `fork` without handlers; a signal handler may call it too.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    before_raw_fork();
    let pid = call_next!(
        NEXT_FORK,
        extern "C" fn() -> pid_t,
        (),
        or {
            set_errno(libc::ENOSYS);
            -1
        }
    );
    after_raw_fork(pid as isize);
    pid
}

/// Ends the process at once, after writing the report.
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    report::write();
    call_next!(EXIT[0], unsafe extern "C" fn(c_int) -> !, (status), or());
    loop {
        // SAFETY: ends the process.
        unsafe { sys::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// [`_exit`] under its C99 name.
///
/// # Safety
///
/// No more than C demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    report::write();
    call_next!(EXIT[1], unsafe extern "C" fn(c_int) -> !, (status), or());
    // SAFETY: passed on.
    unsafe { _exit(status) }
}

/// Runs at an ordinary end of the process.
extern "C" fn destructor() {
    report::write();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;
