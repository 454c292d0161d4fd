//! Why a process cannot be read, and what helps.

use crate::failure::{Failure, NOT_FOUND, OURS, UNSUITABLE};
use nix::unistd::{Uid, User};
use std::fs;
use std::os::unix::fs::MetadataExt;
use uslub_inspect::{Error, proc_text};

/// The failure that an error stands for; `pid` is the process, if it is one.
pub fn of(error: Error, pid: Option<i32>) -> Failure {
    let message = match (&error, pid) {
        (Error::NotOnUslub { .. } | Error::Format { .. } | Error::Field { .. }, Some(pid)) => {
            format!("process {pid} ({}) is {error}", name_of(pid))
        }
        (Error::Forbidden { source, .. }, Some(pid)) => {
            let owner = owner(pid).map_or(String::new(), |uid| format!(", user {}", user(uid)));
            format!(
                "cannot read process {pid} ({}{owner}): {}",
                name_of(pid),
                plain(source)
            )
        }
        (Error::NotReady, Some(pid)) => {
            format!(
                "process {pid} ({}) has not allocated anything yet",
                name_of(pid)
            )
        }
        _ => error.to_string(),
    };
    let (code, hint) = match &error {
        Error::NoProcess(_) | Error::Ended(_) => (
            NOT_FOUND,
            "pidof PROGRAM prints the numbers of running processes".to_owned(),
        ),
        Error::NotOnUslub { .. } => (
            UNSUITABLE,
            "start it with 'uslub run', preload libuslub_malloc.so, or link it with uslub"
                .to_owned(),
        ),
        Error::Format { version, .. } | Error::Field { version, .. } => (
            OURS,
            format!("use the command of uslub {version}, as the program does"),
        ),
        Error::Forbidden { pid, .. } => (OURS, forbidden(*pid)),
        Error::NotReady => (OURS, not_ready(pid)),
        Error::Core { .. } => (
            OURS,
            "the kernel writes one after 'ulimit -c unlimited'".to_owned(),
        ),
        Error::NoCache(_) => (OURS, "uslub info --all lists the caches".to_owned()),
        Error::NoMemory(..) => (OURS, "name a process that runs a program".to_owned()),
        _ => (
            OURS,
            "the process may have ended; the core file may be damaged".to_owned(),
        ),
    };
    Failure {
        message,
        hint,
        code,
    }
}

/// What helps if nothing was allocated. `uslub run` itself allocates nothing on uslub, and a core
/// file does not change.
fn not_ready(pid: Option<i32>) -> String {
    let Some(pid) = pid else {
        return "the program ended before its first allocation".to_owned();
    };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let mut children = children.split_whitespace().flat_map(str::parse);
    // The command has a copy of itself, too.
    match children.find(|&child| name_of(child) != "uslub") {
        Some(child) if name_of(pid) == "uslub" => {
            format!("it is the command; its program is process {child}")
        }
        _ => "try again when it has begun to work".to_owned(),
    }
}

/// An error of the system without its number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// The name of a process, for people.
fn name_of(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = uslub_inspect::root::printable(name.trim_ascii_end());
    if name.is_empty() {
        "?".to_owned()
    } else {
        name
    }
}

/// The user whose rights a process has.
fn owner(pid: i32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let uids = proc_text::status(&status, "Uid")?;
    uids.split_whitespace().nth(1)?.parse().ok()
}

fn user(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// What helps where only an ancestor may look.
const WATCHED: &str = "start it with 'uslub run', whose watcher may look";

/// What helps against a refusal.
fn forbidden(pid: i32) -> String {
    let me = Uid::effective();
    if owner(pid).is_some_and(|uid| uid != me.as_raw()) && !me.is_root() {
        return format!("it belongs to another user; try: sudo uslub info {pid}");
    }
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_filtered = proc_text::status(&own, "Seccomp").is_some_and(|mode| mode != "0");
    if is_filtered || me.is_root() {
        return format!(
            "a container's seccomp profile or the missing right CAP_SYS_PTRACE forbids it: docker \
             run --cap-add SYS_PTRACE, or in Kubernetes securityContext.capabilities.add: \
             [SYS_PTRACE]; or {WATCHED}"
        );
    }
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if yama.trim().parse().is_ok_and(|scope: u8| scope > 0) {
        return format!(
            "the system lets only ancestors look (kernel.yama.ptrace_scope = {}): {WATCHED}; or \
             try: sudo uslub info {pid}",
            yama.trim()
        );
    }
    // The kernel gives the files of a process that may not be dumped to the superuser, but not the
    // folder.
    let is_closed =
        fs::metadata(format!("/proc/{pid}/status")).is_ok_and(|meta| meta.uid() != me.as_raw());
    if is_closed {
        return format!(
            "it has closed itself to other processes (PR_SET_DUMPABLE), or changed its user; try: \
             sudo uslub info {pid}"
        );
    }
    format!("{WATCHED}; or try: sudo uslub info {pid}")
}
