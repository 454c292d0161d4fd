//! The watcher's side of the broker.
//!
//! | rule | why |
//! |---|---|
//! | the asking process has the same user, or is root | as for the kernel's own check |
//! | the process descends from this one | `uslub run` speaks for its program only |
//! | the process has not closed itself (`PR_SET_DUMPABLE`) | it has secrets, or changed its user |
//! | it has no right (capability) that the asking process lacks | as for the kernel's own check |
//!
//! So the broker opens what the kernel opens to a process of the same user without Yama.
//!
//! It never waits: `signals` polls [`Broker::sources`] with the signals, and calls
//! [`Broker::serve`]. At most [`WAITING_MAX`] connections may wait for their request.

use super::folder;
use super::message::{self, BYTES, FILES, Refusal};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{geteuid, getpid};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use uslub_inspect::proc_text;

/// Most connections that wait for their request.
const WAITING_MAX: usize = 8;
/// Most connections that are taken at a time: the next ones wait for the next call.
const TAKEN_MAX: usize = 16;
/// Most ancestors of a process that are looked at.
const ANCESTORS_MAX: usize = 64;

/// Opens files of descendants for commands that may not read them.
#[derive(Debug, Default)]
pub struct Broker {
    listening: Option<(UnixListener, PathBuf)>,
    waiting: VecDeque<UnixStream>,
}

impl Broker {
    /// Begins to listen, in the first folder that can be used. Without one it listens nowhere.
    pub fn start() -> Self {
        let mut folders = folder::all().into_iter();
        let listening = folders.find_map(|folder| {
            if !folder::create(&folder) {
                return None;
            }
            folder::sweep(&folder);
            let path = folder::socket(&folder, getpid().as_raw());
            // A dead process with this number may have left one.
            let _ = fs::remove_file(&path);
            let listener = UnixListener::bind(&path).ok()?;
            listener.set_nonblocking(true).ok()?;
            Some((listener, path))
        });
        Broker {
            listening,
            waiting: VecDeque::new(),
        }
    }

