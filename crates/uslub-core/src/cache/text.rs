//! Short texts without heap memory, for names. Callers: `kmalloc` and the faces.

use core::fmt;

/// A text of at most `N` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Name<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Name<N> {
    /// No text.
    pub const EMPTY: Self = Self {
        bytes: [0; N],
        len: 0,
    };

    /// The text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("?")
    }
}

impl<const N: usize> fmt::Write for Name<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.len + s.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}
