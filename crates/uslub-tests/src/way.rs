//! How a program comes to run on uslub.

use std::path::Path;
use std::process::Command;

use crate::subject::{plain, subject};

/// Variables that would change the allocator, or what a program expects of it.
const VARIABLES: [&str; 11] = [
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_PERTURB_",
    "USLUB_COMMAND",
    "USLUB_EXPECT",
    "USLUB_FOLLOW",
    "USLUB_HELPER",
    "USLUB_LIBRARY",
    "USLUB_OPTIONS",
    "USLUB_REPORT",
];

/// What brings the library into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// `LD_PRELOAD` and nothing else: no report and no helper thread.
    Preload,
    /// `uslub run --quiet`, under which the helper thread may start.
    Command,
}

/// What per-CPU mode the allocator finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rseq {
    /// glibc has registered an rseq area, where kernel and glibc have rseq.
    OfLibc,
    /// glibc leaves rseq alone (`GLIBC_TUNABLES=glibc.pthread.rseq=0`).
    Unregistered,
    /// uslub is told to go by the CPU's number, as on kernels before 6.3 (`USLUB_OPTIONS=rseq=2`).
    ByNumber,
    /// uslub is told not to use it (`USLUB_OPTIONS=rseq=0`).
    Off,
}

/// One way to run a program on uslub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// What brings the library in.
    pub launch: Launch,
    /// What it finds there.
    pub rseq: Rseq,
}

impl Way {
    /// Preloaded, with all that the machine has.
    pub const PRELOADED: Way = Way {
        launch: Launch::Preload,
        rseq: Rseq::OfLibc,
    };
    /// Preloaded, where glibc registers nothing.
    pub const UNREGISTERED: Way = Way {
        launch: Launch::Preload,
        rseq: Rseq::Unregistered,
    };
    /// Preloaded, by the CPU's number.
    pub const BY_NUMBER: Way = Way {
        launch: Launch::Preload,
        rseq: Rseq::ByNumber,
    };
    /// Preloaded, without restartable sequences.
    pub const TRY_LOCK: Way = Way {
        launch: Launch::Preload,
        rseq: Rseq::Off,
    };
    /// Under `uslub run`.
    pub const UNDER_RUN: Way = Way {
        launch: Launch::Command,
        rseq: Rseq::OfLibc,
    };
    /// Under `uslub run`, without restartable sequences.
    pub const UNDER_RUN_TRY_LOCK: Way = Way {
        launch: Launch::Command,
        rseq: Rseq::Off,
    };

    /// What to set in the program's environment for this way.
    pub fn variables(self) -> Vec<(&'static str, String)> {
        if plain() {
            return Vec::new();
        }
        let mut variables = vec![("USLUB_EXPECT", "1".to_owned())];
        if self.launch == Launch::Preload {
            let library = subject().library.display().to_string();
            variables.push(("LD_PRELOAD", library));
        }
        match self.rseq {
            Rseq::OfLibc => {}
            Rseq::Unregistered => {
                variables.push(("GLIBC_TUNABLES", "glibc.pthread.rseq=0".to_owned()));
            }
            Rseq::ByNumber => variables.push(("USLUB_OPTIONS", "rseq=2".to_owned())),
            Rseq::Off => variables.push(("USLUB_OPTIONS", "rseq=0".to_owned())),
        }
        variables
    }

    /// A command line that runs `program` this way: the words before the
    /// program's arguments.
    pub fn words(self, program: &Path) -> Vec<std::ffi::OsString> {
        let mut words = Vec::new();
        if self.launch == Launch::Command && !plain() {
            words.push(subject().command.clone().into_os_string());
            words.extend(["run", "--quiet", "--"].map(Into::into));
        }
        words.push(program.as_os_str().to_owned());
        words
    }

    /// Gives `command` the environment of this way and of no other.
    pub fn apply(self, command: &mut Command) {
        scrub(command);
        command.envs(self.variables());
        if self.launch == Launch::Command && !plain() {
            command.env("USLUB_LIBRARY", &subject().library);
        }
    }
}

/// Removes all that would change the allocator of `command`.
pub fn scrub(command: &mut Command) {
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C");
}

/// Makes a group of tests of one body that takes a [`Way`]: `by_preload`,
/// `without_libc_rseq`, `without_rseq` and `under_uslub_run`.
#[macro_export]
macro_rules! in_every_way {
    ($($(#[$attribute:meta])* fn $name:ident($way:ident) $body:block)*) => {$(
        $(#[$attribute])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn check($way: $crate::Way) $body

            #[test]
            fn by_preload() {
                check($crate::Way::PRELOADED);
            }

            #[test]
            fn without_libc_rseq() {
                check($crate::Way::UNREGISTERED);
            }

            #[test]
            fn without_rseq() {
                check($crate::Way::TRY_LOCK);
            }

            #[test]
            fn under_uslub_run() {
                check($crate::Way::UNDER_RUN);
            }
        }
    )*};
}
