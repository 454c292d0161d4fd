//! Text without memory from anyone: a buffer on the stack, written in one go.

use core::fmt::{Arguments, Write};

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

    /// What was written.
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

/// Writes a line to standard error.
pub fn complain(message: Arguments<'_>) {
    let mut text = Text::<1024>::new();
    let _ = writeln!(text, "uslub: {message}");
    sys::write_all(libc::STDERR_FILENO, text.as_bytes());
}
