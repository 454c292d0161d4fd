//! Detects set-user-ID, set-group-ID and file capabilities. `program` calls [`elevation`].
//!
//! For a program with such privileges the kernel sets `AT_SECURE`. The loader then preloads only
//! from the system's folders.
//!
//! The rule is the kernel's: a process is "secure" if its effective and real ids differ after the
//! exec, or if a user other than root gains capabilities. This module ignores the bits that the
//! kernel ignores (on a `nosuid` mount, under `no_new_privs`).

use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{getegid, geteuid, getgid, getuid};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use xattr::FileExt;

/// The privileges that a file gives to a process that executes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileRights {
    /// Mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether the file has file capabilities.
    pub capabilities: bool,
    /// Whether the kernel ignores the privileges of this file.
    pub ignored: bool,
}

/// The ids of the process that executes the file.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Real user id.
    pub uid: u32,
    /// Effective user id.
    pub euid: u32,
    /// Real group id.
    pub gid: u32,
    /// Effective group id.
    pub egid: u32,
}

/// The privilege that a program gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elevation {
    /// It runs as this user.
    SetUser(u32),
    /// It runs as this group.
    SetGroup(u32),
    /// It gains capabilities.
    Capabilities,
    /// The effective and real ids of this process differ already.
    Ours,
}

impl Elevation {
    /// The remedy.
    pub fn hint(self) -> String {
        match self {
            Elevation::SetUser(uid) => {
                format!(
                    "run uslub as user {uid}, or run a copy of the program without the set-user-ID bit"
                )
            }
            Elevation::SetGroup(_) => {
                "run a copy of the program without the set-group-ID bit".to_owned()
            }
            Elevation::Capabilities => {
                "run uslub as root, or run a copy of the program (a copy has no file capabilities)"
                    .to_owned()
            }
            Elevation::Ours => "start uslub from a process with one user and one group".to_owned(),
        }
    }
}

impl fmt::Display for Elevation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elevation::SetUser(uid) => write!(f, "is set-user-ID (it runs as user {uid})"),
            Elevation::SetGroup(gid) => write!(f, "is set-group-ID (it runs as group {gid})"),
            Elevation::Capabilities => write!(f, "has file capabilities"),
            Elevation::Ours => write!(f, "inherits effective ids that differ from the real ones"),
        }
    }
}

/// The privilege of a program with the rights `file` when `caller` executes it.
pub fn elevation(file: FileRights, caller: Caller) -> Option<Elevation> {
    let set_user = !file.ignored && file.mode & libc::S_ISUID != 0;
    // Without the group's execute bit, the set-group-ID bit has another meaning.
    let set_group_bits = libc::S_ISGID | libc::S_IXGRP;
    let set_group = !file.ignored && file.mode & set_group_bits == set_group_bits;
    let euid = if set_user { file.uid } else { caller.euid };
    let egid = if set_group { file.gid } else { caller.egid };
    if euid != caller.uid {
        return Some(if set_user {
            Elevation::SetUser(euid)
        } else {
            Elevation::Ours
        });
    }
    if egid != caller.gid {
        return Some(if set_group {
            Elevation::SetGroup(egid)
        } else {
            Elevation::Ours
        });
    }
    let gains = file.capabilities && !file.ignored && caller.uid != 0;
    gains.then_some(Elevation::Capabilities)
}

impl Caller {
    /// This process.
    pub fn current() -> Self {
        Caller {
            uid: getuid().as_raw(),
            euid: geteuid().as_raw(),
            gid: getgid().as_raw(),
            egid: getegid().as_raw(),
        }
    }
}

impl FileRights {
    /// The rights that `file` gives. An unreadable attribute counts as absent.
    pub fn of(file: &File) -> Self {
        let Ok(metadata) = file.metadata() else {
            return FileRights::default();
        };
        let no_suid = fstatvfs(file).is_ok_and(|v| v.flags().contains(FsFlags::ST_NOSUID));
        let no_new_privileges = nix::sys::prctl::get_no_new_privs().unwrap_or(false);
        let capabilities = file.get_xattr("security.capability");
        FileRights {
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            capabilities: capabilities.is_ok_and(|value| value.is_some()),
            ignored: no_suid || no_new_privileges,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Caller = Caller {
        uid: 1000,
        euid: 1000,
        gid: 1000,
        egid: 1000,
    };
    const ROOT: Caller = Caller {
        uid: 0,
        euid: 0,
        gid: 0,
        egid: 0,
    };

    fn file(mode: u32, uid: u32, gid: u32) -> FileRights {
        FileRights {
            mode,
            uid,
            gid,
            ..FileRights::default()
        }
    }

    #[test]
    fn plain_files_elevate_nobody() {
        assert_eq!(elevation(file(0o755, 0, 0), USER), None);
        assert_eq!(elevation(file(0o755, 0, 0), ROOT), None);
    }

    #[test]
    fn set_user_id_counts_only_when_the_user_changes() {
        assert_eq!(
            elevation(file(0o4755, 0, 0), USER),
            Some(Elevation::SetUser(0))
        );
        assert_eq!(elevation(file(0o4755, 1000, 0), USER), None);
        assert_eq!(elevation(file(0o4755, 0, 0), ROOT), None);
        assert_eq!(
            elevation(file(0o4755, 1000, 0), ROOT),
            Some(Elevation::SetUser(1000))
        );
    }

    #[test]
    fn set_group_id_needs_the_execute_bit_of_the_group() {
        assert_eq!(
            elevation(file(0o2755, 0, 5), USER),
            Some(Elevation::SetGroup(5))
        );
        assert_eq!(elevation(file(0o2745, 0, 5), USER), None);
        assert_eq!(elevation(file(0o2755, 0, 1000), USER), None);
        assert_eq!(
            elevation(file(0o2755, 0, 5), ROOT),
            Some(Elevation::SetGroup(5))
        );
    }

    #[test]
    fn capabilities_elevate_everybody_but_root() {
        let ping = FileRights {
            capabilities: true,
            ..file(0o755, 0, 0)
        };
        assert_eq!(elevation(ping, USER), Some(Elevation::Capabilities));
        assert_eq!(elevation(ping, ROOT), None);
    }

    #[test]
    fn bits_that_the_kernel_ignores_elevate_nobody() {
        let all = FileRights {
            capabilities: true,
            ignored: true,
            ..file(0o6755, 0, 0)
        };
        assert_eq!(elevation(all, USER), None);
    }

    #[test]
    fn a_process_with_two_identities_cannot_preload() {
        let mixed = Caller { euid: 0, ..USER };
        assert_eq!(elevation(file(0o755, 0, 0), mixed), Some(Elevation::Ours));
        let mixed = Caller { egid: 7, ..USER };
        assert_eq!(elevation(file(0o755, 0, 0), mixed), Some(Elevation::Ours));
    }
}
