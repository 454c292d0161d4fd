//! The folders with the sockets of brokers. Each is private to one user.

use nix::unistd::geteuid;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most sockets of dead brokers that one start removes.
const SWEPT_MAX: usize = 64;

/// The folders, the best first.
pub fn all() -> Vec<PathBuf> {
    let uid = geteuid();
    let variable = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut folders = Vec::new();
    if let Some(runtime) = variable.filter(|path| path.is_absolute()) {
        folders.push(runtime.join("uslub"));
    }
    folders.push(PathBuf::from(format!("/run/user/{uid}/uslub")));
    folders.push(PathBuf::from(format!("/tmp/uslub-{uid}")));
    folders.dedup();
    folders
}

/// The socket in a folder of the broker with a number.
pub fn socket(folder: &Path, pid: i32) -> PathBuf {
    folder.join(format!("{pid}.sock"))
}

/// Creates a folder that only this user can enter; false if it is not such a folder.
pub fn create(folder: &Path) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(folder);
    is_private(folder)
}

/// Whether only this user can enter a folder.
pub fn is_private(folder: &Path) -> bool {
    // Not through a link: another user may have made it.
    fs::symlink_metadata(folder).is_ok_and(|meta| {
        meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0
    })
}

/// Removes sockets of brokers that were killed.
pub fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut swept = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_suffix(".sock").and_then(|n| n.parse().ok());
        let is_dead = |pid: i32| !Path::new(&format!("/proc/{pid}")).exists();
        if swept < SWEPT_MAX && pid.is_some_and(is_dead) {
            swept += usize::from(fs::remove_file(entry.path()).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_private_folder_counts() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        assert!(create(&folder) && create(&folder));
        fs::set_permissions(&folder, Permissions::from_mode(0o750)).unwrap();
        assert!(!create(&folder), "its group can enter it");
        let link = root.path().join("b");
        symlink(root.path(), &link).unwrap();
        assert!(!create(&link), "a link");
        assert!(!create(&root.path().join("c/d")), "no parent");
    }

    #[test]
    fn sockets_of_the_dead_are_swept() {
        let root = tempfile::tempdir().unwrap();
        let own = std::process::id() as i32;
        // Above the largest number of a process.
        let names = [1 << 23, own].map(|pid| socket(root.path(), pid));
        for name in &names {
            fs::write(name, "").unwrap();
        }
        fs::write(root.path().join("notes"), "").unwrap();
        sweep(root.path());
        assert!(!names[0].exists() && names[1].exists());
        assert!(root.path().join("notes").exists());
    }
}
