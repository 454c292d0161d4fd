//! Text without allocation: a fixed buffer, written by one system call.
//!
//! [`complain`] has one static buffer for all threads. Its flag is either free or taken by one
//! thread; a thread that finds it taken writes without the buffer. Any thread may call.

use core::cell::UnsafeCell;
use core::fmt::{Arguments, Write};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::sys;

/// A text of at most `N` bytes; what does not fit is cut off.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// An empty text.
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// The bytes written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Adds bytes, as far as they fit.
    pub fn push(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(N - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

/// The buffer of [`complain`]. Only the thread that set `taken` may use `text`.
struct Shared {
    taken: AtomicBool,
    text: UnsafeCell<Text<1024>>,
}

// SAFETY: `text` is used by one thread at a time, the one that set `taken`.
unsafe impl Sync for Shared {}

static LINE: Shared = Shared {
    taken: AtomicBool::new(false),
    text: UnsafeCell::new(Text::new()),
};

/// Standard error itself, for a thread that finds the buffer taken.
struct Unbuffered;

impl Write for Unbuffered {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        sys::write_all(libc::STDERR_FILENO, s.as_bytes());
        Ok(())
    }
}

/// Writes a line to standard error: by one system call, unless another thread writes a line at the
/// same time.
///
/// The buffer is static because callers may have little stack left. Two callers write without it: a
/// signal handler that interrupts its user, and a child of `fork` that inherits it taken.
#[cold]
#[inline(never)]
pub fn complain(message: Arguments<'_>) {
    with_line(format_args!("uslub: {message}"), |line| {
        sys::write_all(libc::STDERR_FILENO, line);
    });
}

/// Formats a line and passes it, with its end, to `write`; otherwise as [`complain`].
#[inline(always)]
pub(crate) fn with_line(message: Arguments<'_>, write: impl FnOnce(&[u8])) {
    // Acquire: the last user's accesses to the buffer are complete.
    if LINE.taken.swap(true, Acquire) {
        let _ = writeln!(Unbuffered, "{message}");
        return;
    }
    // SAFETY: this thread set `taken`, and no other uses the buffer until it is cleared.
    let text = unsafe { &mut *LINE.text.get() };
    text.len = 0;
    let _ = writeln!(text, "{message}");
    write(text.as_bytes());
    // Release: the next user's writes come after these reads.
    LINE.taken.store(false, Release);
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn a_thread_that_finds_the_buffer_taken_does_not_wait_for_it() {
        // Relaxed: no other thread of this test reads it.
        LINE.taken.store(true, Relaxed);
        complain(format_args!("beside the buffer"));
        assert!(LINE.taken.load(Relaxed), "taken still, by the other");
        LINE.taken.store(false, Relaxed);
    }
}
