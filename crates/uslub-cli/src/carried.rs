//! The library that the command carries inside, for an installation of one file.
//!
//! The loader preloads files, so [`unpack`] writes the library to a folder of this user. The file
//! name holds a hash of the contents: two versions of the command do not disturb each other.
//!
//! A preloaded file runs with the rights of the program. Hence the folder and the file must belong
//! to this user, other users may not write to them, and the contents must be those of the command.
//! A new file gets its name when it is complete.
//!
//! | folder, the first that serves | when |
//! |---|---|
//! | `$XDG_CACHE_HOME/uslub` | if the variable is set |
//! | `/var/cache/uslub` | for root, so that a program that changes its user can read it |
//! | `$HOME/.cache/uslub` | the usual place |
//! | `uslub-UID` in the folder for temporary files | without a home that can be written |

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Uid, geteuid};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bits of a mode that let others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The part of the library that the loader maps, or nothing.
#[cfg(carries_library)]
static LIBRARY: [u8; LENGTH] = match IMAGE.first_chunk() {
    Some(part) => *part,
    None => [0; LENGTH],
};
#[cfg(carries_library)]
const IMAGE: &[u8] = include_bytes!(env!("USLUB_CARRIED"));
#[cfg(carries_library)]
const LENGTH: usize = loaded_length(IMAGE);
#[cfg(not(carries_library))]
static LIBRARY: [u8; 0] = [];

/// Whether this build carries a library.
pub fn is_there() -> bool {
    !LIBRARY.is_empty()
}

/// The path of the carried library, which is written first if it is not there yet.
///
/// # Errors
///
/// If no folder serves: for each folder, why not.
pub fn unpack() -> Result<PathBuf, Vec<String>> {
    unpack_in(&folders(), &without_sections(&LIBRARY))
}

/// The folders to try, in order.
fn folders() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let chosen = variable("XDG_CACHE_HOME");
    let root = geteuid().is_root().then(|| PathBuf::from("/var/cache"));
    let home = variable("HOME").map(|home| home.join(".cache"));
    let named = [chosen, root, home].into_iter().flatten();
    let mut folders: Vec<_> = named
        .filter(|path| path.is_absolute())
        .map(|path| path.join("uslub"))
        .collect();
    folders.push(std::env::temp_dir().join(format!("uslub-{}", geteuid())));
    folders
}

fn unpack_in(folders: &[PathBuf], library: &[u8]) -> Result<PathBuf, Vec<String>> {
    let name = format!("libuslub_malloc-{:016x}.so", hash(library));
    let mut refusals = Vec::new();
    for folder in folders {
        match prepare(folder).and_then(|()| place(folder, &name, library)) {
            Ok(path) => return Ok(path),
            Err(error) => refusals.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(refusals)
}

/// Creates the folder, if it is absent, and checks that it is ours alone.
fn prepare(folder: &Path) -> io::Result<()> {
    let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
    if let Some(parent) = folder.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
    }
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = folder.symlink_metadata()?;
    if !found.is_dir() {
        return Err(io::Error::other("it is no folder"));
    }
    check_owner(&found)?;
    let flags = statvfs(folder)?.flags();
    if flags.contains(FsFlags::ST_NOEXEC) {
        return Err(io::Error::other("its file system forbids execution"));
    }
    Ok(())
}

/// Refuses what another user owns or may write to.
fn check_owner(found: &fs::Metadata) -> io::Result<()> {
    if Uid::from_raw(found.uid()) != geteuid() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::other("other users may write to it"));
    }
    Ok(())
}

/// The file `name` in `folder` with the contents `library`.
fn place(folder: &Path, name: &str, library: &[u8]) -> io::Result<PathBuf> {
    let path = folder.join(name);
    if is_current(&path, library) {
        return Ok(path);
    }
    let mut file = tempfile::Builder::new()
        .prefix(".unpacked-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)?;
    file.write_all(library)?;
    file.persist(&path)?;
    Ok(path)
}

/// Whether `path` is a file of ours with these contents.
fn is_current(path: &Path, library: &[u8]) -> bool {
    let read = || -> io::Result<bool> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file: File = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?;
        let found = file.metadata()?;
        check_owner(&found)?;
        let mut bytes = Vec::with_capacity(library.len() + 1);
        let most = library.len() as u64 + 1;
        Read::by_ref(&mut file).take(most).read_to_end(&mut bytes)?;
        Ok(found.is_file() && bytes == library)
    };
    read().unwrap_or(false)
}

