//! Finds the file to execute for a program's name, and checks that a preloaded library can reach
//! it. The search in `PATH` follows `execvp`. `run` and `compare` use it.

use crate::elf;
use crate::machine::Target;
use crate::privilege::{self, Caller, FileRights};
use crate::script;
use crate::unsuitable::Reason;
use nix::unistd::{AccessFlags, eaccess};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The search path without a `PATH` variable, as in glibc.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Longest chain of interpreters that the kernel follows (Linux 2.6.28 and later).
const MAX_INTERPRETERS: usize = 5;

/// The file and leading arguments to execute.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// The file for `exec`.
    pub file: PathBuf,
    /// Arguments in front of the user's arguments; the shell needs the script's name.
    pub leading: Vec<OsString>,
}

/// Finds `name` and checks that a library for `library` can be preloaded into it.
///
/// # Errors
///
/// If the program does not exist or cannot run on uslub.
pub fn prepare(name: &OsStr, path: Option<&OsStr>, library: Target) -> Result<Program, Reason> {
    let file = find(name, path)?;
    let search = Search { path, library };
    match search.check(&file, MAX_INTERPRETERS)? {
        Kind::Executable => Ok(Program {
            file,
            leading: Vec::new(),
        }),
        Kind::PlainText => Ok(Program {
            file: script::shell().to_owned(),
            leading: vec![file.into_os_string()],
        }),
    }
}

/// What executes a file.
enum Kind {
    /// The kernel executes the file.
    Executable,
    /// The shell executes the file: it is text without `#!`.
    PlainText,
}

struct Search<'a> {
    path: Option<&'a OsStr>,
    library: Target,
}

impl Search<'_> {
    /// Checks that the library reaches `file` or its interpreter.
    fn check(&self, file: &Path, interpreters: usize) -> Result<Kind, Reason> {
        executable(file)?;
        let mut opened = match File::open(file) {
            Ok(opened) => opened,
            // The file is executable but unreadable, so it cannot be checked.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => return Ok(Kind::Executable),
            Err(e) => return Err(Reason::Inaccessible(e)),
        };
        let head = head(&mut opened).map_err(Reason::Inaccessible)?;
        if head.starts_with(elf::MAGIC) {
            elf::check(&opened, file, self.library)?;
            return match privilege::elevation(FileRights::of(&opened), Caller::current()) {
                Some(elevation) => Err(Reason::Elevated(elevation)),
                None => Ok(Kind::Executable),
            };
        }
        let Some(shebang) = script::shebang(&head)? else {
            if head.is_empty() {
                return Err(Reason::Empty);
            }
            if !script::looks_like_text(&head) {
                return Err(Reason::NotAProgram);
            }
            self.interpreter(script::shell(), interpreters)?;
            return Ok(Kind::PlainText);
        };
        self.interpreter(&shebang.interpreter, interpreters)?;
        if let Some(target) = shebang.through_env() {
            let found = find(target, self.path).map_err(|reason| Reason::Interpreter {
                interpreter: PathBuf::from(target),
                reason: Box::new(reason),
            })?;
            self.interpreter(&found, interpreters)?;
        }
        Ok(Kind::Executable)
    }

    fn interpreter(&self, interpreter: &Path, interpreters: usize) -> Result<(), Reason> {
        if interpreters == 0 {
            return Err(Reason::TooManyInterpreters);
        }
        match self.check(interpreter, interpreters - 1) {
            Ok(_) => Ok(()),
            Err(Reason::TooManyInterpreters) => Err(Reason::TooManyInterpreters),
            Err(reason) => Err(Reason::Interpreter {
                interpreter: interpreter.to_owned(),
                reason: Box::new(reason),
            }),
        }
    }
}

/// The file that `execvp` would execute for `name`.
fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Reason> {
    let bytes = name.as_bytes();
    if bytes.contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let mut refused = None;
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes();
    for folder in path.split(|&b| b == b':').filter(|_| !bytes.is_empty()) {
        // An empty entry means the current folder.
        let folder = if folder.is_empty() { b"." } else { folder };
        let file = Path::new(OsStr::from_bytes(folder)).join(name);
        match executable(&file) {
            Ok(()) => return Ok(file),
            Err(Reason::NotExecutable) => refused = Some(Reason::NotExecutable),
            Err(_) => {}
        }
    }
    let here = !bytes.is_empty() && executable(&Path::new(".").join(name)).is_ok();
    Err(refused.unwrap_or(Reason::NotInPath { here }))
}

/// Checks that `file` is a file that this process may execute.
fn executable(file: &Path) -> Result<(), Reason> {
    let metadata = file.metadata().map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Reason::NoSuchFile,
        _ => Reason::Inaccessible(e),
    })?;
    if metadata.is_dir() {
        return Err(Reason::Directory);
    }
    if !metadata.is_file() {
        return Err(Reason::NotRegular);
    }
    eaccess(file, AccessFlags::X_OK).map_err(|_| Reason::NotExecutable)
}

