//! System calls on files. Paths end in a zero byte.
//!
//! As for all of [`sys`](crate::sys), any thread may call, in a signal handler too.

use super::call;

/// Writes all of `bytes` to a file descriptor; false after an error.
pub fn write_all(fd: libc::c_int, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: reads the bytes only.
        let n = unsafe {
            call(
                libc::SYS_write,
                [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0],
            )
        };
        match n {
            1.. => bytes = &bytes[n as usize..],
            _ if n == -(libc::EINTR as isize) => {}
            _ => return false,
        }
    }
    true
}

/// Opens a file whose path ends in a zero byte.
pub fn open(path: &[u8], flags: libc::c_int, mode: libc::mode_t) -> Option<libc::c_int> {
    assert_eq!(path.last(), Some(&0));
    // SAFETY: the path is a C string.
    let fd = unsafe {
        call(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                (flags | libc::O_CLOEXEC) as usize,
                mode as usize,
                0,
                0,
            ],
        )
    };
    (fd >= 0).then_some(fd as libc::c_int)
}

/// Reads up to `into.len()` bytes.
pub fn read(fd: libc::c_int, into: &mut [u8]) -> Option<usize> {
    // SAFETY: writes into the slice only.
    let n = unsafe {
        call(
            libc::SYS_read,
            [fd as usize, into.as_mut_ptr() as usize, into.len(), 0, 0, 0],
        )
    };
    usize::try_from(n).ok()
}

/// Closes a file descriptor.
pub fn close(fd: libc::c_int) {
    // SAFETY: the caller opened it.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// The inode number of a file. The path ends in a zero byte.
pub fn inode(path: &[u8]) -> Option<u64> {
    let fd = open(path, libc::O_RDONLY, 0)?;
    // SAFETY: all-zero is a valid value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let into = &raw mut stat as usize;
    // SAFETY: writes the record only.
    let result = unsafe { call(libc::SYS_fstat, [fd as usize, into, 0, 0, 0, 0]) };
    close(fd);
    (result == 0).then_some(stat.st_ino)
}

/// The kind of the file at a path, for example `S_IFDIR`; otherwise the system's error number. The
/// path ends in a zero byte. A link means what it leads to.
pub fn kind(path: &[u8]) -> Result<libc::mode_t, libc::c_int> {
    kind_with(path, 0)
}

/// As [`kind`], but a link is a link.
pub fn kind_itself(path: &[u8]) -> Result<libc::mode_t, libc::c_int> {
    kind_with(path, libc::AT_SYMLINK_NOFOLLOW)
}

fn kind_with(path: &[u8], flags: libc::c_int) -> Result<libc::mode_t, libc::c_int> {
    assert_eq!(path.last(), Some(&0));
    // SAFETY: all-zero is a valid value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let (at, into) = (libc::AT_FDCWD as usize, &raw mut stat as usize);
    let arguments = [at, path.as_ptr() as usize, into, flags as usize, 0, 0];
    // SAFETY: the path is a C string; writes the record only.
    match unsafe { call(libc::SYS_newfstatat, arguments) } {
        0 => Ok(stat.st_mode & libc::S_IFMT),
        error => Err(-error as libc::c_int),
    }
}

/// Whether this process may create files in a folder whose path ends in a zero byte; otherwise the
/// system's error number.
pub fn may_create_in(folder: &[u8]) -> Result<(), libc::c_int> {
    if kind(folder)? != libc::S_IFDIR {
        return Err(libc::ENOTDIR);
    }
    let (at, path) = (libc::AT_FDCWD as usize, folder.as_ptr() as usize);
    let mode = (libc::W_OK | libc::X_OK) as usize;
    // SAFETY: the path is a C string.
    match unsafe { call(libc::SYS_faccessat, [at, path, mode, 0, 0, 0]) } {
        0 => Ok(()),
        error => Err(-error as libc::c_int),
    }
}

/// Calls `with` with the path of the current folder, if the system tells it.
pub fn current_folder(with: impl FnOnce(&[u8])) {
    let mut path = [0u8; 4096];
    let into = path.as_mut_ptr() as usize;
    // SAFETY: writes the array only.
    let length = unsafe { call(libc::SYS_getcwd, [into, path.len(), 0, 0, 0, 0]) };
    if let Some(path) = usize::try_from(length - 1)
        .ok()
        .and_then(|end| path.get(..end))
    {
        with(path);
    }
}

/// Maps the first `bytes` bytes of a file, shared with all others that map it.
pub fn map_shared(fd: libc::c_int, bytes: usize) -> Option<usize> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: a fresh mapping harms nobody.
    let result = unsafe {
        call(
            libc::SYS_mmap,
            [
                0,
                bytes,
                protection,
                libc::MAP_SHARED as usize,
                fd as usize,
                0,
            ],
        )
    };
    (result > 0).then_some(result as usize)
}

/// Makes a file of `bytes` zeroes, allocates its disk space, and maps it shared. The path ends in a
/// zero byte. An existing file of this name is removed first.
pub fn map_new_file(path: &[u8], bytes: usize) -> Option<usize> {
    // Other processes may have mapped the old file, so it is unlinked, not changed.
    unlink(path);
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let fd = open(path, flags, 0o600)?;
    // SAFETY: a file of ours, and a fresh mapping of it.
    let result = unsafe {
        match call(libc::SYS_fallocate, [fd as usize, 0, 0, bytes, 0, 0]) {
            0 => {
                let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
                let shared = libc::MAP_SHARED as usize;
                call(
                    libc::SYS_mmap,
                    [0, bytes, protection, shared, fd as usize, 0],
                )
            }
            error => error,
        }
    };
    close(fd);
    (result > 0).then_some(result as usize)
}

/// Removes a file, if there is one; the path ends in a zero byte.
pub fn unlink(path: &[u8]) {
    assert_eq!(path.last(), Some(&0));
    let at = libc::AT_FDCWD as usize;
    // SAFETY: the path is a C string.
    unsafe { call(libc::SYS_unlinkat, [at, path.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Renames a file; both paths end in a zero byte.
pub fn rename(from: &[u8], to: &[u8]) -> bool {
    assert!(from.last() == Some(&0) && to.last() == Some(&0));
    let at = libc::AT_FDCWD as usize;
    // SAFETY: both are C strings.
    unsafe {
        call(
            libc::SYS_renameat2,
            [at, from.as_ptr() as usize, at, to.as_ptr() as usize, 0, 0],
        ) == 0
    }
}
