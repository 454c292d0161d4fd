//! System calls, made directly.
//!
//! They leave `errno` alone. A program that replaces the C library's wrappers is not called back
//! from inside the allocator. Any thread may call, in a signal handler too.

mod files;

use uslub_core::platform::SYSTEM_PAGE_MAX;

pub use files::{
    close, current_folder, inode, kind, kind_itself, map_new_file, map_shared, may_create_in, open,
    read, rename, unlink, write_all,
};
pub use uslub_rseq::call;

/// Bytes of a system page; [`SYSTEM_PAGE_MAX`] if the kernel does not say.
pub fn page_bytes() -> usize {
    match uslub_rseq::initial::auxiliary(libc::AT_PAGESZ as usize) {
        0 => SYSTEM_PAGE_MAX,
        bytes => bytes,
    }
}

/// Maps `bytes` bytes of private anonymous memory.
pub fn mmap(
    address: usize,
    bytes: usize,
    protection: libc::c_int,
    flags: libc::c_int,
) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a fresh mapping harms nobody (no caller passes MAP_FIXED).
    let result = unsafe {
        call(
            libc::SYS_mmap,
            [
                address,
                bytes,
                protection as usize,
                flags as usize,
                usize::MAX,
                0,
            ],
        )
    };
    (result > 0).then_some(result as usize)
}

/// Replaces what is mapped in a range by private anonymous memory; returns whether it did.
/// # Safety
///
/// The range is the caller's, and holds nothing of value.
pub unsafe fn replace(address: usize, bytes: usize, protection: libc::c_int) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: passed on.
    let result = unsafe {
        call(
            libc::SYS_mmap,
            [
                address,
                bytes,
                protection as usize,
                flags as usize,
                usize::MAX,
                0,
            ],
        )
    };
    result as usize == address
}

/// Unmaps a range; returns whether it did.
/// # Safety
///
/// Nobody uses the range.
pub unsafe fn munmap(address: usize, bytes: usize) -> bool {
    // SAFETY: passed on.
    unsafe { try_munmap(address, bytes) == 0 }
}

/// As [`munmap`], but returns 0 or the negative error.
/// # Safety
///
/// As for [`munmap`].
pub unsafe fn try_munmap(address: usize, bytes: usize) -> isize {
    // SAFETY: passed on.
    unsafe { call(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) }
}

/// Changes the protection of a range; returns whether it did.
/// # Safety
///
/// The range is the caller's.
pub unsafe fn mprotect(address: usize, bytes: usize, protection: libc::c_int) -> bool {
    // SAFETY: passed on.
    unsafe { try_mprotect(address, bytes, protection) == 0 }
}

/// As [`mprotect`], but returns 0 or the negative error.
/// # Safety
///
/// As for [`mprotect`].
pub unsafe fn try_mprotect(address: usize, bytes: usize, protection: libc::c_int) -> isize {
    let arguments = [address, bytes, protection as usize, 0, 0, 0];
    // SAFETY: passed on.
    unsafe { call(libc::SYS_mprotect, arguments) }
}

/// Gives the kernel advice on a range.
/// # Safety
///
/// As for the advice.
pub unsafe fn madvise(address: usize, bytes: usize, advice: libc::c_int) -> bool {
    // SAFETY: passed on.
    unsafe {
        call(
            libc::SYS_madvise,
            [address, bytes, advice as usize, 0, 0, 0],
        ) == 0
    }
}

/// Resizes a mapping; the kernel may move it.
/// # Safety
///
/// The range is a whole mapping of the caller's.
pub unsafe fn mremap(address: usize, old: usize, new: usize) -> Option<usize> {
    // SAFETY: passed on.
    let result = unsafe {
        call(
            libc::SYS_mremap,
            [address, old, new, libc::MREMAP_MAYMOVE as usize, 0, 0],
        )
    };
    (result > 0).then_some(result as usize)
}

