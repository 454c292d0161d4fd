//! What the kernel left for the program at the start of its stack.
//!
//! ```text
//!  __libc_stack_end -> argc | arguments | 0 | environment | 0 | auxiliary vector
//! ```
//!
//! A loader that is run as a command (`ld.so program`) removes its own arguments. Those of glibc
//! before 2.35 leave `__libc_stack_end` where the stack began, and reuse the words from there up to
//! the new number of arguments. So the layout is looked for from there on.
//!
//! The C library's `getauxval` reads the same vector. Other libraries may wrap `getauxval`, and a
//! wrapper may allocate, so an allocator must not call it by name. Any thread may call.

use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use crate::thread::{call, stack_end};

/// An entry of the auxiliary vector: a key and a value.
type Entry = [usize; 2];

/// Key of the last entry.
const AT_NULL: usize = 0;
/// Every pointer is at or above this number, and every key below it.
const LEAST_POINTER: usize = 4096;
/// Words above the stack's start in which the number of arguments is looked for. The auxiliary
/// vector alone is longer.
const COUNT_OFFSETS: usize = 32;

/// The value of a key (such as [`libc::AT_SECURE`]) in the auxiliary vector; 0 if the vector lacks
/// the key.
///
/// If the C library does not say where the stack begins, the kernel is asked for the vector.
pub fn auxiliary(key: usize) -> usize {
    let strings = environment();
    if strings.is_null() {
        return asked(key);
    }
    // SAFETY: the vector follows the environment and ends with `AT_NULL`.
    unsafe {
        let mut word = strings.cast::<usize>();
        // Removed variables leave null or an old pointer between the environment's end and the
        // vector. Pointers and null lie outside of this range, and keys within it.
        while !(1..LEAST_POINTER).contains(&*word) {
            word = word.add(1);
        }
        let mut entry = word.cast::<Entry>();
        while (*entry)[0] != AT_NULL {
            if (*entry)[0] == key {
                return (*entry)[1];
            }
            entry = entry.add(1);
        }
    }
    0
}

/// The environment's strings as the kernel left them; null if they cannot be found.
pub fn environment() -> *mut *mut libc::c_char {
    static KNOWN: AtomicPtr<*mut libc::c_char> = AtomicPtr::new(core::ptr::null_mut());
    // Relaxed, both: every thread finds the same. Later the program may change its arguments.
    let known = KNOWN.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let end = stack_end();
    // SAFETY: the C library's variable, if it has one.
    if end.is_null() || unsafe { (*end).is_null() } {
        return core::ptr::null_mut();
    }
    // SAFETY: the stack's start. More words than these are above it.
    let found = unsafe {
        let start = *end;
        let mut counts = (0..COUNT_OFFSETS).map(|offset| start.add(offset));
        let count = counts.find(|count| has_arguments(*count)).unwrap_or(start);
        count.add(*count + 2) as *mut *mut libc::c_char
    };
    // Relaxed: as above.
    KNOWN.store(found, Relaxed);
    found
}

/// Whether the word is the number of pointers behind it that null follows.
///
/// # Safety
///
/// A word of the stack's start, below the auxiliary vector.
unsafe fn has_arguments(count: *const usize) -> bool {
    // SAFETY: the words end with null at the latest in the auxiliary vector.
    unsafe {
        let mut n = 0;
        while *count.add(n + 1) >= LEAST_POINTER {
            n += 1;
        }
        n > 0 && n == *count && *count.add(n + 1) == 0
    }
}

/// As [`auxiliary`], from the kernel's copy of the vector.
fn asked(key: usize) -> usize {
    const PATH: &core::ffi::CStr = c"/proc/self/auxv";
    let mut entries = [[AT_NULL; 2]; 64];
    // SAFETY: the path is a C string, and the kernel only writes into the array.
    let read = unsafe {
        let at = libc::AT_FDCWD as usize;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let fd = call(
            libc::SYS_openat,
            [at, PATH.as_ptr() as usize, flags, 0, 0, 0],
        );
        if fd < 0 {
            return 0;
        }
        let (fd, bytes) = (fd as usize, size_of_val(&entries));
        let array = entries.as_mut_ptr() as usize;
        let read = call(libc::SYS_read, [fd, array, bytes, 0, 0, 0]);
        call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        read.max(0) as usize / size_of::<Entry>()
    };
    let found = entries[..read].iter().find(|entry| entry[0] == key);
    found.map_or(0, |entry| entry[1])
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn both_ways_tell_what_the_c_library_tells() {
        for key in [libc::AT_PAGESZ, libc::AT_SECURE, libc::AT_SYSINFO_EHDR] {
            // SAFETY: only looks a number up.
            let expected = unsafe { libc::getauxval(key) } as usize;
            assert_eq!(auxiliary(key as usize), expected);
            assert_eq!(asked(key as usize), expected);
        }
        assert_eq!(auxiliary(usize::MAX), 0);
        assert_eq!(asked(usize::MAX), 0);
    }

    #[test]
    fn the_number_of_arguments_is_told_from_other_words() {
        let counts = |words: &[usize]| {
            (0..words.len() - 2)
                // SAFETY: the words end with null.
                .filter(|at| unsafe { has_arguments(words.as_ptr().add(*at)) })
                .collect::<Vec<_>>()
        };
        let p = 0x7fff_ffff_e698;
        // As the kernel leaves it; then with words that a loader reused.
        assert_eq!(counts(&[3, p, p, p, 0, p, p, 0, 33, p, 0, 0]), [0]);
        assert_eq!(counts(&[p, 0, 0, p, p, 2, p, p, 0, p, 0, 33, p, 0, 0]), [5]);
        assert_eq!(counts(&[2, 0, 1, p, p, 2, p, p, 0, p, 0, 33, p, 0, 0]), [5]);
    }

    #[test]
    fn the_vector_is_found_behind_removed_variables() {
        let strings = environment();
        let expected = auxiliary(libc::AT_PAGESZ as usize);
        assert_ne!(expected, 0);
        if cfg!(target_env = "musl") {
            // It does not say where the stack begins.
            return assert!(strings.is_null());
        }
        // SAFETY: the other test does not read the environment's strings, which end with null.
        unsafe {
            let (first, second) = (*strings, *strings.add(1));
            assert!(!second.is_null());
            *strings = core::ptr::null_mut();
            *strings.add(1) = core::ptr::null_mut();
            assert_eq!(auxiliary(libc::AT_PAGESZ as usize), expected);
            (*strings, *strings.add(1)) = (first, second);
        }
    }
}
