//! Where the lines of a report about a debugged cache go.
//!
//! | the environment names a folder for traces | lines go to |
//! |---|---|
//! | no | standard error, with raw addresses |
//! | yes, and the process can write there | `<pid>.trace` in it; its reader names the addresses |
//! | yes, but it cannot: another root, a filter, a limit of files | standard error |
//!
//! The reader needs to know where code lies. So the executable lines of `/proc/self/maps` go in
//! front of the first line, and again when `callers` found new code:
//!
//! ```text
//! @maps
//! @map 55d4b3c46000-55d4b3c47000 r-xp 00001000 fe:00 42    /home/me/program
//! ```
//!
//! [`prepare`] is called at set-up, the rest by any thread. The file is opened for each line: the
//! program keeps no descriptor of ours. Lines are appended whole.

use core::cell::UnsafeCell;
use core::fmt::{self, Arguments, Write};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use crate::environment::environment;
use crate::message::{Text, with_line};
use crate::{callers, start, sys};

/// Longest path of a folder for traces, in bytes.
const FOLDER_BYTES: usize = 1024;

/// The folder; a copy, because programs may overwrite their environment.
struct Folder {
    bytes: UnsafeCell<[u8; FOLDER_BYTES]>,
    len: AtomicUsize,
}

// SAFETY: the bytes are written before `len`, once, and only read after that.
unsafe impl Sync for Folder {}

static FOLDER: Folder = Folder {
    bytes: UnsafeCell::new([0; FOLDER_BYTES]),
    len: AtomicUsize::new(0),
};

/// Which maps were written: the process in the upper half, the number of the maps in the lower.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Reads the folder's name from an environment variable. Call it once, at set-up.
pub fn prepare(variable: &str) {
    let folder = environment(variable).unwrap_or_default();
    // Relaxed: set-up runs on one thread.
    if folder.is_empty() || folder.len() > FOLDER_BYTES || FOLDER.len.load(Relaxed) != 0 {
        return;
    }
    // SAFETY: nobody reads the bytes while `len` is 0.
    unsafe { (&mut *FOLDER.bytes.get())[..folder.len()].copy_from_slice(folder) };
    // Release: publishes the bytes.
    FOLDER.len.store(folder.len(), Release);
}

fn folder() -> Option<&'static [u8]> {
    // Acquire: pairs with `prepare`.
    let len = FOLDER.len.load(Acquire);
    // SAFETY: written before `len`, and never again.
    (len > 0).then(|| unsafe { &(&*FOLDER.bytes.get())[..len] })
}

/// Writes a line to where reports go.
#[cold]
#[inline(never)]
pub(crate) fn report(message: Arguments<'_>) {
    with_line(message, |line| {
        if !write_to_file(line) {
            sys::write_all(libc::STDERR_FILENO, line);
        }
    });
}

/// Appends to the file of traces. False if there is none.
fn write_to_file(line: &[u8]) -> bool {
    let Some(folder) = folder() else {
        return false;
    };
    // A write beyond such a limit would end the process by a signal.
    if start::file_bytes() != usize::MAX {
        return false;
    }
    let pid = sys::getpid();
    let mut path = Text::<{ FOLDER_BYTES + 32 }>::new();
    path.push(folder);
    let _ = write!(path, "/{pid}.trace\0");
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NOFOLLOW;
    let Some(fd) = sys::open(path.as_bytes(), flags, 0o600) else {
        return false;
    };
    let maps = u64::from(pid) << 32 | u64::from(callers::reads());
    // Relaxed: two threads that write the maps write the same ones.
    if WRITTEN.swap(maps, Relaxed) != maps {
        write_maps(fd);
    }
    let done = sys::write_all(fd, line);
    sys::close(fd);
    done
}

fn write_maps(fd: libc::c_int) {
    sys::write_all(fd, b"@maps\n");
    callers::each_line_of_maps(|line| {
        let mut fields = line.split(|&b| b == b' ');
        if fields
            .nth(1)
            .is_some_and(|rights| rights.get(2) == Some(&b'x'))
        {
            let mut text = Text::<1024>::new();
            text.push(b"@map ");
            text.push(line);
            text.push(b"\n");
            sys::write_all(fd, text.as_bytes());
        }
    });
}

/// Text that goes to where reports go, line by line. An unfinished line goes when it is dropped.
pub struct Lines(Text<1024>);

impl Lines {
    /// Nothing written yet.
    pub const fn new() -> Self {
        Self(Text::new())
    }

    fn end_line(&mut self) {
        if let Ok(line) = core::str::from_utf8(self.0.as_bytes()) {
            report(format_args!("{line}"));
        }
        self.0 = Text::new();
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive('\n') {
            self.0.push(part.trim_end_matches('\n').as_bytes());
            if part.ends_with('\n') {
                self.end_line();
            }
        }
        Ok(())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.0.as_bytes().is_empty() {
            self.end_line();
        }
    }
}
