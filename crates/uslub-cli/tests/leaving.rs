//! Programs that are no longer what they were when they end, and a command that is killed.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::{compile, uslub, uslub_command};
use tempfile::{TempDir, tempdir};

/// The program of `tests/c/changes.c`, in a folder that each user may look into; `None` where there
/// is no C compiler.
fn changes() -> Option<(TempDir, PathBuf)> {
    let folder = tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/changes.c");
    let include = format!("-I{}", source.parent().unwrap().display());
    let source = fs::read_to_string(source).unwrap();
    let program = folder.path().join("changes");
    compile(&source, &[&include, "-pthread"], &program).then_some((folder, program))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Waits until something holds, for at most ten seconds.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "not soon: {what}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_process_that_changed_user_root_or_sandbox_reports() {
    let Some((folder, program)) = changes() else {
        return;
    };
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    for change in ["root", "user", "close", "sandbox"] {
        if !is_root && ["root", "user"].contains(&change) {
            continue;
        }
        let output = uslub_command(&["run", "--", program.to_str().unwrap(), change])
            .arg(&root)
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{change}: {text}");
        assert!(!text.contains("no report"), "{change}: {text}");
        assert!(text.contains("\ncache  "), "{change}: {text}");
        assert!(!text.contains("peak 0 B"), "{change}: {text}");
        // The child, which changed too.
        assert!(text.contains("children   1 on uslub"), "{change}: {text}");
    }
}

#[test]
fn a_program_that_another_user_executes_in_the_same_process_reports() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    // Others read the library there.
    let place = tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = place.path().join("with blank.so");
    fs::copy(uslub().with_file_name("libuslub_malloc.so"), &library).unwrap();
    let script = "id -u; exec ls -d /";
    let user = ["setpriv", "--reuid=65534", "--clear-groups", "--"];
    let words = [&["run", "--"], &user[..], &["sh", "-c", script]].concat();
    let output = uslub_command(&words)
        .env("USLUB_LIBRARY", &library)
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.stdout, b"65534\n/\n", "{text}");
    assert!(!text.contains("no report"), "{text}");
    assert!(text.contains("\ncache  "), "{text}");
    assert!(text.contains("children   1 on uslub"), "{text}");
}

#[test]
fn a_process_that_outlives_the_command_waits_for_no_witness() {
    let folder = tempdir().unwrap();
    let done = folder.path().join("done");
    // Each child of a fork would wait for an answer at its birth, and longer at its end.
    let script = "n=0; while [ $n -lt 50 ]; do (:); n=$((n + 1)); done; echo > \"$0\"";
    let script = format!(": > \"$0.ready\"; read line < \"$0.begin\"; {script}");
    let script = format!(
        "(setsid sh -c '{script}' \"$0\" &); while [ ! -e \"$0.ready\" ]; do sleep 0.02; done"
    );
    let begin = folder.path().join("done.begin");
    nix::unistd::mkfifo(&begin, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let status = uslub_command(&["run", "--", "sh", "-c", &script])
        .arg(&done)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    // The command has ended; now the process goes on.
    fs::write(&begin, "go\n").unwrap();
    let start = Instant::now();
    soon("50 forks", || done.exists());
    assert!(start.elapsed() < Duration::from_secs(5), "50 forks wait");
}

#[test]
fn a_missing_report_is_explained_by_what_happened() {
    let killed = uslub_command(&["run", "--", "sh", "-c", "kill -9 $$"])
        .output()
        .unwrap();
    let text = stderr(&killed);
    assert!(
        text.contains("killed by SIGKILL before it could report"),
        "{text}"
    );
    // Children that were killed are counted.
    let script = "sh -c 'kill -9 $$'; true";
    let output = uslub_command(&["run", "--", "sh", "-c", script])
        .output()
        .unwrap();
    let text = stderr(&output);
    assert!(
        text.contains("1 child began on uslub and left no report"),
        "{text}"
    );
}

#[test]
fn a_run_without_a_summary_makes_no_folder_and_one_without_a_place_runs_anyway() {
    let folder = tempdir().unwrap();
    let list = [
        "run",
        "--quiet",
        "--",
        "ls",
        folder.path().to_str().unwrap(),
    ];
    let output = uslub_command(&list)
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");

    let nowhere = folder.path().join("nowhere");
    let output = uslub_command(&["run", "--", "echo", "it runs"])
        .env("TMPDIR", &nowhere)
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(output.stdout, b"it runs\n");
    assert!(text.contains("no folder for reports"), "{text}");
    assert!(text.contains("no report  there was no folder"), "{text}");
}

#[test]
fn a_killed_command_takes_its_program_along_and_leaves_nothing_behind() {
    for quiet in [false, true] {
        let (folder, out) = (tempdir().unwrap(), tempdir().unwrap());
        let file = out.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 100", file.display());
        let mut arguments = vec!["run"];
        arguments.extend(quiet.then_some("--quiet"));
        arguments.extend(["--", "sh", "-c", &script]);
        let mut command = uslub_command(&arguments)
            .env("TMPDIR", folder.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = || fs::read_to_string(&file).unwrap_or_default();
        soon("the program writes its id", || pid().ends_with('\n'));
        assert_eq!(entries(folder.path()), usize::from(!quiet));
        // The reaper is there once the program runs for a moment.
        sleep(Duration::from_millis(100));
        command.kill().unwrap();
        command.wait().unwrap();
        let program = PathBuf::from(format!("/proc/{}/stat", pid().trim()));
        soon("the program is gone", || {
            // Nobody may wait for it where there is no init.
            fs::read_to_string(&program).map_or(true, |stat| stat.contains(") Z "))
        });
        soon("the folder is gone", || entries(folder.path()) == 0);
    }
}
