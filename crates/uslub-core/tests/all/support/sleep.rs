//! Long waits: real sleep, so that a wake-up that is lost shows as a wait that ran out.

use std::io::Error;
use std::ptr::null;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::thread::yield_now;

static ASLEEP: AtomicUsize = AtomicUsize::new(0);
static TIMED_OUT: AtomicUsize = AtomicUsize::new(0);

/// Sleeps while `*word == value`, at most `ms` milliseconds.
pub fn wait(word: &AtomicU32, value: u32, ms: u32) {
    let limit = libc::timespec {
        tv_sec: (ms / 1000).into(),
        tv_nsec: (ms % 1000 * 1_000_000).into(),
    };
    // SeqCst, here and below: nothing here is measured.
    ASLEEP.fetch_add(1, SeqCst);
    // Much may happen between the last look and the sleep.
    (0..4).for_each(|_| yield_now());
    // SAFETY: reads the word and the time only.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            &raw const limit,
        )
    };
    let timed_out = result == -1 && Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT);
    // SeqCst: as above.
    TIMED_OUT.fetch_add(usize::from(timed_out), SeqCst);
    ASLEEP.fetch_sub(1, SeqCst);
}

/// Wakes as many who sleep on a word.
pub fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: wakes only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count,
            null::<libc::timespec>(),
        )
    };
}

/// Threads of this process that sleep, or are about to.
pub fn asleep() -> usize {
    // SeqCst: as above.
    ASLEEP.load(SeqCst)
}

/// Waits of this process that ran out.
pub fn timed_out() -> usize {
    // SeqCst: as above.
    TIMED_OUT.load(SeqCst)
}
