//! The ways to run a program on uslub. The tests run every program in each of them.

use std::path::Path;
use std::process::Command;

use crate::subject::{plain, subject};

/// Variables that would change the allocator, or the program's expectations of it.
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

/// How the library gets into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Only `LD_PRELOAD`: no report and no helper thread.
    Preload,
    /// `uslub run --quiet`, under which the helper thread may start.
    Command,
}

/// The per-CPU mode that is available to the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rseq {
    /// glibc has registered an rseq area, if kernel and glibc support rseq.
    OfLibc,
    /// glibc registers no rseq area (`GLIBC_TUNABLES=glibc.pthread.rseq=0`).
    Unregistered,
    /// uslub must use the CPU's number, as on kernels before 6.3 (`USLUB_OPTIONS=rseq=2`).
    ByNumber,
    /// uslub must not use rseq (`USLUB_OPTIONS=rseq=0`).
    Off,
}

/// One way to run a program on uslub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// How the library gets into the program.
    pub launch: Launch,
    /// The per-CPU mode.
    pub rseq: Rseq,
}

impl Way {
    /// Preloaded, with all features of the machine.
    pub const PRELOADED: Way = Way {
        launch: Launch::Preload,
        rseq: Rseq::OfLibc,
    };
    /// Preloaded, without an rseq area from glibc.
    pub const UNREGISTERED: Way = Way {
        launch: Launch::Preload,
        rseq: Rseq::Unregistered,
    };
    /// Preloaded, with the CPU's number.
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

    /// The environment variables for this way.
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

    /// The words in front of the program's arguments, for a command line that runs `program` in
    /// this way.
    pub fn words(self, program: &Path) -> Vec<std::ffi::OsString> {
        let mut words = Vec::new();
        if self.launch == Launch::Command && !plain() {
            words.push(subject().command.clone().into_os_string());
            words.extend(["run", "--quiet", "--"].map(Into::into));
        }
        words.push(program.as_os_str().to_owned());
        words
    }

    /// Sets the environment of this way for `command`, and removes the settings of other ways.
    pub fn apply(self, command: &mut Command) {
        scrub(command);
        command.envs(self.variables());
        if self.launch == Launch::Command && !plain() {
            command.env("USLUB_LIBRARY", &subject().library);
        }
    }
}

/// Removes all variables that would change the allocator of `command`.
pub fn scrub(command: &mut Command) {
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C");
}

/// Defines a group of tests with a common body that takes a [`Way`]: `by_preload`,
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
