//! Programs that are killed, or end past the library: what is said of each, and why there is no
//! report.

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::{text, uslub_command};
use tempfile::tempdir;

fn run(words: &[&str]) -> (Output, String) {
    let mut command = uslub_command(&[&["run"], words].concat());
    let output = command.stdin(Stdio::null()).output().unwrap();
    // As one line, however the text was broken.
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    (output, said)
}

#[test]
fn each_signal_is_named_with_what_it_means() {
    for (signal, words) in [
        (
            "KILL",
            "no report it was killed by SIGKILL before it could report memory peak",
        ),
        (
            "TERM",
            "no report it was killed by SIGTERM before it could report memory peak",
        ),
        (
            "SEGV",
            "it was killed by SIGSEGV before it could report: it crashed",
        ),
        (
            "ABRT",
            "it was killed by SIGABRT before it could report: it ended itself by abort()",
        ),
        (
            "SYS",
            "report: it made a system call that its sandbox forbids",
        ),
    ] {
        let (output, said) = run(&["sh", "-c", &format!("kill -{signal} $$")]);
        assert!(output.status.signal().is_some(), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(!said.contains("peak 0 B"), "{said}");
    }
}

#[test]
fn a_killed_program_is_told_as_it_was_seen_last() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("r.json");
    let script = "sleep 0.6; kill -KILL $$";
    let (_, said) = run(&["--report", text(&file), "sh", "-c", script]);
    let (_, last) = said
        .split_once(" last seen ")
        .unwrap_or_else(|| panic!("{said}"));
    assert!(
        last.contains(" s before the end, ") && last.contains(" resident, executing /"),
        "{said}"
    );
    let record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let look = &record["last_look"];
    assert!(
        look["resident_bytes"].as_u64().unwrap() > 1 << 16,
        "{record}"
    );
    assert!(
        look["seconds_before_end"].as_f64().unwrap() > 0.0,
        "{record}"
    );
    assert!(look["file"].as_str().unwrap().ends_with("sh"), "{record}");
    assert_eq!(look["filtered"], false);
    // A program that reports needs no look from outside.
    let (_, said) = run(&["sh", "-c", "sleep 0.3; exit 0"]);
    assert!(!said.contains("last seen"), "{said}");
}

