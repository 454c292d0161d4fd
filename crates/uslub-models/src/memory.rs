//! Memory that goes back to what it was, so that each run of a model starts alike.
//!
//! While the model is set up, the memory is shared with a file that lives in memory only. From
//! [`Memory::seal`] on it is a private view of that file: what a run writes are copies, and
//! [`Memory::restore`] drops them.

use std::cell::Cell;

/// Bytes in all.
const BYTES: usize = 64 << 20;

/// The memory, dealt out from its start.
#[derive(Debug)]
pub struct Memory {
    start: usize,
    used: Cell<usize>,
    /// Of these, what was in use when the memory was sealed.
    kept: Cell<usize>,
    file: i32,
}

fn map(at: usize, file: i32, flags: i32) -> usize {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: a fresh mapping, or one in place of our own.
    let start = unsafe { libc::mmap(at as *mut _, BYTES, access, flags | fixed, file, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start as usize
}

impl Memory {
    /// Fresh memory, all zero.
    pub fn new() -> Self {
        // SAFETY: a file of our own.
        let file = unsafe { libc::memfd_create(c"model".as_ptr(), 0) };
        // SAFETY: as above.
        assert!(file >= 0 && unsafe { libc::ftruncate(file, BYTES as _) } == 0);
        Self {
            start: map(0, file, libc::MAP_SHARED),
            used: Cell::new(0),
            kept: Cell::new(0),
            file,
        }
    }

    /// So many bytes, aligned to a power of two, that nobody else has had.
    pub fn take(&self, bytes: usize, align: usize) -> Option<usize> {
        let at = (self.start + self.used.get()).next_multiple_of(align);
        let end = at + bytes - self.start;
        (end <= BYTES).then(|| self.used.set(end))?;
        Some(at)
    }

    /// Makes what lies in the memory now the start of each run.
    pub fn seal(&self) {
        map(self.start, self.file, libc::MAP_PRIVATE);
        self.kept.set(self.used.get());
    }

    /// Takes everything back that was written since the memory was sealed.
    pub fn restore(&self) {
        // SAFETY: our own mapping; nobody is in it between two runs.
        let done = unsafe { libc::madvise(self.start as *mut _, BYTES, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
        self.used.set(self.kept.get());
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping and file, which nobody uses any more.
        unsafe {
            libc::munmap(self.start as *mut _, BYTES);
            libc::close(self.file);
        }
    }
}