/// The first bytes of `file`; the file position returns to the start.
fn head(file: &mut File) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(script::HEAD);
    file.by_ref()
        .take(script::HEAD as u64)
        .read_to_end(&mut head)?;
    file.rewind()?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn own_target() -> Target {
        elf::target(&File::open("/proc/self/exe").unwrap()).unwrap()
    }

    fn put(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        file
    }

    fn prepare_file(file: &Path) -> Result<Program, Reason> {
        prepare(file.as_os_str(), None, own_target())
    }

    #[test]
    fn the_search_takes_the_first_executable_file() {
        let [a, b] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let path = std::env::join_paths([Path::new("/no/folder"), a.path(), b.path()]).unwrap();
        let search = |name: &str| find(OsStr::new(name), Some(&path));

        assert!(matches!(search("tool"), Err(Reason::NotInPath { .. })));
        assert!(matches!(search(""), Err(Reason::NotInPath { .. })));
        put(a.path(), "tool", "x", 0o644);
        assert!(matches!(search("tool"), Err(Reason::NotExecutable)));
        let second = put(b.path(), "tool", "x", 0o755);
        assert_eq!(search("tool").unwrap(), second);
        fs::create_dir(a.path().join("other")).unwrap();
        assert!(matches!(search("other"), Err(Reason::NotInPath { .. })));
        assert_eq!(search("./tool").unwrap(), Path::new("./tool"));
    }

    #[test]
    fn a_program_and_a_script_are_executed_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let program = prepare(OsStr::new("sh"), None, own_target()).unwrap();
        assert!(program.file.ends_with("sh") && program.leading.is_empty());
        let file = put(folder.path(), "s", "#!/bin/sh\nexit\n", 0o755);
        assert_eq!(
            prepare_file(&file).unwrap(),
            Program {
                file,
                leading: Vec::new()
            }
        );
        let file = put(folder.path(), "e", "#!/usr/bin/env sh\nexit\n", 0o755);
        assert!(prepare_file(&file).is_ok());
    }

    #[test]
    fn text_without_an_interpreter_goes_to_the_shell() {
        let folder = tempfile::tempdir().unwrap();
        let file = put(folder.path(), "s", "exit 3\n", 0o755);
        let program = prepare_file(&file).unwrap();
        assert_eq!(program.file, Path::new("/bin/sh"));
        assert_eq!(program.leading, [file.into_os_string()]);
    }

    #[test]
    fn files_that_are_no_programs_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let reason =
            |name: &str, text: &str, mode| prepare_file(&put(at, name, text, mode)).unwrap_err();
        assert!(matches!(reason("empty", "", 0o755), Reason::Empty));
        assert!(matches!(
            reason("binary", "a\0b", 0o755),
            Reason::NotAProgram
        ));
        assert!(matches!(
            reason("plain", "#!/bin/sh\n", 0o644),
            Reason::NotExecutable
        ));
        assert!(matches!(
            reason("cut", "\x7fELF", 0o755),
            Reason::Damaged(_)
        ));
        assert!(matches!(prepare_file(at).unwrap_err(), Reason::Directory));
        assert!(matches!(
            prepare_file(&at.join("no")).unwrap_err(),
            Reason::NoSuchFile
        ));
        assert!(matches!(
            prepare_file(Path::new("/dev/null")).unwrap_err(),
            Reason::NotRegular
        ));
    }

    #[test]
    fn a_script_is_as_good_as_its_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let reason = |line: &str| {
            let file = put(folder.path(), "s", line, 0o755);
            prepare_file(&file).unwrap_err()
        };
        let Reason::Interpreter { reason: inner, .. } = reason("#!/no/such/tool\n") else {
            panic!("the interpreter is missing");
        };
        assert!(matches!(*inner, Reason::NoSuchFile));
        let Reason::Interpreter { reason: inner, .. } = reason("#!/usr/bin/env no-such-tool\n")
        else {
            panic!("the interpreter is missing");
        };
        assert!(matches!(*inner, Reason::NotInPath { .. }));
    }

    #[test]
    fn interpreters_are_followed_to_the_kernels_depth() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = put(folder.path(), "s1", "#!/bin/sh\n", 0o755);
        for depth in 2..=5 {
            let line = format!("#!{}\n", file.display());
            file = put(folder.path(), &format!("s{depth}"), &line, 0o755);
            prepare_file(&file).unwrap();
        }
        let line = format!("#!{}\n", file.display());
        let deep = put(folder.path(), "s6", &line, 0o755);
        assert!(matches!(
            prepare_file(&deep),
            Err(Reason::TooManyInterpreters)
        ));
        let own = folder.path().join("loop");
        put(
            folder.path(),
            "loop",
            &format!("#!{}\n", own.display()),
            0o755,
        );
        assert!(matches!(
            prepare_file(&own),
            Err(Reason::TooManyInterpreters)
        ));
    }
}