/// A hash for a name: FNV-1a, eight bytes at a time.
fn hash(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    words.fold(0xcbf2_9ce4_8422_2325, step)
}

/// Offset of the section table's offset in an ELF header, its number of entries, and the index of
/// the table of names.
const SECTION_OFFSET: std::ops::Range<usize> = 0x28..0x30;
const SECTION_COUNTS: std::ops::Range<usize> = 0x3c..0x40;

/// The library without its section table, which lies behind the part that is mapped.
fn without_sections(library: &[u8]) -> Vec<u8> {
    let mut bytes = library.to_vec();
    for range in [SECTION_OFFSET, SECTION_COUNTS] {
        if let Some(field) = bytes.get_mut(range) {
            field.fill(0);
        }
    }
    bytes
}

/// Where the last segment that the loader maps ends in a file of 64-bit ELF; 0 for other files.
#[cfg_attr(not(any(carries_library, test)), expect(dead_code))]
const fn loaded_length(image: &[u8]) -> usize {
    const LOAD: u64 = 1;
    if image.len() < 64 || !matches!(image.first_chunk(), Some(b"\x7fELF\x02\x01")) {
        return 0;
    }
    let (mut header, size) = (number(image, 0x20, 8), number(image, 0x36, 2));
    let (mut left, mut end) = (number(image, 0x38, 2), 0);
    while left > 0 && header + size <= image.len() as u64 {
        if number(image, header, 4) == LOAD {
            let last = number(image, header + 8, 8) + number(image, header + 32, 8);
            end = if last > end { last } else { end };
        }
        header += size;
        left -= 1;
    }
    if end > image.len() as u64 {
        0
    } else {
        end as usize
    }
}

/// The number of `bytes` bytes at `place`.
const fn number(image: &[u8], place: u64, bytes: u64) -> u64 {
    let (mut value, mut i) = (0, bytes);
    while i > 0 {
        i -= 1;
        value = value << 8 | image[(place + i) as usize] as u64;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_file_is_written_once_and_mended_if_it_was_changed() {
        let root = tempfile::tempdir().unwrap();
        let folders = [root.path().join("deep/uslub")];
        let path = unpack_in(&folders, b"library").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"library");
        let first = path.metadata().unwrap().ino();
        assert_eq!(unpack_in(&folders, b"library").unwrap(), path);
        assert_eq!(path.metadata().unwrap().ino(), first);
        fs::write(&path, "librarx").unwrap();
        assert_eq!(unpack_in(&folders, b"library").unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"library");
        assert_ne!(unpack_in(&folders, b"another").unwrap(), path);
        let left = fs::read_dir(&folders[0]).unwrap().count();
        assert_eq!(left, 2, "nothing but two libraries");
    }

    #[test]
    fn a_folder_that_others_can_write_to_gives_way_to_the_next() {
        let root = tempfile::tempdir().unwrap();
        let [open, linked, good] = ["open", "linked", "good"].map(|name| root.path().join(name));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        symlink(root.path(), &linked).unwrap();
        let path = unpack_in(&[open.clone(), linked.clone(), good.clone()], b"x").unwrap();
        assert!(path.starts_with(&good));
        let refusals = unpack_in(&[open, linked], b"x").unwrap_err();
        assert!(refusals[0].ends_with("other users may write to it"));
        assert!(refusals[1].ends_with("it is no folder"));
    }

    #[test]
    fn a_link_in_place_of_the_file_is_replaced_and_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let folders = [root.path().join("uslub")];
        let path = unpack_in(&folders, b"x").unwrap();
        let other = root.path().join("other");
        fs::rename(&path, &other).unwrap();
        symlink(&other, &path).unwrap();
        unpack_in(&folders, b"x").unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn what_the_loader_maps_of_this_program_ends_inside_of_it() {
        let image = fs::read("/proc/self/exe").unwrap();
        let length = loaded_length(&image);
        assert!(length > 10_000 && length < image.len(), "{length}");
        assert_eq!(loaded_length(b"#!/bin/sh"), 0);
        assert_eq!(loaded_length(&image[..length / 2]), 0);
        let short = without_sections(&image[..length]);
        assert_eq!((number(&short, 0x28, 8), number(&short, 0x3c, 4)), (0, 0));
        assert_eq!(loaded_length(&short), length);
    }
}
