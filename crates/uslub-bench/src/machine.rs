//! The machine and the versions of a measurement, for the head of a report.

use std::{fmt, fs};

use serde::Serialize;

use crate::error::Failure;
use crate::linux;
use crate::pace::Pace;

/// The machine, and the software that ran on it.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub machine: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Version of the kernel.
    pub kernel: String,
    /// How the allocator accesses per-CPU slots.
    pub mode: &'static str,
    /// The cost of two basic steps on this machine.
    pub pace: Pace,
    /// The versions of the programs involved.
    pub versions: Versions,
}

/// The versions of the programs involved.
#[derive(Debug, Serialize)]
pub struct Versions {
    /// The version of this program.
    pub uslub: &'static str,
    /// The compiler's optimisation.
    pub build: &'static str,
}

impl Machine {
    /// Reads the facts of this machine.
    pub(crate) fn look() -> Result<Self, Failure> {
        Ok(Self {
            machine: processor(),
            cpus: linux::cpus().len(),
            kernel: read("/proc/sys/kernel/osrelease"),
            mode: linux::steady()?.platform.mode().name(),
            pace: Pace::look(),
            versions: Versions {
                uslub: env!("CARGO_PKG_VERSION"),
                build: if cfg!(debug_assertions) {
                    "debug: its figures mean nothing"
                } else {
                    "release"
                },
            },
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} CPUs; Linux {}; per-CPU slots by {}; uslub {}, {} build",
            self.machine,
            self.cpus,
            self.kernel,
            self.mode,
            self.versions.uslub,
            self.versions.build
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn processor() -> String {
    let info = read("/proc/cpuinfo");
    let line = info.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| line.split_once(':'));
    model.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}
