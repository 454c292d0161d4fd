//! Why a program left no report, in words for the user. `summary` and `record` call [`absence`].

use crate::ending::{Ending, signal_name};
use crate::finished::Finished;
use crate::program;
use crate::report::Unusable;
use crate::units::{count, plural, seconds, size};
use crate::unsuitable::Reason;
use crate::watcher::{OomKills, Seen};
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

/// Why the report is missing.
pub fn absence(run: &Finished, why: &Unusable) -> String {
    match (why, run.ending) {
        (Unusable::Missing | Unusable::Unfinished, Ending::Killed(signal)) => {
            let name = signal_name(signal);
            let killed = format!("it was killed by {name} before it could report");
            match cause(signal, run.seen.oom) {
                Some(cause) => format!("{killed}: {cause}"),
                None => killed,
            }
        }
        (Unusable::Missing | Unusable::Unfinished, Ending::Exited(_)) => {
            became(&run.seen).unwrap_or_else(|| past_the_library(why, &run.seen).to_owned())
        }
        _ => why.to_string(),
    }
}

/// What a signal that killed the program tells.
fn cause(signal: i32, oom: OomKills) -> Option<String> {
    let processes = |n| format!("{} {}", count(n), plural(n, "process", "processes"));
    match signal {
        libc::SIGKILL if oom.in_group > 0 => Some(format!(
            "its control group reached its memory limit, and the kernel killed {} there",
            processes(oom.in_group)
        )),
        libc::SIGKILL if oom.on_machine > 0 => Some(format!(
            "memory was short meanwhile, and the kernel killed {}",
            processes(oom.on_machine)
        )),
        libc::SIGABRT => Some("it ended itself by abort()".to_owned()),
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE => Some("it crashed".to_owned()),
        libc::SIGSYS => Some("it made a system call that its sandbox forbids".to_owned()),
        libc::SIGXCPU => Some("it reached its limit of CPU time".to_owned()),
        libc::SIGXFSZ => Some("it reached its limit of file sizes".to_owned()),
        _ => None,
    }
}

/// That the process became another program, and why that one does not run on uslub.
fn became(seen: &Seen) -> Option<String> {
    let name = seen.other_name.as_deref()?;
    let last = seen.last.as_ref().and_then(|look| look.file.as_deref());
    let file = last.filter(|file| file.file_name().is_some_and(|file| file == name));
    let why = match unsuitable(file.map_or(OsStr::new(name), Path::as_os_str)) {
        Some(reason) => format!("which {reason}"),
        None => "without uslub: with other variables, or in a place where no report can be \
                 written"
            .to_owned(),
    };
    Some(format!("it ended as '{name}', {why}"))
}

/// Why a program cannot run on uslub, if it is found and cannot.
fn unsuitable(name: &OsStr) -> Option<Reason> {
    let own = File::open("/proc/self/exe").ok()?;
    let target = crate::elf::target(&own).ok()?;
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    // Where programs of root are, which others call by their paths.
    path.push(":/usr/sbin:/sbin");
    match program::prepare(name, Some(&path), target) {
        Err(reason @ (Reason::Static | Reason::Elevated(_))) => Some(reason),
        Err(reason @ (Reason::WrongMachine { .. } | Reason::OtherCLibrary { .. })) => Some(reason),
        _ => None,
    }
}

fn past_the_library(why: &Unusable, seen: &Seen) -> &'static str {
    let filtered = seen.last.as_ref().is_some_and(|look| look.filtered);
    match why {
        Unusable::Unfinished if filtered => {
            "it began on uslub, shut itself in a sandbox (seccomp), and ended past the library"
        }
        Unusable::Unfinished => {
            "it began on uslub, but ended past the library: by a bare system call, or from a \
             signal handler that interrupted the allocator"
        }
        _ => {
            "it ended without running the library, or in a place where no report can be written: \
             it is or became another program (statically linked, set-user-ID, or without our \
             environment)"
        }
    }
}

/// What the last look saw, in parts; empty if the program was too short for a look.
pub fn last_look(run: &Finished) -> Vec<String> {
    let Some(look) = &run.seen.last else {
        return Vec::new();
    };
    let before = run.wall.saturating_sub(look.age);
    let mut parts = vec![
        format!("{} before the end", seconds(before)),
        format!("{} resident", size(look.resident_bytes)),
    ];
    parts.extend((look.file.as_ref()).map(|file| format!("executing {}", file.display())));
    parts.extend(look.filtered.then(|| "in a sandbox (seccomp)".to_owned()));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watcher::Look;
    use std::time::Duration;

    fn run(ending: Ending, seen: Seen) -> Finished {
        Finished {
            command: vec!["tool".into()],
            ending,
            wall: Duration::from_millis(2500),
            usage: crate::ending::Usage::default(),
            has_allocator: false,
            seen,
        }
    }

    #[test]
    fn each_signal_tells_what_it_means() {
        let oom = |in_group, on_machine| OomKills {
            in_group,
            on_machine,
        };
        for (signal, kills, words) in [
            (
                libc::SIGKILL,
                oom(0, 0),
                "killed by SIGKILL before it could report",
            ),
            (
                libc::SIGKILL,
                oom(1, 4),
                "reached its memory limit, and the kernel killed 1 process there",
            ),
            (
                libc::SIGKILL,
                oom(0, 2),
                "memory was short meanwhile, and the kernel killed 2 processes",
            ),
            (
                libc::SIGTERM,
                oom(1, 1),
                "killed by SIGTERM before it could report",
            ),
            (
                libc::SIGABRT,
                oom(0, 0),
                "report: it ended itself by abort()",
            ),
            (libc::SIGSEGV, oom(0, 0), "report: it crashed"),
            (
                libc::SIGSYS,
                oom(0, 0),
                "a system call that its sandbox forbids",
            ),
        ] {
            let seen = Seen {
                oom: kills,
                ..Seen::default()
            };
            for why in [Unusable::Missing, Unusable::Unfinished] {
                let text = absence(&run(Ending::Killed(signal), seen.clone()), &why);
                assert!(text.ends_with(words), "{text}");
            }
        }
    }

    #[test]
    fn a_process_that_became_another_program_is_named() {
        let seen = Seen {
            other_name: Some("no-such-tool".to_owned()),
            ..Seen::default()
        };
        let text = absence(&run(Ending::Exited(0), seen), &Unusable::Unfinished);
        assert!(
            text.starts_with("it ended as 'no-such-tool', without uslub: "),
            "{text}"
        );
        let text = absence(
            &run(Ending::Exited(0), Seen::default()),
            &Unusable::Unfinished,
        );
        assert!(
            text.starts_with("it began on uslub, but ended past the library"),
            "{text}"
        );
    }

    #[test]
    fn the_last_look_says_when_and_what() {
        let look = Look {
            age: Duration::from_millis(2100),
            resident_bytes: 3 << 30,
            file: Some("/usr/bin/tool".into()),
            filtered: true,
        };
        let seen = Seen {
            last: Some(look),
            ..Seen::default()
        };
        let run = run(Ending::Exited(0), seen);
        assert_eq!(
            last_look(&run).join(", "),
            "0.40 s before the end, 3.0 GiB resident, executing /usr/bin/tool, in a sandbox (seccomp)"
        );
        let text = absence(&run, &Unusable::Unfinished);
        assert!(text.contains("sandbox (seccomp)"), "{text}");
    }
}
