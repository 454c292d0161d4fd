//! The commands that look into a process or a core file from outside.
//!
//! | file | concept |
//! |---|---|
//! | `target` | what to look at: a process or a core file |
//! | `refusal` | why it cannot be read, and what helps |
//! | `info` | `uslub info`, `uslub inspect core`: caches and the bridge, for people |
//! | `json` | the same as JSON |
//! | `explain` | `uslub explain`: what an address is |
//! | `fault` | `uslub inspect core`: why the program died |
//! | `list` | `uslub list`: the objects of a cache |
//! | `glyphs` | text for a terminal: widths, bars |
//! | `map`, `pins` | `uslub map`: how full the slabs are; who holds the objects of sparse ones |
//! | `doctor` | `uslub doctor`: what is wrong, in sentences |
//! | `top` | `uslub top`: look after look, in a terminal |
//! | `slabinfo`, `sysfs` | `uslub slabinfo`, `uslub sysfs`: the kernel's columns and files |
//! | `metrics`, `http` | `uslub metrics`: OpenMetrics text, and a server for it |
//! | `holders`, `names` | `uslub holders`: who points to an object; names for addresses |
//! | `gdb_script` | `uslub gdb-script`: the same commands inside gdb |
//! | `leaks`, `growth`, `period` | `uslub leaks`: which caches grow, and what that means |

mod doctor;
mod explain;
mod fault;
mod gdb_script;
mod glyphs;
pub mod growth;
mod holders;
mod http;
mod info;
mod json;
mod leaks;
mod list;
mod map;
mod metrics;
mod names;
mod period;
mod pins;
mod refusal;
mod slabinfo;
mod sysfs;
pub mod target;
pub mod top;

use crate::ending::Ending;
use crate::failure::Failure;
use crate::numbers::{whole, whole_from};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Subcommand};
pub use doctor::{DoctorOptions, run as doctor};
pub use map::{MapOptions, run as map};
use std::io::Write;
use std::path::PathBuf;
pub use top::{TopOptions, run as top};

pub use holders::HoldersOptions;
pub use leaks::LeaksOptions;
pub use metrics::MetricsOptions;
pub use sysfs::SysfsOptions;

/// Options of `uslub info`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct InfoOptions {
    /// The process, by its number; or a core file
    #[arg(value_name = "PID|FILE")]
    pub target: PathBuf,

    /// Show every cache, also those without objects
    #[arg(long)]
    pub all: bool,

    /// Write JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// What `uslub inspect` looks at.
#[derive(Debug, Subcommand)]
pub enum InspectCommand {
    /// Say why a program died, and what its heap held
    Core(CoreOptions),
}

/// Options of `uslub inspect core`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct CoreOptions {
    /// The core file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Show every cache, also those without objects
    #[arg(long)]
    pub all: bool,

    /// Write JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Options of `uslub explain`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct ExplainOptions {
    /// The process, by its number; or a core file
    #[arg(value_name = "PID|FILE")]
    pub target: PathBuf,

    /// Addresses, hexadecimal with 0x, or decimal
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
}

/// Options of `uslub list`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct ListOptions {
    /// The process, by its number; or a core file
    #[arg(value_name = "PID|FILE")]
    pub target: PathBuf,

    /// The cache, as `uslub info` names it
    #[arg(value_name = "CACHE")]
    pub cache: String,

    /// Objects to list of a cache, at most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole_from(0_usize))]
    pub limit: usize,

    /// Bytes of each object to show
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = whole(0_usize, 4096))]
    pub dump: usize,

    /// List free slots too, with their states
    #[arg(long)]
    pub all: bool,
}

/// Options of the commands with fixed output.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct TargetOptions {
    /// The process, by its number; or a core file
    #[arg(value_name = "PID|FILE")]
    pub target: PathBuf,
}

/// The part of the help after the options.
const STATUS_HELP: &str = "\
The process is not stopped, and runs no code for it.

Exit status: 0 done; 2 wrong usage, 125 it cannot be read, 126 it is not on uslub, 127 no such process.";

/// The commands of this module.
const COMMANDS: [&str; 12] = [
    "info", "explain", "list", "slabinfo", "metrics", "inspect", "top", "map", "doctor", "leaks",
    "holders", "sysfs",
];

