//! Files that the user names for a result. What was in such a file stays until the result is there.
//!
//! | step | the file |
//! |---|---|
//! | [`Destination::open`], before the work | is created if it is absent, and keeps what it holds |
//! | [`Destination::replace`] or [`Destination::empty`] | loses what it held |
//! | the end without these | is removed, if this run created it |
//!
//! Only a regular file is removed: never a link, a pipe or a device.

use crate::failure::Failure;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{Resource, getrlimit};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that a result will be written to.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    file: File,
    /// Whether this run created it.
    is_new: bool,
    /// Whether its content is this run's.
    is_ours: Cell<bool>,
}

impl Destination {
    /// Opens a file to write, or creates it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with(path, 0)
    }

    /// The same, for a file that must be read again: a pipe is refused.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or is a pipe.
    pub fn lasting(path: &Path) -> io::Result<Self> {
        if kind(path) == Some("a pipe") {
            return Err(io::Error::other("a pipe cannot hold a recording"));
        }
        // Not even a pipe that comes just now makes the command wait.
        Self::with(path, libc::O_NONBLOCK)
    }

    fn with(path: &Path, flags: i32) -> io::Result<Self> {
        let mut options = File::options();
        options.write(true).custom_flags(flags);
        let (file, is_new) = match options.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (options.create(true).open(path)?, true)
            }
            opened => (opened?, false),
        };
        Ok(Destination {
            path: path.to_owned(),
            file,
            is_new,
            is_ours: Cell::new(false),
        })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Drops what the file held; the result begins.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn empty(&self) -> io::Result<&File> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.is_ours.set(true);
        Ok(&self.file)
    }

    /// Replaces what the file held. If there is no room, it keeps that.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn replace(&self, content: &[u8]) -> io::Result<()> {
        self.make_room(content.len() as u64)?;
        let mut file = &self.file;
        file.write_all(content)?;
        if file.metadata()?.is_file() {
            file.set_len(content.len() as u64)?;
        }
        self.is_ours.set(true);
        Ok(())
    }

    /// Asks for room for a content of `length` bytes, where the file system can answer.
    fn make_room(&self, length: u64) -> io::Result<()> {
        let meta = self.file.metadata()?;
        if !meta.is_file() || length == 0 {
            return Ok(());
        }
        // The limit of `ulimit -f` holds for writing, not for asking.
        if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| length > limit) {
            return Err(Errno::EFBIG.into());
        }
        let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match fallocate(&self.file, keep, 0, length as i64) {
            Err(error @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)) => {
                // Gives back what there was.
                let _ = self.file.set_len(meta.len());
                Err(error.into())
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if !self.is_new || self.is_ours.get() {
            return;
        }
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        // The name may be a link, or stand for another file by now.
        let named = fs::symlink_metadata(&self.path).ok();
        let named = named.filter(|meta| meta.is_file() && meta.len() == 0);
        let opened = self.file.metadata().ok();
        if named.zip(opened).is_some_and(|(a, b)| same(a, b)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Replaces what a file holds, or creates it.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    Destination::open(path)?.replace(content)
}

/// The same for the results of a measurement.
///
/// # Errors
///
/// If it cannot be written.
pub fn save(path: &Path, text: &str) -> Result<(), Failure> {
    write(path, text.as_bytes()).map_err(|error| refused(path, &error))
}

/// Whether a file can be written, before a measurement; leaves it as it is.
///
/// # Errors
///
/// If it cannot.
pub fn check(path: &Path) -> Result<(), Failure> {
    let opened = Destination::open(path).map(drop);
    opened.map_err(|error| refused(path, &error))
}

/// Opens the input of a program.
///
/// # Errors
///
/// If it cannot be read, or is a folder or a pipe.
pub fn source(path: &Path) -> io::Result<File> {
    match kind(path) {
        // Each run reads it from its begin.
        Some(kind @ ("a folder" | "a pipe")) => Err(io::Error::other(format!("it is {kind}"))),
        _ => File::open(path),
    }
}

/// What a name stands for, if that is no regular file: reading it may never end.
pub fn kind(path: &Path) -> Option<&'static str> {
    let kind = fs::metadata(path).ok()?.file_type();
    let kinds = [
        (kind.is_dir(), "a folder"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
    ];
    kinds.iter().find(|(is, _)| *is).map(|&(_, name)| name)
}

/// The failure if a file cannot be written.
fn refused(path: &Path, error: &io::Error) -> Failure {
    Failure::ours(
        format!("{} cannot be written: {error}", path.display()),
        "name a file in a folder that you may write to",
    )
}

/// Whether two names stand for the same file.
pub fn is_same(a: &Path, b: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((place(a), place(b)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_keeps_its_content_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keep");
        fs::write(&path, "precious").unwrap();
        check(&path).unwrap();
        drop(Destination::lasting(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        Destination::open(&path).unwrap().empty().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert!(is_same(&path, &folder.path().join(".").join("keep")));
        assert!(!is_same(&path, folder.path()));
        assert!(source(&path).is_ok());
        let error = source(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "it is a folder");
    }

    #[test]
    fn only_a_file_of_this_run_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        check(&at("new")).unwrap();
        assert!(!at("new").exists());
        Destination::open(&at("used")).unwrap().empty().unwrap();
        assert!(at("used").exists());
        symlink("target", at("link")).unwrap();
        check(&at("link")).unwrap();
        assert!(at("link").is_symlink());
        assert!(check(folder.path()).is_err() && check(&at("no/such")).is_err());
        // The name stands for another file by now.
        let opened = Destination::open(&at("taken")).unwrap();
        fs::remove_file(at("taken")).unwrap();
        fs::write(at("taken"), "").unwrap();
        let kept = File::open(at("taken")).unwrap();
        drop(opened);
        assert!(at("taken").exists() && kept.metadata().unwrap().nlink() == 1);
    }

    #[test]
    fn a_pipe_holds_no_recording_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = Destination::lasting(&path).unwrap_err().to_string();
        assert_eq!(error, "a pipe cannot hold a recording");
        assert!(path.exists());
        assert_eq!(kind(&path), Some("a pipe"));
        assert_eq!(kind(folder.path()), Some("a folder"));
        assert_eq!(kind(&folder.path().join("no")), None);
    }

    #[test]
    fn without_room_the_old_content_stays() {
        use nix::sys::resource::setrlimit;
        const CHILD: &str = "USLUB_TEST_NO_ROOM";
        let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("keep");
            fs::write(&path, "precious").unwrap();
            let name = "destination::tests::without_room_the_old_content_stays";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            // What the test itself says would count, if it went to a file.
            let null = std::process::Stdio::null;
            let child = child.stdout(null()).stderr(null());
            let child = child.env(CHILD, &path).args(["--exact", name]);
            assert!(child.status().unwrap().success());
            assert_eq!(fs::read(&path).unwrap(), b"precious");
            return;
        };
        crate::sys::survive_file_limit();
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, 100, hard).unwrap();
        let error = write(&path, &[b'x'; 5000]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }
}