    /// The descriptors to poll.
    pub fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = self.listening.iter().map(|(listener, _)| listener.as_fd());
        listener.chain(self.waiting.iter().map(AsFd::as_fd))
    }

    /// Answers the requests that have arrived. Does not wait.
    pub fn serve(&mut self) {
        let Some((listener, _)) = &self.listening else {
            return;
        };
        for _ in 0..TAKEN_MAX {
            match listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        self.waiting.push_back(stream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    // No descriptor is left. A listener that stays ready would keep `signals` busy.
                    self.close();
                    break;
                }
            }
        }
        while self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.retain_mut(|stream| {
            let mut request = [0; BYTES + 1];
            match stream.read(&mut request) {
                Ok(bytes) => {
                    if let Some(pid) = message::requested(&request[..bytes]) {
                        answer(stream, pid);
                    }
                    false
                }
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
    }

    /// Stops listening, and leaves nothing behind.
    fn close(&mut self) {
        if let Some((_, path)) = self.listening.take() {
            let _ = fs::remove_file(&path);
            // Another broker may use it: then it is not empty.
            let _ = path.parent().map(fs::remove_dir);
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.close();
    }
}

/// Answers one request. A reader that has gone is no failure.
fn answer(stream: &UnixStream, pid: i32) {
    let Ok(peer) = getsockopt(stream, sockopt::PeerCredentials) else {
        return;
    };
    if peer.uid() != geteuid().as_raw() && peer.uid() != 0 {
        return;
    }
    let files = files(pid, peer.pid());
    let bytes = message::answer(files.as_ref().err().copied());
    let files = files.unwrap_or_default();
    let descriptors: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let control = if files.is_empty() { &[] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let parts = [IoSlice::new(&bytes)];
    let _ = sendmsg::<()>(stream.as_raw_fd(), &parts, control, flags, None);
}

/// The files of a process, for the process `peer`.
fn files(pid: i32, peer: i32) -> Result<Vec<OwnedFd>, Refusal> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    // The folder stays that of this process, also if another one gets its number.
    let process = format!("/proc/{pid}");
    let process = open(&*process, flags | OFlag::O_DIRECTORY, Mode::empty());
    let process = process.map_err(|_| Refusal::NoDescendant)?;
    let open = |name: &str| openat(&process, name, flags, Mode::empty());
    let system = |errno: Errno| Refusal::System(errno as i32);
    let mut status = String::new();
    let mut file = File::from(open("status").map_err(system)?);
    if file.read_to_string(&mut status).is_err() || !descends(&status) {
        return Err(Refusal::NoDescendant);
    }
    // The kernel gives the files of a process that has closed itself to the superuser, but not
    // the folder.
    let owner = fstat(&file).map_err(system)?.st_uid;
    if Some(owner) != effective(&status) {
        return Err(Refusal::Closed);
    }
    if !may_trace(peer, pid, &status) {
        return Err(Refusal::MoreRights);
    }
    let files: Result<Vec<_>, _> = FILES.iter().map(|name| open(name)).collect();
    files.map_err(system)
}

/// Whether the process with this status descends from this process.
fn descends(status: &str) -> bool {
    let own = getpid().as_raw();
    ancestors(status).any(|pid| pid == own)
}

/// The ancestors of the process with this status, its parent first.
pub fn ancestors(status: &str) -> impl Iterator<Item = i32> + use<> {
    let parent = |status: &str| -> Option<i32> {
        let pid = proc_text::status(status, "PPid")?.parse().ok()?;
        (pid > 0).then_some(pid)
    };
    let next = move |&pid: &i32| parent(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?);
    std::iter::successors(parent(status), next).take(ANCESTORS_MAX)
}

/// The effective user of the process with this status.
fn effective(status: &str) -> Option<u32> {
    let uids = proc_text::status(status, "Uid")?;
    uids.split_whitespace().nth(1)?.parse().ok()
}

/// Whether `peer` has all rights of the process `pid`, which has this status.
fn may_trace(peer: i32, pid: i32, status: &str) -> bool {
    let rights = |status: &str| {
        let rights = proc_text::status(status, "CapPrm")?;
        u64::from_str_radix(rights, 16).ok()
    };
    let Some(wanted) = rights(status) else {
        return false;
    };
    if wanted == 0 {
        return true;
    }
    // A right counts in its user namespace only.
    let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let is_same = namespace(peer).is_some_and(|peer| Some(peer) == namespace(pid));
    let own = fs::read_to_string(format!("/proc/{peer}/status"));
    let own = own.ok().and_then(|status| rights(&status));
    is_same && own.is_some_and(|own| wanted & !own == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_a_descendant_of_its_parent_only() {
        let mut child = Command::new("sleep")
            .arg("100")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(descends(&status(child.id())));
        assert!(!descends(&status(std::process::id())), "not of itself");
        let own = std::process::id() as i32;
        assert_eq!(
            files(own, own).unwrap_err(),
            Refusal::NoDescendant,
            "only descendants are opened"
        );
        assert_eq!(files(child.id() as i32, own).unwrap().len(), FILES.len());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            files(child.id() as i32, own).unwrap_err(),
            Refusal::NoDescendant
        );
    }

    #[test]
    fn silent_connections_are_bounded_and_wrong_requests_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut broker = Broker {
            listening: Some((listener, path.clone())),
            waiting: VecDeque::new(),
        };
        let silent: Vec<_> = (0..WAITING_MAX + 3)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        broker.serve();
        assert_eq!(broker.waiting.len(), WAITING_MAX);
        assert_eq!(broker.sources().count(), WAITING_MAX + 1);
        let mut wrong = UnixStream::connect(&path).unwrap();
        std::io::Write::write_all(&mut wrong, b"nonsense").unwrap();
        broker.serve();
        assert_eq!(
            wrong.read(&mut [0; 8]).unwrap(),
            0,
            "closed without an answer"
        );
        drop(silent);
        broker.serve();
        assert!(broker.waiting.is_empty());
        drop(broker);
        assert!(!path.exists());
    }
}
