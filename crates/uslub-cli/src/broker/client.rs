//! The reader's side of the broker.

#![allow(unsafe_code)]

use super::message::{self, BYTES, FILES, Refusal};
use super::{folder, server};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sockopt};
use nix::unistd::geteuid;
use std::fs::{self, File};
use std::io::{IoSliceMut, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use uslub_inspect::Process;
use uslub_inspect::process::OpenFiles;

/// Longest wait for an answer: the watcher answers between two looks.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the watchers say.
#[derive(Debug)]
pub enum Answer {
    /// The process can be read.
    Opened(Process),
    /// No ancestor of the process is a watcher.
    NoWatcher,
    /// The watcher refuses; the text says why.
    Refused(String),
}

/// Asks the watchers among the ancestors of a process to open it.
pub fn ask(pid: i32) -> Answer {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Answer::NoWatcher;
    };
    for ancestor in server::ancestors(&status) {
        for folder in folder::all() {
            let socket = folder::socket(&folder, ancestor);
            if !folder::is_private(&folder) || !socket.exists() {
                continue;
            }
            if let Some(answer) = ask_at(&socket, pid) {
                return answer;
            }
        }
    }
    Answer::NoWatcher
}

/// Asks one watcher; `None` if nobody answers.
fn ask_at(socket: &Path, pid: i32) -> Option<Answer> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials).ok()?;
    if peer.uid() != geteuid().as_raw() {
        return None;
    }
    stream.write_all(&message::request(pid)).ok()?;
    let (answer, descriptors) = receive(&stream)?;
    let why = match answer {
        Ok(()) => match opened(pid, descriptors) {
            Ok(process) => return Some(Answer::Opened(process)),
            Err(why) => why,
        },
        Err(Refusal::NoDescendant) => "it is no descendant".to_owned(),
        Err(Refusal::Closed) => {
            "the process has closed itself (PR_SET_DUMPABLE), or changed its user".to_owned()
        }
        Err(Refusal::MoreRights) => "the process has rights that this command lacks".to_owned(),
        Err(Refusal::System(error)) => std::io::Error::from_raw_os_error(error).to_string(),
    };
    Some(Answer::Refused(why))
}

/// Reads the answer and its descriptors.
fn receive(stream: &UnixStream) -> Option<(Result<(), Refusal>, Vec<OwnedFd>)> {
    let mut bytes = [0; BYTES];
    let mut control = nix::cmsg_space!([i32; FILES.len()]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags);
    let received = received.ok()?;
    let mut descriptors = Vec::new();
    for message in received.cmsgs().ok()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has just made these descriptors, and this is their only owner.
            descriptors.extend(raw.iter().map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let length = received.bytes;
    Some((message::answered(&bytes[..length])?, descriptors))
}

/// The process that the descriptors of an answer lead to.
fn opened(pid: i32, descriptors: Vec<OwnedFd>) -> Result<Process, String> {
    let files: Vec<_> = descriptors.into_iter().map(File::from).collect();
    let Ok([mem, pagemap, maps, smaps]) = <[File; FILES.len()]>::try_from(files) else {
        return Err("its answer has no descriptors".to_owned());
    };
    let files = OpenFiles {
        mem,
        pagemap,
        maps,
        smaps,
    };
    Process::with_files(pid, files).map_err(|error| error.to_string())
}
