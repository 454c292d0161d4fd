//! Memory of a model that can be reset, so that every run starts from the same state. `model` puts
//! the allocator and its cached objects into it.
//!
//! During setup, the memory is a shared mapping of an in-memory file. [`Memory::seal`] replaces it
//! by a private mapping of the file. The writes of a run are then private copies, which
//! [`Memory::restore`] drops.

use std::cell::Cell;

/// Total size in bytes.
const BYTES: usize = 64 << 20;

/// The memory; it is handed out from its start.
#[derive(Debug)]
pub struct Memory {
    start: usize,
    used: Cell<usize>,
    /// Bytes that were in use when the memory was sealed.
    kept: Cell<usize>,
    file: i32,
}

fn map(at: usize, file: i32, flags: i32) -> usize {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: the mapping is new, or replaces our own mapping.
    let start = unsafe { libc::mmap(at as *mut _, BYTES, access, flags | fixed, file, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start as usize
}

impl Memory {
    /// Fresh memory, all zero.
    pub fn new() -> Self {
        // SAFETY: creates a file that only this value uses.
        let file = unsafe { libc::memfd_create(c"model".as_ptr(), 0) };
        // SAFETY: only this value uses the file.
        assert!(file >= 0 && unsafe { libc::ftruncate(file, BYTES as _) } == 0);
        Self {
            start: map(0, file, libc::MAP_SHARED),
            used: Cell::new(0),
            kept: Cell::new(0),
            file,
        }
    }

    /// `bytes` bytes, aligned to a power of two, that no other call has returned.
    /// Makes the present content of the memory the start of each run.
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

    /// Discards all writes since the memory was sealed.
    pub fn restore(&self) {
        // SAFETY: the mapping is ours, and no thread uses it between two runs.
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
        // SAFETY: mapping and file are ours, and no thread uses them any longer.
        unsafe {
            libc::munmap(self.start as *mut _, BYTES);
            libc::close(self.file);
        }
    }
}
