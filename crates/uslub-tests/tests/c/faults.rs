//! System calls that are refused, a system without /proc and /sys, CPU numbers that nobody has.

use std::fs;
use std::path::{Path, PathBuf};

use uslub_tests::subject::plain;
use uslub_tests::tools::{alone, say_skipped, shared, tool};
use uslub_tests::{Run, Way, in_every_way, program};

in_every_way! {
    fn memory_that_is_refused_is_enomem_and_nothing_else(way) {
        let _alone = alone();
        if plain() {
            return say_skipped("refusals: glibc keeps no errno in free");
        }
        let Some(refusals) = program("refusals") else { return };
        Run::of(refusals).on(way).wrote("refusals: ok");
    }

    fn programs_live_where_system_calls_are_refused(way) {
        let _alone = alone();
        let Some(refuse) = program("refuse") else { return };
        // The numbers are EPERM, ENOMEM and ENOSYS. `stress` itself needs its affinity, `api` that
        // memory goes back.
        for (refused, programs) in [
            ("membarrier=1", &["threads", "stress"][..]),
            ("membarrier=38,rseq=38", &["stress"]),
            ("madvise=1,get_mempolicy=1,mbind=1", &["stress"]),
            ("mremap=12", &["stress"]),
            ("getcpu=38,sched_getaffinity=38,getrandom=38,sysinfo=38", &["api", "threads"]),
        ] {
            for &name in programs {
                let Some(file) = program(name) else { return };
                let run = Run::of(file).behind([refuse.as_os_str(), refused.as_ref()]);
                let run = match name {
                    "stress" => run.args(["1", "8"]),
                    "threads" => run.args(["300"]),
                    _ => run,
                };
                run.on(way).succeeded();
            }
        }
    }

    fn programs_live_without_proc_and_sys(way) {
        let _shared = shared();
        let Some(unshare) = tool("unshare") else { return };
        let script = "mount -t tmpfs none /proc && mount -t tmpfs none /sys && exec \"$@\"";
        let words = |line: &str| {
            let unshare = unshare.display().to_string();
            ["-rm", "/bin/sh", "-c", line, "sh"]
                .into_iter()
                .fold(vec![unshare], |mut all, word| {
                    all.push(word.to_owned());
                    all
                })
        };
        let Some(nothing) = tool("/bin/true") else { return };
        let possible = Run::of(&nothing).behind(words(script)).on(way);
        if !possible.status.success() {
            return say_skipped("no namespace without /proc and /sys is to be had here");
        }
        for (name, args) in [("tiny", &[][..]), ("align", &[]), ("stress", &["1", "4"])] {
            let Some(file) = program(name) else { return };
            Run::of(file).args(args).behind(words(script)).on(way).succeeded();
        }
    }
}

/// Only without restartable sequences is the vDSO asked for the CPU.
#[test]
fn no_cpu_number_does_harm() {
    let _alone = alone();
    let Some(cpus) = program("cpus") else { return };
    for mode in ["sparse", "beyond", "failing", "wild"] {
        for way in [Way::TRY_LOCK, Way::UNDER_RUN_TRY_LOCK] {
            let outcome = Run::of(&cpus).args([mode]).on(way).wrote("cpus: ok");
            assert!(
                plain() || !outcome.stdout.contains("no looks"),
                "{}",
                outcome.describe()
            );
        }
        Run::of(&cpus)
            .args([mode])
            .on(Way::PRELOADED)
            .wrote("cpus: ok");
    }
}

/// A memory cgroup of our own, removed at the end.
struct Cgroup {
    path: PathBuf,
    /// File that tells the most bytes it was ever charged with; not in every kernel.
    peak: &'static str,
}

impl Cgroup {
    /// A group with a limit in bytes; nothing where none may be made.
    fn new(limit: u64) -> Option<Self> {
        let name = format!("uslub-tests-{}", std::process::id());
        for (root, file, peak) in [
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.max_usage_in_bytes",
            ),
            ("/sys/fs/cgroup", "memory.max", "memory.peak"),
        ] {
            let path = Path::new(root).join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self { path, peak };
            if fs::write(group.path.join(file), limit.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    /// Most bytes that it was ever charged with, if the kernel tells.
    fn peak(&self) -> Option<u64> {
        let peak = fs::read_to_string(self.path.join(self.peak)).ok()?;
        peak.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // It is empty: what ran in it has ended.
        let _ = fs::remove_dir(&self.path);
    }
}

/// What is live fits, 18 MiB and a few large objects. The group is charged with what is resident,
/// not with huge pages of which a part was freed.
#[test]
fn a_cgroup_limit_is_lived_with() {
    let _alone = alone();
    let Some(churn) = program("churn") else {
        return;
    };
    for way in [Way::PRELOADED, Way::TRY_LOCK] {
        let Some(group) = Cgroup::new(64 << 20) else {
            return say_skipped("no memory cgroup may be made here");
        };
        let procs = group.path.join("cgroup.procs");
        let script = format!("echo $$ > {} && exec \"$@\"", procs.display());
        let outcome = Run::of(&churn)
            .args(["12", "18", "4"])
            .behind(["/bin/sh", "-c", &script, "sh"])
            .on(way)
            .wrote("errors=0");
        let resident = number_behind(&outcome.stdout, "most=") * 1024;
        let charged = group.peak().unwrap_or(0);
        assert!(
            plain() || charged < resident + (1 << 20),
            "{way:?}: charged with {charged} bytes, {resident} were resident"
        );
    }
}

/// The number that follows a word.
fn number_behind(text: &str, word: &str) -> u64 {
    let (_, behind) = text.split_once(word).expect(word);
    let digits = behind.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).expect(word)
}
