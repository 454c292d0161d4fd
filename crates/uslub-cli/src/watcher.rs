//! The watcher: looks at the running program now and then, from outside. If the program leaves no
//! report, the last look says what was known of it, and how it ended says why.
//!
//! | age of the program | looks |
//! |---|---|
//! | 0.1 s | the first |
//! | up to 10 minutes | one a second |
//! | more | one in 10 seconds |
//! | dead, but not reaped | its name: the kernel keeps it, but not the memory |
//!
//! A look reads two small files of `/proc` and takes no lock of the program. `signals` calls the
//! watcher between two signals; `summary` and `record` tell what it saw.

use crate::onlooker::Sight;
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Age of the program at the first look: most programs of a script are gone by then.
const FIRST: Duration = Duration::from_millis(100);
/// Time between two looks; a look takes less than 0.1 ms.
const EVERY: Duration = Duration::from_secs(1);
/// Age from which on looks are rare.
const LONG: Duration = Duration::from_secs(600);
/// Time between two rare looks.
const RARELY: Duration = Duration::from_secs(10);

/// What one look saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Time from the program's start.
    pub age: Duration,
    /// Resident bytes.
    pub resident_bytes: u64,
    /// The file that the process executes.
    pub file: Option<PathBuf>,
    /// Whether a filter of system calls (seccomp) is installed.
    pub filtered: bool,
}

/// What is known of a program from outside.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The last look, if the program lived long enough.
    pub last: Option<Look>,
    /// The name that the process had at its end, if it is not the program's name.
    pub other_name: Option<String>,
    /// Processes that the kernel killed meanwhile because memory was short.
    pub oom: OomKills,
    /// What the onlooker saw of its caches.
    pub caches: Option<Sight>,
}

/// Numbers of processes that the kernel killed because memory was short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomKills {
    /// In this process's control group, at its memory limit.
    pub in_group: u64,
    /// On the whole machine.
    pub on_machine: u64,
}

impl OomKills {
    fn now() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let machine = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        OomKills {
            in_group: field(&group_events(&groups), "oom_kill "),
            on_machine: field(&machine, "oom_kill "),
        }
    }

    fn since(self, start: Self) -> Self {
        OomKills {
            in_group: self.in_group.saturating_sub(start.in_group),
            on_machine: self.on_machine.saturating_sub(start.on_machine),
        }
    }
}

/// The counts of the memory controller's control group in the list `groups`; empty without one.
fn group_events(groups: &str) -> String {
    // The file of version 1, which has a hierarchy for each controller, and that of version 2.
    let kinds = [
        (":memory:/", "/sys/fs/cgroup/memory", "memory.oom_control"),
        ("0::/", "/sys/fs/cgroup", "memory.events"),
    ];
    let found = kinds.into_iter().find_map(|(mark, root, file)| {
        let mut lines = groups.lines();
        let group = lines.find_map(|line| line.split_once(mark).map(|(_, group)| group))?;
        let text = fs::read_to_string(Path::new(root).join(group).join(file));
        // In a container the group may be the root.
        text.or_else(|_| fs::read_to_string(Path::new(root).join(file)))
            .ok()
    });
    found.unwrap_or_default()
}

/// The number behind `name` at the start of a line; 0 without such a line.
fn field(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let number = rest.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Looks at a child of this process.
pub struct Watcher {
    pid: Pid,
    start: Instant,
    next: Duration,
    last: Option<Look>,
    /// The kernel's name of the program, as it was started.
    name: String,
    last_name: Option<String>,
    oom: OomKills,
}

impl Watcher {
    /// Watches the child `pid`, which executes `file`.
    pub fn start(pid: Pid, file: &Path) -> Self {
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        // The kernel keeps 15 bytes.
        let name = String::from_utf8_lossy(&name[..name.len().min(15)]);
        Watcher {
            pid,
            start: Instant::now(),
            next: FIRST,
            last: None,
            name: name.into_owned(),
            last_name: None,
            oom: OomKills::now(),
        }
    }

    /// Looks, if it is time; returns the time to the next look.
    pub fn look_if_due(&mut self) -> Duration {
        let age = self.start.elapsed();
        if age >= self.next {
            self.last = look(self.pid, age).or(self.last.take());
            self.next = age + if age < LONG { EVERY } else { RARELY };
        }
        self.next.saturating_sub(age)
    }

    /// Reads the name of the child, which is dead and not reaped.
    pub fn look_at_dead(&mut self) {
        let name = fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
        self.last_name = Some(name).filter(|name| !name.is_empty());
    }

    /// What was seen, after the end of the child.
    pub fn end(self) -> Seen {
        Seen {
            last: self.last,
            other_name: self.last_name.filter(|name| *name != self.name),
            oom: OomKills::now().since(self.oom),
            caches: None,
        }
    }
}

/// Looks at a process; `None` if it has no memory any longer.
fn look(pid: Pid, age: Duration) -> Option<Look> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.contains("\nVmRSS:").then(|| Look {
        age,
        resident_bytes: field(&status, "VmRSS:") << 10,
        file: fs::read_link(format!("/proc/{pid}/exe")).ok(),
        filtered: field(&status, "Seccomp:") == 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_look_sees_memory_and_the_file_and_the_dead_keep_their_name() {
        let mut child = Command::new("sleep")
            .arg("100")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let mut watcher = Watcher::start(pid, Path::new("/bin/something-else"));
        assert!(watcher.look_if_due() <= FIRST && watcher.last.is_none());
        // A process that has just begun has hardly a page.
        let look = loop {
            watcher.next = Duration::ZERO;
            assert!(watcher.look_if_due() <= EVERY);
            let look = watcher.last.clone().unwrap();
            if look.resident_bytes > 1 << 16 {
                break look;
            }
        };
        assert!(look.file.unwrap().ends_with("sleep") && !look.filtered);
        child.kill().unwrap();
        // Not reaped before the name is read.
        while look_state(pid) != "Z" {
            std::thread::yield_now();
        }
        watcher.next = Duration::ZERO;
        watcher.look_if_due();
        watcher.look_at_dead();
        child.wait().unwrap();
        let seen = watcher.end();
        assert!(seen.last.is_some(), "the last look stays");
        assert_eq!(seen.other_name.as_deref(), Some("sleep"));
    }

    fn look_state(pid: Pid) -> String {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        state.unwrap().trim_start()[..1].to_owned()
    }

    #[test]
    fn fields_are_found_at_the_start_of_lines() {
        let text = "low 0\noom 2\noom_kill 3\nx oom_kill 9\nVmRSS:\t  123 kB\n";
        assert_eq!(field(text, "oom_kill "), 3);
        assert_eq!(field(text, "VmRSS:"), 123);
        assert_eq!(field(text, "high "), 0);
        let [first, later] = [2, 5].map(|n| OomKills {
            in_group: n,
            on_machine: n + 1,
        });
        let between = OomKills {
            in_group: 3,
            on_machine: 3,
        };
        assert_eq!(later.since(first), between);
        assert_eq!(first.since(later), OomKills::default());
    }
}
