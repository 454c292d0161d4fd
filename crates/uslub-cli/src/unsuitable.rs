//! Why a program cannot run on uslub, and the remedy. `program` and `elf` return a [`Reason`].

use crate::failure::{Failure, NOT_FOUND, UNSUITABLE};
use crate::machine::{CLibrary, Machine};
use crate::privilege::Elevation;
use crate::sanitizer::Sanitizer;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a file cannot run on uslub.
#[derive(Debug, Error)]
pub enum Reason {
    /// No folder in `PATH` has the file.
    #[error("is not found in PATH")]
    NotInPath {
        /// The current folder has an executable file of that name.
        here: bool,
    },
    /// The file does not exist.
    #[error("does not exist")]
    NoSuchFile,
    /// The system denies access.
    #[error("cannot be reached: {0}")]
    Inaccessible(io::Error),
    /// It is a folder.
    #[error("is a directory")]
    Directory,
    /// It is a device, a pipe or a socket.
    #[error("is not a regular file")]
    NotRegular,
    /// The user may not execute the file.
    #[error("is not executable")]
    NotExecutable,
    /// The file is empty.
    #[error("is an empty file")]
    Empty,
    /// Neither ELF nor text.
    #[error("is neither an ELF program nor a script")]
    NotAProgram,
    /// An ELF file that cannot be read.
    #[error("is a damaged ELF file ({0})")]
    Damaged(String),
    /// An ELF file, but not a program.
    #[error("is {0}, not a program")]
    OtherElf(&'static str),
    /// The program has no loader, so nothing can be preloaded.
    #[error("is statically linked: LD_PRELOAD cannot reach it")]
    Static,
    /// A sanitizer's runtime in the program has a malloc of its own.
    #[error("is built with {}, whose runtime replaces malloc itself", .0.name())]
    Sanitized(Sanitizer),
    /// The program's machine differs from the library's machine.
    #[error("is built for {program}, but uslub's library is built for {library}")]
    WrongMachine {
        /// The program's machine.
        program: Machine,
        /// The library's machine.
        library: Machine,
    },
    /// Its loader is another C library's.
    #[error(
        "is linked with {program} ({}), but uslub's library is built for {library}",
        loader.display()
    )]
    OtherCLibrary {
        /// The program's loader.
        loader: PathBuf,
        /// The program's C library.
        program: CLibrary,
        /// The library's C library.
        library: CLibrary,
    },
    /// The loader of the program does not exist.
    #[error("needs the loader {}, which does not exist", .0.display())]
    NoLoader(PathBuf),
    /// The program would run with elevated privileges.
    #[error("{0}, so the loader ignores LD_PRELOAD")]
    Elevated(Elevation),
    /// The `#!` line names no interpreter.
    #[error("has a '#!' line that names no interpreter")]
    EmptyShebang,
    /// The `#!` line ends with a carriage return, as lines on Windows do.
    #[error("has a '#!' line that ends with a carriage return")]
    CarriageReturn,
    /// The chain of interpreters is longer than the kernel follows.
    #[error("needs too many interpreters in a row")]
    TooManyInterpreters,
    /// The interpreter of the script cannot run on uslub.
    #[error("is a script whose interpreter {} {reason}", interpreter.display())]
    Interpreter {
        /// The interpreter that its `#!` line names.
        interpreter: PathBuf,
        /// Why the interpreter cannot run.
        reason: Box<Reason>,
    },
}

impl Reason {
    /// The failure for `program`; the name is as the user typed it.
    pub fn failure(&self, program: &Path) -> Failure {
        Failure {
            message: format!("{} {self}", program.display()),
            hint: self.hint(program),
            code: self.code(),
        }
    }

    /// The exit status that a shell uses.
    fn code(&self) -> i32 {
        match self {
            Reason::NotInPath { .. } | Reason::NoSuchFile | Reason::NoLoader(_) => NOT_FOUND,
            Reason::Interpreter { reason, .. } => reason.code(),
            _ => UNSUITABLE,
        }
    }

    /// The remedy for `program`.
    fn hint(&self, program: &Path) -> String {
        let file = program.display();
        match self {
            Reason::NotInPath { here: true } => {
                format!("to run the file in this folder: uslub run -- ./{file}")
            }
            Reason::NotInPath { here: false } => {
                "check the spelling, install the program, or give the path of its file".to_owned()
            }
            Reason::NoSuchFile => "check the path".to_owned(),
            Reason::Inaccessible(_) => {
                "check the path and the permissions on the way to it".to_owned()
            }
            Reason::Directory => "name a program in it".to_owned(),
            Reason::NotRegular => "name the file of a program".to_owned(),
            Reason::NotExecutable => {
                format!(
                    "chmod +x {file}, or run it by its interpreter (or move it off a noexec mount)"
                )
            }
            Reason::Empty | Reason::NotAProgram | Reason::Damaged(_) => {
                format!("see what it is with 'file {file}'; build or copy it again")
            }
            Reason::OtherElf(_) => "name the program that was linked from it".to_owned(),
            Reason::Static => {
                "link the program with uslub or run a dynamically linked build".to_owned()
            }
            Reason::Sanitized(sanitizer) => {
                let option = sanitizer.option();
                format!("run it without uslub, or build it without {option}; see docs/debugging.md")
            }
            Reason::WrongMachine { library, .. } => {
                format!("run a build of the program for {library}, or a uslub for its machine")
            }
            Reason::OtherCLibrary { library, .. } => {
                format!("run a build of the program for {library}")
            }
            Reason::NoLoader(_) => {
                "install the C library that the program was built for".to_owned()
            }
            Reason::Elevated(elevation) => elevation.hint(),
            Reason::EmptyShebang => "start it with a line such as #!/bin/sh".to_owned(),
            Reason::CarriageReturn => format!("convert its line ends: sed -i 's/\\r$//' {file}"),
            Reason::TooManyInterpreters => "name the last interpreter in its '#!' line".to_owned(),
            Reason::Interpreter {
                interpreter,
                reason,
            } => match **reason {
                Reason::NoSuchFile | Reason::NotInPath { .. } => {
                    "install the interpreter or correct the '#!' line".to_owned()
                }
                _ => reason.hint(interpreter),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_read_as_sentences() {
        let missing = Reason::NotInPath { here: false }.failure(Path::new("srot"));
        assert_eq!(missing.message, "srot is not found in PATH");
        assert_eq!(missing.code, NOT_FOUND);
        let fixed = Reason::Static.failure(Path::new("./a"));
        assert_eq!(
            fixed.message,
            "./a is statically linked: LD_PRELOAD cannot reach it"
        );
        assert_eq!(fixed.code, UNSUITABLE);
    }

    #[test]
    fn a_script_is_as_suitable_as_its_interpreter() {
        let script = Reason::Interpreter {
            interpreter: PathBuf::from("/bin/tool"),
            reason: Box::new(Reason::NoSuchFile),
        };
        let failure = script.failure(Path::new("./s"));
        assert_eq!(
            failure.message,
            "./s is a script whose interpreter /bin/tool does not exist"
        );
        assert_eq!(failure.code, NOT_FOUND);
    }
}