/// Waits while `*word == value`.
pub fn futex_wait(word: *const u32, value: u32) {
    // SAFETY: reads the word only; may return early.
    unsafe {
        call(
            libc::SYS_futex,
            [
                word as usize,
                (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize,
                value as usize,
                0,
                0,
                0,
            ],
        );
    }
}

/// Waits while `*word == value`, at most `ms` milliseconds.
pub fn futex_wait_for(word: *const u32, value: u32, ms: u64) {
    let time = libc::timespec {
        tv_sec: (ms / 1000) as _,
        tv_nsec: (ms % 1000 * 1_000_000) as libc::c_long,
    };
    // SAFETY: reads the word and the time only; may return early.
    unsafe {
        call(
            libc::SYS_futex,
            [
                word as usize,
                (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize,
                value as usize,
                &raw const time as usize,
                0,
                0,
            ],
        );
    }
}

/// Waits while `*word == value`, for a word that the kernel writes when a thread ends.
pub fn futex_wait_shared(word: *const u32, value: u32) {
    // SAFETY: reads the word only; may return early.
    unsafe {
        call(
            libc::SYS_futex,
            [
                word as usize,
                libc::FUTEX_WAIT as usize,
                value as usize,
                0,
                0,
                0,
            ],
        );
    }
}

/// As [`futex_wait_for`], for a word that another process shares.
pub fn futex_wait_shared_for(word: *const u32, value: u32, ms: u64) {
    let time = libc::timespec {
        tv_sec: (ms / 1000) as _,
        tv_nsec: (ms % 1000 * 1_000_000) as libc::c_long,
    };
    let time = &raw const time as usize;
    // SAFETY: reads the word and the time only; may return early.
    unsafe {
        call(
            libc::SYS_futex,
            [
                word as usize,
                libc::FUTEX_WAIT as usize,
                value as usize,
                time,
                0,
                0,
            ],
        );
    }
}

/// Wakes all waiters for a word that another process shares.
pub fn futex_wake_shared(word: *const u32) {
    let all = i32::MAX as usize;
    // SAFETY: wakes only.
    unsafe {
        call(
            libc::SYS_futex,
            [word as usize, libc::FUTEX_WAKE as usize, all, 0, 0, 0],
        );
    }
}

/// Whether a thread of this process exists.
pub fn thread_exists(tid: u32) -> bool {
    // SAFETY: sends no signal.
    unsafe {
        call(
            libc::SYS_tgkill,
            [getpid() as usize, tid as usize, 0, 0, 0, 0],
        ) == 0
    }
}

/// Wakes up to `count` waiters.
pub fn futex_wake(word: *const u32, count: usize) {
    // SAFETY: wakes only.
    unsafe {
        call(
            libc::SYS_futex,
            [
                word as usize,
                (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize,
                count,
                0,
                0,
                0,
            ],
        );
    }
}

/// The memory node of the CPU that this thread runs on.
pub fn node() -> usize {
    let mut node = 0u32;
    // SAFETY: writes the number only.
    unsafe { call(libc::SYS_getcpu, [0, &raw mut node as usize, 0, 0, 0, 0]) };
    node as usize
}

/// This process's id, asked of the kernel.
pub fn getpid() -> u32 {
    // SAFETY: has no effect.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The id of this process's parent; 0 if the parent is in another PID namespace.
pub fn getppid() -> u32 {
    // SAFETY: has no effect.
    unsafe { call(libc::SYS_getppid, [0; 6]) as u32 }
}

/// Fills a slice with random bytes; false when the kernel has none.
pub fn getrandom(into: &mut [u8]) -> bool {
    // SAFETY: writes into the slice only.
    let n = unsafe {
        call(
            libc::SYS_getrandom,
            [
                into.as_mut_ptr() as usize,
                into.len(),
                libc::GRND_NONBLOCK as usize,
                0,
                0,
                0,
            ],
        )
    };
    n == into.len() as isize
}

/// Writes the set of CPUs that this thread may run on; returns how many bytes the kernel wrote.
pub fn affinity(into: &mut [u8]) -> usize {
    // SAFETY: writes into the slice only.
    let n = unsafe {
        call(
            libc::SYS_sched_getaffinity,
            [0, into.len(), into.as_mut_ptr() as usize, 0, 0, 0],
        )
    };
    usize::try_from(n).unwrap_or(0)
}

/// Ends the process by SIGABRT, even if the signal is blocked or ignored, as the C library's
/// `abort` does. The C library's function may be wrapped by one that allocates, and the allocator
/// may hold locks here.
pub fn abort() -> ! {
    let signal = libc::SIGABRT as usize;
    let set = 1u64 << (signal - 1);
    // SAFETY: reads the set. The program's handler runs if it has one, as it expects.
    unsafe {
        let unblock = libc::SIG_UNBLOCK as usize;
        call(
            libc::SYS_rt_sigprocmask,
            [unblock, &raw const set as usize, 0, 8, 0, 0],
        );
        raise(signal);
        // The handler returned, or the signal was ignored.
        let default = [0usize; 4];
        call(
            libc::SYS_rt_sigaction,
            [signal, default.as_ptr() as usize, 0, 8, 0, 0],
        );
        raise(signal);
    }
    loop {
        // SAFETY: ends the process.
        unsafe { call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]) };
    }
}

/// Blocks this thread's signals; returns which were blocked before.
pub fn block_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0u64);
    let how = libc::SIG_SETMASK as usize;
    let (all, old) = (&raw const all as usize, &raw mut before as usize);
    // SAFETY: only reads and writes the sets.
    unsafe { call(libc::SYS_rt_sigprocmask, [how, all, old, 8, 0, 0]) };
    before
}

/// Ends what [`block_signals`] began.
pub fn unblock_signals(before: u64) {
    let how = libc::SIG_SETMASK as usize;
    let set = &raw const before as usize;
    // SAFETY: only reads the set.
    unsafe { call(libc::SYS_rt_sigprocmask, [how, set, 0, 8, 0, 0]) };
}

/// Sends a signal to this thread.
pub(crate) fn raise(signal: usize) {
    // SAFETY: the program's handler runs, or the default action, as it expects.
    unsafe {
        let (process, thread) = (
            call(libc::SYS_getpid, [0; 6]),
            call(libc::SYS_gettid, [0; 6]),
        );
        call(
            libc::SYS_tgkill,
            [process as usize, thread as usize, signal, 0, 0, 0],
        );
    }
}