/// The failure for a command of this module whose argument is missing.
pub fn usage(error: &clap::Error) -> Option<Failure> {
    missing(error, &COMMANDS)
}

/// The failure for one of these commands whose argument is missing.
pub fn missing(error: &clap::Error, commands: &[&str]) -> Option<Failure> {
    let command = std::env::args_os().nth(1)?.into_string().ok()?;
    if error.kind() != ErrorKind::MissingRequiredArgument || !commands.contains(&&*command) {
        return None;
    }
    let (missing, verb) = match error.get(ContextKind::InvalidArg)? {
        ContextValue::Strings(all) if all.len() > 1 => (all.join(" and "), "are"),
        ContextValue::Strings(all) => (all.join(" "), "is"),
        other => (other.to_string(), "is"),
    };
    let missing = missing.replace(['<', '>'], "");
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => format!("see 'uslub {command} --help'"),
    };
    Some(Failure::usage(
        format!("{missing} {verb} missing"),
        usage.replacen("Usage", "usage", 1),
    ))
}

/// `uslub info`.
pub fn info(options: &InfoOptions) -> Result<Ending, Failure> {
    let target = target::Target::open(&options.target)?;
    let text = match options.json {
        true => json::text(&target)?,
        false => info::text(&target, options.all)?,
    };
    print(&text)
}

/// `uslub inspect`.
pub fn inspect(what: &InspectCommand) -> Result<Ending, Failure> {
    let InspectCommand::Core(options) = what;
    let target = target::Target::core(&options.file)?;
    let text = match options.json {
        true => json::text(&target)?,
        false => {
            let fault = fault::text(&target)?;
            fault + &info::text(&target, options.all)?
        }
    };
    print(&text)
}

/// `uslub explain`.
pub fn explain(options: &ExplainOptions) -> Result<Ending, Failure> {
    let addresses: Result<Vec<_>, _> = options
        .addresses
        .iter()
        .map(|a| explain::parse(a))
        .collect();
    let addresses = addresses?;
    let target = target::Target::open(&options.target)?;
    print(&explain::text(&target, &addresses)?)
}

/// `uslub list`.
pub fn list(options: &ListOptions) -> Result<Ending, Failure> {
    let target = target::Target::open(&options.target)?;
    print(&list::text(&target, options)?)
}

/// `uslub slabinfo`.
pub fn slabinfo(options: &TargetOptions) -> Result<Ending, Failure> {
    let target = target::Target::open(&options.target)?;
    print(&slabinfo::text(&target)?)
}

/// `uslub metrics`.
pub fn metrics(options: &MetricsOptions) -> Result<Ending, Failure> {
    match &options.listen {
        Some(address) => metrics::listen(options, address),
        None => print(&metrics::text(&options.targets)?),
    }
}

/// `uslub holders`.
pub fn holders(options: &HoldersOptions) -> Result<Ending, Failure> {
    explain::parse(&options.address)?;
    let target = target::Target::open(&options.target)?;
    print(&holders::text(&target, options)?)
}

/// `uslub sysfs`.
pub fn sysfs(options: &SysfsOptions) -> Result<Ending, Failure> {
    let target = target::Target::open(&options.target)?;
    print(&sysfs::make(&target, &options.folder)?)
}

/// `uslub gdb-script`.
pub fn gdb_script() -> Result<Ending, Failure> {
    print(&gdb_script::text())
}

/// `uslub leaks`: status 1 if a cache is suspect.
pub fn leaks(options: &LeaksOptions) -> Result<Ending, Failure> {
    let (text, is_found) = leaks::text(options)?;
    print(&text)?;
    Ok(Ending::Exited(is_found.into()))
}

/// A value as JSON text.
fn json_text(value: &impl serde::Serialize) -> Result<String, Failure> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => Ok(text + "\n"),
        Err(error) => Err(Failure::ours(
            format!("cannot write JSON: {error}"),
            "report this as a bug of uslub",
        )),
    }
}

/// Writes to standard output. A reader that has gone (`| head`) is no failure.
fn print(text: &str) -> Result<Ending, Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::ours(
            format!("cannot write to standard output: {error}"),
            "check where the output goes",
        )),
        _ => Ok(Ending::Exited(0)),
    }
}