#[test]
fn a_program_that_ends_by_exit_of_any_kind_reports() {
    let folder = tempdir().unwrap();
    let program = folder.path().join("leave");
    let source = "#include <stdlib.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
        int main(int count, char **words) { \n\
        volatile char *p = malloc(100); p[0] = 1;\n\
        switch (words[1][0]) { case 'u': _exit(3); case 'q': quick_exit(3); case 'C': _Exit(3);\n\
        case 's': syscall(SYS_exit_group, 3);\n\
        case 'b': __asm__ volatile(\"syscall\" :: \"a\"(SYS_exit_group), \"D\"(3)); \n\
        case 'a': abort(); default: exit(3); } }\n";
    if !support::compile(source, &["-w"], &program) {
        return;
    }
    for way in ["e", "u", "C", "q"] {
        let (output, said) = run(&[text(&program), way]);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            !said.contains("no report") && said.contains("live objects"),
            "{way}: {said}"
        );
    }
    if cfg!(target_arch = "x86_64") {
        let (output, said) = run(&[text(&program), "b"]);
        assert_eq!(output.status.code(), Some(3), "{said}");
        let why = "no report it began on uslub, but ended past the library: by a bare system call";
        assert!(said.contains(why), "{said}");
    }
    let (output, said) = run(&[text(&program), "a"]);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("it ended itself by abort()"), "{said}");
}

#[test]
fn a_process_that_becomes_another_program_is_that_programs_report() {
    let (_, said) = run(&["sh", "-c", "exec sh -c 'exec ls /'"]);
    assert!(
        !said.contains("no report") && !said.contains("children"),
        "{said}"
    );
    assert!(said.contains("live objects"), "{said}");
}

/// Whether LD_PRELOAD reaches a program.
fn is_static(program: &Path) -> bool {
    let output = Command::new("readelf").arg("-l").arg(program).output();
    output
        .is_ok_and(|o| o.status.success() && !String::from_utf8_lossy(&o.stdout).contains("INTERP"))
}

#[test]
fn a_process_that_becomes_a_program_without_uslub_is_named_with_the_reason() {
    let folder = tempdir().unwrap();
    let program = folder.path().join("quite-static");
    if support::compile("int main(void) { return 0; }\n", &["-static"], &program)
        && is_static(&program)
    {
        let path = std::env::var("PATH").unwrap();
        let output = uslub_command(&["run", "sh", "-c", "exec quite-static"])
            .env("PATH", format!("{}:{path}", text(folder.path())))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let why = "no report it ended as 'quite-static', which is statically linked: LD_PRELOAD \
                   cannot reach it";
        assert!(said.contains(why), "{said}");
        // A child like this is counted.
        let script = format!("{}; true", text(&program));
        let (_, said) = run(&["sh", "-c", &script]);
        let note = "left no report (killed, or became a program without uslub)";
        assert!(said.contains(note) || !said.contains("note"), "{said}");
    }
    let (_, said) = run(&["sh", "-c", "exec env -i /bin/ls /"]);
    assert!(
        said.contains("no report it ended as 'ls', without uslub: with other variables"),
        "{said}"
    );
}

#[test]
fn a_set_user_id_program_is_refused_at_the_start_and_named_at_the_end() {
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("skipped: only root can make a program that runs as another user");
        return;
    }
    let folder = tempdir().unwrap();
    let program = folder.path().join("other-user");
    fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    support::copy("/bin/true".as_ref(), &program);
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o4755),
    )
    .unwrap();
    let (output, said) = run(&[text(&program)]);
    if output.status.success() {
        eprintln!("skipped: the file system ignores set-user-ID");
        return;
    }
    assert_eq!(output.status.code(), Some(126));
    assert!(
        said.contains("is set-user-ID (it runs as user 65534)"),
        "{said}"
    );
    let path = std::env::var("PATH").unwrap();
    let output = uslub_command(&["run", "sh", "-c", "exec other-user"])
        .env("PATH", format!("{}:{path}", text(folder.path())))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("it ended as 'other-user', which is set-user-ID"),
        "{said}"
    );
}

#[test]
fn a_program_in_another_root_is_told_what_it_lacks() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    // The same files by another way: the folder of reports is there too.
    let (output, said) = run(&["chroot", "/", "/bin/ls", "/"]);
    assert!(
        output.status.success() && said.contains("live objects"),
        "{said}"
    );
    let folder = tempdir().unwrap();
    let program = folder.path().join("alone");
    if support::compile("int main(void) { return 0; }\n", &["-static"], &program) {
        let (output, said) = run(&["chroot", text(folder.path()), "/alone"]);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("no report it ended as 'alone', "), "{said}");
    }
}

/// A memory cgroup with this limit, removed in the end; `None` where none can be made.
struct Group(PathBuf);

impl Group {
    fn make(bytes: u64) -> Option<Self> {
        let name = format!("uslub-test-{}", std::process::id());
        for (root, limit) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let group = Group(Path::new(root).join(&name));
            if fs::create_dir(&group.0).is_ok()
                && group.0.join(limit).exists()
                && fs::write(group.0.join(limit), bytes.to_string()).is_ok()
            {
                return Some(group);
            }
        }
        eprintln!("skipped: no memory cgroup can be made");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes may be ending still.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_program_that_the_kernel_kills_for_memory_is_told_so() {
    let Some(group) = Group::make(48 << 20) else {
        return;
    };
    let enter = format!("echo $$ > {}/cgroup.procs", text(&group.0));
    let hungry = "my @a; push @a, 'x' x 1000 while 1";
    let uslub = support::uslub();
    let script = format!(
        "{enter} && exec {} run -- perl -e \"{hungry}\"",
        text(&uslub)
    );
    let mut command = Command::new("sh");
    let output = command
        .args(["-c", &script])
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if said.contains("Permission denied") || said.contains("nonexistent") {
        eprintln!("skipped: no process can enter a memory cgroup");
        return;
    }
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = "its control group reached its memory limit, and the kernel killed 1 process there";
    assert!(said.contains(why), "{said}");
}
